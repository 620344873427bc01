"""Systems of the comparisons translate like the reference, each in its own process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.marian_peer import needs_marian
from support.models import lively_model, save_model
from support.processor import saturates

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import compile_bundle
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.config import END, START, UNKNOWN
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

if TYPE_CHECKING:
    from systems import Models, Setting

pytestmark = pytest.mark.slow

SOURCES = [[5, 9, 11, 30, 8, 14], [7, 7, 21], [33, 12, 4, 6], [35, 5]]
ORDER = [2, 0, 1, 3]
#: Marian's int8 matmuls need multiples of 64.
MARIAN: dict[str, Any] = {
    "layer_norm_epsilon": 1e-6, "sinusoid": "tensor2tensor", "output_bias": True, "d_model": 64,
    "d_ff": 128,
}  # fmt: skip


def models_with(directory: Path, tokenizer: Path, **changes: Any) -> Models:
    """Return a model that has learned something, with no files of the systems yet."""
    from systems import Models

    model = lively_model(Tokenizer(tokenizer, tokenizer).vocabulary_size, **changes)
    if changes:
        with torch.no_grad():
            model.embedding.weight[START] = 0
    return Models(save_model(model, directory / "run", tokenizer), directory / "bundle", directory)


def translate(setting: Setting, models: Models) -> list[list[int]]:
    """Return the translations of the sources by a process of the system."""
    from systems import OURS, Process, convert

    if setting.system == OURS:
        options = BuildOptions((f"onnx-{setting.precision}",))
        compile_bundle(open_checkpoint(models.checkpoint), models.bundle, options)
    convert(setting, models)
    with Process(setting, models) as process:
        process.ask("sources", sources=SOURCES)
        answer = process.translate(ORDER)
        found = process.ask("last")["ids"]
        assert answer["tokens"] == [len(tokens) for tokens in found]
        assert min(answer["translate"], answer["processor"]) > 0
        assert process.memory() > 10_000_000
    return [found[ORDER.index(row)] for row in range(len(SOURCES))]


def expected(model: Transformer, times: int | None = None) -> list[list[int]]:
    """Return the reference's; Marian's limit is three times the source, with the end symbol."""
    found = []
    for source in SOURCES:
        longest = None if times is None else times * (len(source) + 1)
        options = SearchOptions(beam_size=1, max_length=longest)
        found.append([*beam_search(model, [source], options)[0][0].tokens])
    return found


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("system", "precision"),
    [("translate-trt", "fp32"), ("translate-trt", "int8"), ("ctranslate2", "fp32"),
     ("ctranslate2", "int8"), ("torch", "fp32"), ("transformers", "fp32")],
)  # fmt: skip
def test_a_system_translates_as_the_reference(
    system: str, precision: str, tmp_path: Path, tokenizer_model: Path
) -> None:
    from systems import Setting

    if (system, precision) == ("ctranslate2", "int8") and saturates():
        pytest.skip("int8 translations of CTranslate2 differ on processors without VNNI")
    models = models_with(tmp_path, tokenizer_model)
    # Greedy: early stopping changes nothing.
    found = translate(Setting(system, precision, beam_size=1), models)
    assert found == expected(open_checkpoint(models.checkpoint).load_model())


@pytest.mark.parametrize(
    "mixer", ["self-attention", pytest.param("ssru", marks=pytest.mark.nightly)]
)
def test_marian_translates_as_the_reference(
    mixer: str, tmp_path: Path, tokenizer_model: Path
) -> None:
    needs_marian()
    from systems import Setting

    models = models_with(tmp_path, tokenizer_model, **MARIAN, decoder_mixer=mixer)
    found = translate(Setting("marian", "fp32", beam_size=1), models)
    assert found == expected(open_checkpoint(models.checkpoint).load_model(), times=3)


@pytest.mark.parametrize(("mixer", "norm"), [("self-attention", "post"), ("ssru", "pre")])
def test_the_importer_reads_what_is_written(mixer: str, norm: str, tmp_path: Path) -> None:
    from marian import marian_order, write_model, write_vocabulary

    from translate_trt.export.importers.marian.model import import_marian_model

    model = lively_model(320, **MARIAN, decoder_mixer=mixer, norm=norm)
    with torch.no_grad():
        model.embedding.weight[START] = 0
    order = marian_order(320, [END, UNKNOWN])
    write_model(model, order, tmp_path / "model.npz")
    write_vocabulary(order, tmp_path / "vocab.yml")
    imported = import_marian_model(tmp_path / "model.npz", tmp_path / "vocab.yml")
    found = dict(imported.model.state_dict())
    for name, tensor in model.state_dict().items():
        if name.startswith(("encoder", "decoder")):
            torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_a_comparison_reports_all_systems(
    tmp_path: Path, tokenizer_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness import run
    from side_by_side import side_by_side

    model = models_with(tmp_path, tokenizer_model).checkpoint
    text, out = tmp_path / "text", tmp_path / "report.json"
    text.write_text("the dog runs\na cat sleeps\n")
    systems = ("translate-trt", "ctranslate2", "marian")
    run(side_by_side, [model, text, "--reference", text, "--trial-lines", 0, "--rounds", 1,
                       "--threads", 1, "--beam-size", 1, "--precision", "fp32", "--out", out,
                       *(word for one in systems for word in ("--system", one))])  # fmt: skip
    found = json.loads(out.read_text())["results"]
    assert list(found["systems"]) == ["translate-trt fp32, beam 1", "ctranslate2 fp32, beam 1"]
    assert "arian" in found["left_out"]["marian fp32, beam 1"]
    for one in found["systems"].values():
        assert (one["equal"], one["sentences"], one["other_alone"]) == (2, 2, 0)
        assert 0 <= one["bleu"] <= one["chrf"] <= 100
        assert min(one["installed_bytes"], one["memory"]) > 10**6
    assert (page := out.with_suffix(".md").read_text()) in capsys.readouterr().out
    assert "| ctranslate2 fp32, beam 1 |" in page
    assert "marian fp32, beam 1 is left out" in page
    assert "<svg" in out.with_suffix(".svg").read_text()
