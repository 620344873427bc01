"""Models into several languages: `data prepare --language-tags`, and runs and bundles of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result
from support.compiled import compile_once
from support.shared import SharedFiles

from translate_trt.export.build_options import BuildOptions
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import open_checkpoint
from translate_trt.train.data.token_files import PreparedData, open_prepared
from translate_trt.train.evaluation.validation import translate_reference
from translate_trt.train.trainer.distributed import Group
from translate_trt.train.trainer.loop import Trainer
from translate_trt.train.trainer.metrics import read_metrics
from translate_trt.train.trainer.run import prepare_job

pytestmark = pytest.mark.slow


def prepare(directory: Path, *flags: object, languages: tuple[str, ...] = ("de", "fr")) -> Result:
    """Prepare 30 pairs into the first language, and 10 into each other; one pair is in all."""
    arguments: list[object] = ["--output", directory / "data", "--vocabulary-size", 330]
    for language in languages:
        first = language == languages[0]
        pairs = [
            ("OK", "OK"),
            *((f"{n} cats", f"{n} {language}") for n in range(29 if first else 9)),
        ]
        for flag, count in (("--from", len(pairs)), ("--valid", 2)):
            files = [directory / f"{flag[2:]}-{language}.{end}" for end in ("en", language)]
            for path, lines in zip(files, zip(*pairs[:count], strict=True), strict=True):
                path.write_text("".join(f"{line}\n" for line in lines))
            arguments += [flag, *files]
    words = ["data", "prepare", *arguments, "--workers", 1, "--language-tags", *flags]
    return CliRunner().invoke(main, list(map(str, words)))


@pytest.fixture
def data(tmp_path: Path) -> PreparedData:
    other = tmp_path / "bt.en", tmp_path / "bt.fr"
    for path in other:
        path.write_text("a dog <br>\n")
    done = prepare(tmp_path, "--back-translated", *other, "--symbols", "<br>,<name>")
    assert done.exit_code == 0, done.output
    return open_prepared(tmp_path / "data")


def test_sources_begin_with_the_language_of_their_target(data: PreparedData) -> None:
    tokenizer, train, valid = Tokenizer(*data.tokenizers), data.split("train"), data.split("valid")
    first = [
        tokenizer.source_pieces(side.tokens[side.offsets[:-1]])
        for side in (train.source, valid.source)
    ]
    assert first == [["<2de>"] * 30 + ["<2fr>"] * 10 + ["<BT>"], ["<2de>"] * 2 + ["<2fr>"] * 2]
    last = tokenizer.source_pieces(train.source.tokens[train.source.offsets[-2] :])
    assert last[1] == "<2fr>"
    assert last[-2] == "<br>"
    assert not {"<2de>", "<BT>"} & {*tokenizer.source_pieces(tokenizer.encode_source("<2de> <BT>"))}
    assert data.text("valid")[0] == [">>de<< OK", ">>de<< 0 cats", ">>fr<< OK", ">>fr<< 0 cats"]
    assert (data.source_language, data.target_language) == ("en", None)
    assert set(data.prompt.target_languages) == {"de", "fr"}
    shown = CliRunner().invoke(main, ["data", "info", str(data.path)])
    assert "de, fr" in shown.output


def test_from_training_to_a_bundle(
    data: PreparedData, settings: dict[str, Any], shared: SharedFiles, tmp_path: Path
) -> None:
    changes = {
        "steps": 60, "validate_every": 60, "checkpoint_every": 60, "average_checkpoints": 1,
        "corpus_temperature": 5, "learning_rate": 1e-2, "dropout": 0.0, "batch_tokens": 1_000,
        "micro_batch_tokens": 1_000,
    }  # fmt: skip
    del settings["vocabulary_size"]  # the data's
    out = tmp_path / "run"
    job = prepare_job(data, out, "tiny", settings | changes)
    Trainer(job, Group(torch.device("cpu"))).run()
    (scores,) = (entry["validation"] for entry in read_metrics(out) if "validation" in entry)
    assert scores["chrf"] > 50  # the lines name their languages
    assert prepare_job(data, out, None, {}, resume=True).settings.decoding.prompt == data.prompt
    checkpoint = open_checkpoint(out)
    assert checkpoint.prompt == data.prompt
    translator = Translator(compile_once(shared, checkpoint, BuildOptions(("onnx-fp32",))))
    assert translator.target_languages == ("de", "fr")
    for language, other in (("de", "fr"), ("fr", "de")):
        options = SearchOptions(beam_size=1, max_extra_length=4, target_language=language)
        lines = ["7 cats", f">>{other}<< 8 cats"]
        found = [one.text for one in translator.translate(lines, options)]
        assert found == [f"7 {language}", f"8 {other}"]
        models = checkpoint.load_model(), Tokenizer(*checkpoint.tokenizers)
        assert found == translate_reference(*models, lines, options, checkpoint.prompt)[0]
    unnamed = dataclasses.replace(options, target_language=None)
    with pytest.raises(OptionError, match="the line '7 cats' does not begin"):
        translate_reference(*models, lines, unnamed, checkpoint.prompt)
    with pytest.raises(OptionError, match=r"'es' is unknown .* de, fr"):
        translator.translate(lines, dataclasses.replace(options, target_language="es"))


@pytest.mark.parametrize(
    ("languages", "flags", "message"),
    [
        (("de", "fr"), ["--target-language", "de"], "leave --target-language out"),
        (("de", "de"), [], "found: de"),
        (("de", "fr", "x1"), [], "name must end with"),
    ],
)
def test_refused(
    tmp_path: Path, languages: tuple[str, ...], flags: list[str], message: str
) -> None:
    done = prepare(tmp_path, *flags, languages=languages)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "data").exists()
