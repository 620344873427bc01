from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnx
import pytest
import torch
from click.testing import CliRunner, Result
from support.graph_edits import edit_graph, roll_columns
from support.models import lively_model, record_hashes, save_model

from translate_trt.export.cli.verify_tables import parity_table
from translate_trt.export.hub.sample_languages import sample
from translate_trt.export.verify import parity
from translate_trt.export.verify.cpu_emulation import (
    emulated_bundle,
    why_engine_cannot_run,
)
from translate_trt.export.verify.layers import compare_layers
from translate_trt.export.verify.parity import is_weaker, score_error, verify
from translate_trt.export.verify.thresholds import THRESHOLDS, Thresholds
from translate_trt.runtime import native
from translate_trt.runtime.backends.engines import Machine
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.bundle.manifest import read_manifest, verify_files, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BundleError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.evaluation.scoring import bleu

pytestmark = pytest.mark.slow

SOURCE = [
    "the cat runs.",
    "a big dog sleeps",
    "",
    "Haus Hund läuft.",
    "the house under the tree",
] * 4
REFERENCE = ["a b c d e f", "g h i j", "", "k l m n o p q", "r s t u"] * 4


@pytest.fixture
def bundle(compiled_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))


def spoil(bundle: Path, target: str, role: str = "step") -> None:
    """Change the output projection, like a wrong export."""
    columns = read_manifest(bundle).model.vocabulary_size

    def edit(model: onnx.ModelProto) -> None:
        of_tokens = [one for one in model.graph.initializer if columns in one.dims]
        # A tied output projection uses the embedding table.
        roll_columns(next((one for one in of_tokens if one.dims[0] != columns), of_tokens[0]))

    edit_graph(bundle, target, role, edit)


def run_verify(bundle: Path, checkpoint: Checkpoint, *options: str) -> Result:
    """Run the command on the test set."""
    for name, lines in (("s.en", SOURCE), ("r.de", REFERENCE)):
        text = "".join(f"{line}\n" for line in lines)
        (bundle.parent / name).write_text(text, encoding="utf-8")
    return CliRunner().invoke(
        main,
        ["verify", str(bundle), "--checkpoint", str(checkpoint.path), "--threads", "1", "--source",
         str(bundle.parent / "s.en"), "--reference", str(bundle.parent / "r.de"), *options],
    )  # fmt: skip


def test_a_good_bundle_passes(bundle: Path, checkpoint: Checkpoint) -> None:
    found = verify(bundle, checkpoint, SOURCE, REFERENCE, threads=1)
    assert list(found) == ["onnx-fp32", "onnx-int8"]
    fp32 = found["onnx-fp32"]
    assert fp32.passed
    assert fp32.identical_percent == 100
    assert fp32.largest_score_difference < 1e-4
    assert fp32.bleu == fp32.reference_bleu
    assert fp32.bleu_difference_interval == (0.0, 0.0)
    assert fp32.sentences == len(SOURCE)
    assert fp32.sentences_per_second > 0
    assert "tok:13a" in fp32.signature
    recorded = read_manifest(bundle).target("onnx-fp32").parity
    assert recorded is not None
    assert recorded["passed"] is True
    assert recorded["gate"] == "at least 99.9 % identical or tied, scores within 0.001"
    text = "".join(f"{line}\n" for line in SOURCE)
    assert recorded["source_sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", recorded["date"])
    shown = CliRunner().invoke(main, ["info", str(bundle)]).output
    for word in (recorded["source_sha256"], recorded["date"], checkpoint.weights_sha256):
        assert word in shown


def test_a_model_of_several_languages(bundle: Path, checkpoint: Checkpoint) -> None:
    prompt = Prompt((5,), (6,), {"en": 21}, {"de": 31, "nl": 32})
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), prompt=prompt))
    with pytest.raises(OptionError, match="target_language"):
        verify(bundle, checkpoint, SOURCE, REFERENCE, languages={"source_language": "en"})
    done = run_verify(
        bundle, checkpoint, "--target", "onnx-fp32", "--source-language", "en",
        "--target-language", "nl",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "100.00 %" in done.output


def test_lines_that_name_their_languages(
    bundle: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = Prompt(target_languages={"deu": 31, "nld": 32}, target_side="source")
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), prompt=prompt))
    translated: dict[tuple[int, ...], None] = {}
    search = parity.beam_search

    def note(model: Any, sources: Any, *rest: Any) -> Any:
        translated.update(dict.fromkeys(map(tuple, sources)))
        return search(model, sources, *rest)

    monkeypatch.setattr(parity, "beam_search", note)
    lines, right = [">>nld<< the cat", "", ">>deu<< the cat"], ["a", "", "b"]
    (found,) = verify(bundle, checkpoint, lines, right, ["onnx-fp32"], threads=1).values()
    assert (found.sentences, found.identical_percent) == (3, 100)
    cat = Tokenizer(*checkpoint.tokenizers).encode_source("the cat")
    assert {*translated} == {(32, *cat), (), (31, *cat)}
    with pytest.raises(OptionError, match="the line 'the cat' does not begin with a language"):
        verify(bundle, checkpoint, ["the cat"], ["a"], ["onnx-fp32"])


def test_a_wrong_graph_misses_the_thresholds(bundle: Path, checkpoint: Checkpoint) -> None:
    spoil(bundle, "onnx-fp32")
    done = run_verify(bundle, checkpoint, "--target", "onnx-fp32")
    assert done.exit_code == 1
    assert "FAILED" in done.stdout
    assert "onnx-fp32" in done.stderr
    assert "evidence" in done.stderr
    recorded = read_manifest(bundle).target("onnx-fp32").parity
    assert recorded is not None
    assert recorded["passed"] is False
    assert read_manifest(bundle).target("onnx-int8").parity is None


def test_another_models_bundle_is_refused(
    bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    other = lively_model(checkpoint.model.vocabulary_size + 1, steps=0)
    path = save_model(other, tmp_path / "other", checkpoint.tokenizer)
    with pytest.raises(BundleError, match="models differ"):
        verify(bundle, open_checkpoint(path), SOURCE, REFERENCE)


def nudged(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """Save a checkpoint of the same shape with slightly different weights."""
    model = checkpoint.load_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.01
    return open_checkpoint(save_model(model, path, checkpoint.tokenizer))


def test_another_checkpoint_of_the_same_shape_is_refused(
    bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    other = nudged(checkpoint, tmp_path / "other")
    message = "was not exported from this checkpoint, .*: the weights differ"
    with pytest.raises(BundleError, match=message):
        verify(bundle, other, SOURCE, REFERENCE)
    with pytest.raises(BundleError, match=message):
        compare_layers(bundle, other, SOURCE[:1], ["onnx-fp32"], threads=1)
    # If the bundle names other weights, the thresholds must detect the difference.
    weights = other.weights_sha256
    write_manifest(bundle, dataclasses.replace(read_manifest(bundle), weights_sha256=weights))
    found = verify(bundle, other, SOURCE, REFERENCE, ["onnx-fp32"], threads=1)["onnx-fp32"]
    assert not found.passed
    assert found.score_error > 1e-3


def test_another_tokenizer_is_refused(bundle: Path, checkpoint: Checkpoint, tmp_path: Path) -> None:
    path = Path(shutil.copytree(checkpoint.path, tmp_path / "other"))
    with (path / "tokenizer.spm").open("ab") as file:
        file.write(b"\x12\x00")  # an empty trainer_spec
    record_hashes(path / "config.json")
    with pytest.raises(BundleError, match="the tokenizers differ"):
        verify(bundle, open_checkpoint(path), SOURCE, REFERENCE)


def test_weaker_evidence_does_not_replace_stronger(
    bundle: Path, checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    target = ["onnx-fp32"]
    verify(bundle, checkpoint, SOURCE, REFERENCE, target, threads=1)
    found = verify(bundle, checkpoint, SOURCE[:3], REFERENCE[:3], target, threads=1)
    assert found["onnx-fp32"].sentences == 3
    kept = read_manifest(bundle).target("onnx-fp32").parity
    assert kept is not None
    assert kept["sentences"] == 20
    message = f"keeps its evidence (20 sentences, {kept['date']}), which is stronger than this (3"
    assert message in caplog.text
    verify(bundle, checkpoint, SOURCE[1:] + SOURCE[:1], REFERENCE, target, threads=1)
    newer = read_manifest(bundle).target("onnx-fp32").parity
    assert newer is not None
    assert newer["source_sha256"] != kept["source_sha256"]


def test_the_order_of_evidence() -> None:
    steps: list[dict[str, Any]] = [
        {"largest_difference": 2e-5},  # by other hands
        {"sentences": 3, "engine_not_run": "no GPU", "passed": True},
        {"sentences": 500, "engine_not_run": "no GPU", "passed": False},
        {"sentences": 3, "passed": False},
        {"sentences": 4, "engine_not_run": None, "passed": True},
    ]
    for place, evidence in enumerate(steps):
        weaker = [is_weaker(evidence, other) for other in steps]
        assert weaker == [place < other for other in range(len(steps))]


def test_a_bundle_that_is_replaced_meanwhile(
    bundle: Path, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare = parity.compare

    def replace_it(*arguments: Any) -> parity.Parity:
        spoil(bundle, "onnx-fp32")
        return compare(*arguments)

    monkeypatch.setattr(parity, "compare", replace_it)
    with pytest.raises(BundleError, match="onnx-fp32"):
        verify(bundle, checkpoint, SOURCE[:3], REFERENCE[:3], ["onnx-fp32"], threads=1)
    assert read_manifest(bundle).target("onnx-fp32").parity is None


def test_thresholds() -> None:
    assert not THRESHOLDS["fp32"].missed(99.9, 1e-3, 0.0, 30.0)
    assert THRESHOLDS["fp32"].missed(99.8, 0.0, 5.0, 30.0)
    assert THRESHOLDS["fp32"].missed(100.0, 1.1e-3, 0.0, 30.0)
    assert not THRESHOLDS["int8"].missed(10.0, 1.0, -0.3, 30.0)
    assert THRESHOLDS["int8"].missed(100.0, 0.0, -0.31, 30.0)
    assert not Thresholds(50.0, None, 1.0).missed(60.0, 9.0, -0.5, 30.0)
    assert str(Thresholds(50.0, None, 1.0)) == "at least 50.0 % identical, BLEU at most 1.0 lower"
    for name in ("fp16", "bf16"):
        assert not THRESHOLDS[name].missed(10.0, 1.0, -0.1, 30.0)
        assert THRESHOLDS[name].missed(99.0, 0.0, -0.11, 30.0)
    # A low BLEU says little.
    assert not THRESHOLDS["int8"].missed(25.0, 1.0, 0.0, 0.0)
    for low in (0.0, 1.0):
        (missed,) = THRESHOLDS["int8"].missed(24.9, 1.0, 0.0, low)
        assert "24.90 %" in missed


def test_a_broken_target_into_chinese_fails() -> None:
    def output(texts: list[str], first: int) -> Any:
        hypotheses = [SimpleNamespace(tokens=[first + n], score=-0.5) for n in range(len(texts))]
        return SimpleNamespace(
            hypotheses=hypotheses, texts=texts, sentences_per_second=1.0, bleu=bleu(texts, right)
        )

    right = sample("zh")
    expected = output([f"{line}也" for line in right], 10)
    broken = output(["的的的的。"] * len(right), 100)
    found = parity.compare(expected, broken, right, SearchOptions(), THRESHOLDS["int8"])
    assert found.reference_bleu > 80
    assert "tok:zh" in found.signature
    assert not found.passed


def test_near_ties_count_as_identical() -> None:
    def output(*scores: float) -> Any:
        hypotheses = [SimpleNamespace(tokens=[5, n], score=s) for n, s in enumerate(scores)]
        return SimpleNamespace(
            hypotheses=hypotheses, texts=["a b c d"] * len(scores), sentences_per_second=1.0,
            bleu=SimpleNamespace(score=20.0, signature=""),
        )  # fmt: skip

    expected, found = output(-0.5, -0.6), output(-0.5, -0.6005)
    found.hypotheses[1].tokens = [6, 7]
    compared = parity.compare(expected, found, ["a b c d"] * 2, SearchOptions(), THRESHOLDS["fp32"])
    assert (compared.identical_percent, compared.tied_percent) == (50.0, 50.0)
    assert compared.passed
    assert "50.00 %, tied 50.00 %" in parity_table({"a": compared})
    found.hypotheses[1].score = -0.602
    compared = parity.compare(expected, found, ["a b c d"] * 2, SearchOptions(), THRESHOLDS["fp32"])
    assert compared.tied_percent == 0
    assert not compared.passed
    # Without a threshold for scores, ties are not counted.
    compared = parity.compare(expected, found, ["a b c d"] * 2, SearchOptions(), THRESHOLDS["fp16"])
    assert compared.tied_percent == 0


def test_score_errors_are_relative_to_large_scores() -> None:
    assert score_error(-0.5, -0.5005) == pytest.approx(5e-4)
    assert score_error(-100.0, -100.05) == pytest.approx(5e-4)


NO_GPU = "no NVIDIA GPU or driver was found"


@pytest.fixture
def engines(engine_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(engine_bundle, tmp_path / "engines"))


def test_engines_are_emulated_and_reported_so(engines: Path, checkpoint: Checkpoint) -> None:
    found = verify(engines, checkpoint, SOURCE, REFERENCE, threads=1)
    assert list(found) == ["tensorrt-rtx-fp16", "tensorrt-rtx-bf16"]
    shown = CliRunner().invoke(main, ["info", str(engines)]).output
    words = " ".join(shown.split())
    for name, evidence in found.items():
        assert evidence.passed
        assert evidence.engine_not_run == NO_GPU
        assert evidence.beam_size == 3  # the engine's; the manifest says 4
        assert evidence.gate == "BLEU at most 0.1 lower"
        assert 0 < evidence.largest_score_difference < 0.5
        recorded = read_manifest(engines).target(name).parity
        assert recorded is not None
        assert recorded["engine_not_run"] == NO_GPU
        line = f"on a CPU, because the target did not run on a GPU: {NO_GPU}"
        assert f"{name}: measured {line}" in parity_table(found)
    assert words.count(line) == 2


def test_beam_sizes_have_references(bundle: Path, engines: Path, checkpoint: Checkpoint) -> None:
    shutil.copytree(engines / "targets/tensorrt-rtx-fp16", bundle / "targets/tensorrt-rtx-fp16")
    manifest, other = read_manifest(bundle), read_manifest(engines)
    targets = {
        "onnx-fp32": manifest.target("onnx-fp32"),
        "tensorrt-rtx-fp16": other.target("tensorrt-rtx-fp16"),
    }
    write_manifest(bundle, dataclasses.replace(manifest, targets=targets))
    found = verify(bundle, checkpoint, SOURCE, REFERENCE, threads=1)
    assert [evidence.beam_size for evidence in found.values()] == [4, 3]
    assert [evidence.engine_not_run for evidence in found.values()] == [None, NO_GPU]
    rows = [line.split() for line in parity_table(found).splitlines()[1:5]]
    assert [row[:2] for row in rows] == [
        ["PyTorch", "4"], ["PyTorch", "3"], ["onnx-fp32", "4"], ["tensorrt-rtx-fp16", "3"]
    ]  # fmt: skip


@pytest.mark.parametrize("required", [False, True])
def test_engines_can_be_required(required: bool, engines: Path, checkpoint: Checkpoint) -> None:
    flags = ["--require-engines"] if required else []
    done = run_verify(engines, checkpoint, "--target", "tensorrt-rtx-fp16", *flags)
    assert done.exit_code == int(required), done.output
    assert ("tensorrt-rtx-fp16" in done.stderr) == required
    assert NO_GPU in done.stdout


def test_a_wrong_emulated_graph_fails(engines: Path, checkpoint: Checkpoint) -> None:
    spoil(engines, "tensorrt-rtx-bf16", "step_graph")
    found = verify(engines, checkpoint, SOURCE, REFERENCE, ["tensorrt-rtx-bf16"], threads=1)
    assert found["tensorrt-rtx-bf16"].identical_percent < 50


def test_why_an_engine_cannot_run(
    engines: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert why_engine_cannot_run(read_manifest(bundle).target("onnx-fp32"), bundle) is None
    entry = read_manifest(engines).target("tensorrt-rtx-fp16")
    assert entry.engine is not None
    assert why_engine_cannot_run(entry, engines) == NO_GPU
    other = dataclasses.replace(entry, backend="openvino")
    assert why_engine_cannot_run(other, engines) == (
        "this version of translate-trt does not run openvino engines"
    )
    monkeypatch.setattr(native, "library", lambda: Path("libtranslate_trt.so"))
    built_with = entry.engine["step"]["version"]
    a10 = Gpu("NVIDIA A10", "8.6", 72)
    for version, gpu, reason in (
        (None, a10, "the Python package tensorrt_rtx is not installed"),
        (built_with, None, "no NVIDIA GPU or driver was found"),
        ("1.0.0", a10, f"made by tensorrt_rtx {built_with}; installed is 1.0.0"),
        (built_with, a10, None),
    ):
        machine = Machine(version, "linux-x86_64", gpu)
        monkeypatch.setattr(Machine, "present", lambda *_, machine=machine: machine)
        found = why_engine_cannot_run(entry, engines)
        assert reason == found if reason is None else reason in str(found)


def test_an_emulated_bundle_is_temporary(engines: Path) -> None:
    manifest = read_manifest(engines)
    with emulated_bundle(engines, manifest, manifest.target("tensorrt-rtx-bf16")) as directory:
        standing = read_manifest(directory)
        assert list(standing.targets) == ["tensorrt-rtx-bf16"]
        assert standing.target().backend == "onnxruntime"
        contract = manifest.target("tensorrt-rtx-bf16").contract
        assert standing.target().contract == contract.with_types({"bfloat16": "float32"})
        verify_files(directory, standing, "tensorrt-rtx-bf16")
    assert not directory.exists()
