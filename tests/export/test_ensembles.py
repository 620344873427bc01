"""Ensembles in one step graph: equal to the PyTorch ensemble, in every kind of target."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch
from click.testing import CliRunner, Result
from support.models import save_imported_model, save_model
from support.translations import assert_same, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiled, Compiler, check_members, compile_bundle
from translate_trt.export.contract import GraphLayout, ensemble_contract
from translate_trt.export.ensemble import TotalProbability, share_tables
from translate_trt.export.passes.pipeline import Report
from translate_trt.export.taps import stream
from translate_trt.export.verify.layers import compare_layers
from translate_trt.export.verify.parity import verify
from translate_trt.runtime.bundle import contract_fields
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.bundle.manifest import Limits, read_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BundleError, CheckpointError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer
from translate_trt.train.search import Ensemble, beam_search

pytestmark = pytest.mark.slow

LINES = ["the cat runs.", "", "a big dog sleeps under the tree", "Haus Hund läuft."]
REFERENCE = ["a b c d e f", "", "g h i j k", "l m n o"]


def member(checkpoint: Checkpoint, seed: int, directory: Path, **changes: Any) -> Checkpoint:
    """Save a random model with the vocabulary of the checkpoint and, by default, other sizes."""
    torch.manual_seed(seed)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 24, "d_ff": 40, "heads": 3}
    config = ModelConfig(checkpoint.model.vocabulary_size, **(sizes | changes))
    model = Transformer(config).eval()
    model.embedding.weight.data *= 4  # sharper distributions, in which beams cross
    return open_checkpoint(save_model(model, directory, checkpoint.tokenizer))


def ensemble(members: list[Checkpoint]) -> Ensemble:
    return Ensemble([one.load_model() for one in members])


@pytest.fixture(scope="module")
def pair(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Members of other depth, width and heads."""
    return [checkpoint, member(checkpoint, 1, tmp_path_factory.mktemp("pair") / "second")]


@pytest.fixture(scope="module")
def trio(pair: list[Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> list[Checkpoint]:
    """Members of which one has recurrent layers, and is the first."""
    path = tmp_path_factory.mktemp("trio") / "recurrent"
    recurrent = member(pair[0], 2, path, decoder_mixer="ssru", decoder_layers=2, norm="pre")
    return [recurrent, *pair]


@dataclasses.dataclass(frozen=True)
class Bundle:
    path: Path
    compiled: Compiled


@pytest.fixture(scope="module")
def bundle(pair: list[Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("pair") / "bundle"
    options = BuildOptions(("onnx-fp32", "onnx-int8"), attention=True)
    first, *others = pair
    return Bundle(path, compile_bundle(first, path, options, others=others))


@pytest.fixture(scope="module")
def static(trio: list[Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("trio") / "bundle"
    options = BuildOptions(("torch-fp32", "torch-bf16"), beam_size=3, attention=True)
    first, *others = trio
    return Bundle(path, compile_bundle(first, path, options, others=others))


# ---- translations ----


@pytest.mark.parametrize("beams", [1, 4])
def test_two_members_in_onnxruntime(beams: int, bundle: Bundle, pair: list[Checkpoint]) -> None:
    sources = random_sources(24, seed=beams, longest=12)
    options = SearchOptions(beams, num_hypotheses=beams, return_attention=True)
    expected = beam_search(ensemble(pair), sources, options)
    found = Translator(bundle.path, "onnx-fp32", threads=1).translate_ids(sources, options)
    assert_same(found, expected)
    for one in pair:  # the search is that of neither member
        assert expected != beam_search(one.load_model(), sources, options)


@pytest.mark.slow
def test_three_members_in_the_loop_of_engines(static: Bundle, trio: list[Checkpoint]) -> None:
    sources = random_sources(16, seed=5, longest=12)
    options = SearchOptions(3, num_hypotheses=3, return_attention=True)
    translator = Translator(static.path, "torch-fp32", device="cpu", threads=1)
    assert_same(
        translator.translate_ids(sources, options), beam_search(ensemble(trio), sources, options)
    )


def test_tokens_are_scored_and_forced(bundle: Bundle, pair: list[Checkpoint]) -> None:
    sources = random_sources(8, seed=3, longest=12)
    translator = Translator(bundle.path, "onnx-fp32", threads=1)
    given = [source[:3] for source in sources]
    (scored, forced) = (
        beam_search(ensemble(pair), sources, SearchOptions(1), prefixes)
        for prefixes in ([[*one, 3] for one in given], [[-2 - x for x in one] for one in given])
    )
    for found, expected in zip(translator.score_ids(sources, given), scored, strict=True):
        np.testing.assert_allclose(found.token_log_probs, expected[0].token_log_probs, atol=1e-4)
    assert_same(translator.translate_ids(sources, SearchOptions(1), given), forced)


def test_sums_of_tiny_probabilities_do_not_vanish() -> None:
    logits = torch.tensor([[[0.0, -300.0, -500.0]], [[0.0, -400.0, -200.0]]])
    right = logits.double().log_softmax(-1).logsumexp(0)
    torch.testing.assert_close(TotalProbability()(*logits).double(), right)


# ---- graphs ----


def assert_all_matched(reports: Mapping[str, Sequence[Report]]) -> None:
    for target, of_target in reports.items():
        for one in of_target:
            assert one.expected in (None, one.matches), (target, one)


def test_passes_match_in_every_member(bundle: Bundle) -> None:
    assert_all_matched(bundle.compiled.reports)
    counts = {(one.graph, one.name): one.matches for one in bundle.compiled.reports["onnx-int8"]}
    # Layers: two and one in either stack. A layer has four 8-bit matmuls in the encoder and six in
    # the step, and a member two more: the cross-attentions' or the vocabulary's, and its table.
    assert counts["encoder", "int8"] == 4 * 3 + 2 * 2
    assert counts["step", "int8"] == 6 * 3 + 2 * 2
    assert counts["step", "top-k-first"] == 1  # in the search that they share
    # Embed, the vocabulary's matmul and the mean attention of each member; the candidates, two of
    # the search and two of the ancestry.
    assert counts["step", "fuse-ops"] == 8 * 3 + 3 * 2 + 5


@pytest.mark.slow
def test_graphs_of_engines(static: Bundle, trio: list[Checkpoint]) -> None:
    target = "tensorrt-rtx-fp16"
    options = BuildOptions((target,), beam_size=3, attention=True)
    compiler = Compiler(ensemble(trio), Limits(48, 98), options)
    step = compiler.graphs(target)["step"]
    assert_all_matched({**static.compiled.reports, **compiler.reports})
    types = {str(value.name): value.dtype for value in step.graph.inputs}
    assert types["self_key_m2_0"] == types["cross_value_m0_1"] == ir.DataType.FLOAT16
    assert types["ssru_state_m0_0"] == ir.DataType.FLOAT
    operators = Counter(node.op_type for node in step.graph)
    assert operators["TensorScatter"] == 2 * 3  # keys and values of the layers with caches
    assert operators["TopK"] == 4


def test_the_contract_of_members_with_and_without_caches(trio: list[Checkpoint]) -> None:
    configs = [one.model for one in trio]
    contract = ensemble_contract(configs, layout=GraphLayout(3, 12))
    assert [spec.name for spec in contract.state if "_m0_" in spec.name] == [
        "ssru_state_m0_0", "ssru_state_m0_1",
    ]  # fmt: skip
    assert contract.slots == 12
    assert len(contract.caches) == 2 * 3
    dynamic = ensemble_contract(configs, attention=True)
    assert [spec.name for spec in dynamic.results] == ["parents", "attention", "full"]
    assert contract_fields.from_json(Fields(contract_fields.to_json(dynamic), Path())) == dynamic


@pytest.mark.nightly
def test_members_that_differ_in_the_decoder_alone(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """Keys and values of both are the same tensors, but outputs of the encoder's graph each."""
    # Passes match less often, because everything up to the first different weights is merged.
    one = member(checkpoint, 3, tmp_path / "one")
    other = one.load_model()
    with torch.no_grad():
        other.decoder_layers[-1].feed_forward.inner.weight.mul_(0.5)
    saved = open_checkpoint(save_model(other, tmp_path / "other", checkpoint.tokenizer))
    members = [one, saved]
    assert share_tables(ensemble(members))
    options = BuildOptions(("onnx-fp32", "onnx-int8"))
    compiled = compile_bundle(one, tmp_path / "bundle", options, others=[saved])
    assert {one.expected for one in compiled.reports["onnx-fp32"]} == {None}
    sources, search = random_sources(12, seed=6, longest=12), SearchOptions(4, num_hypotheses=4)
    assert_same(
        Translator(tmp_path / "bundle", "onnx-fp32", threads=1).translate_ids(sources, search),
        beam_search(ensemble(members), sources, search),
    )


# ---- verify and info ----


def test_verify_compares_with_the_pytorch_ensemble(bundle: Bundle, pair: list[Checkpoint]) -> None:
    first, *others = pair
    found = verify(bundle.path, first, LINES, REFERENCE, ["onnx-fp32"], threads=1, others=others)
    assert found["onnx-fp32"].passed
    assert found["onnx-fp32"].identical_percent == 100
    recorded = read_manifest(bundle.path).target("onnx-fp32").parity
    assert recorded is not None
    assert recorded["sentences"] == len(LINES)


def test_verify_needs_the_members_in_order(bundle: Bundle, pair: list[Checkpoint]) -> None:
    with pytest.raises(BundleError, match=r"2 models.*checkpoints"):
        verify(bundle.path, pair[0], LINES, REFERENCE)
    with pytest.raises(BundleError, match="members"):
        verify(bundle.path, pair[1], LINES, REFERENCE, others=[pair[0]])


def test_layers_of_every_member_are_compared(bundle: Bundle, pair: list[Checkpoint]) -> None:
    first, *others = pair
    reports = compare_layers(
        bundle.path, first, LINES, ["onnx-fp32", "onnx-int8"], threads=1, others=others
    )
    names = {
        f"m{index}.{name}"
        for index, one in enumerate(pair)
        for name in (*stream(one.model, "encoder"), *stream(one.model, "decoder"), "logits")
    }
    for report in reports:
        assert report.first is None, report
        compared = {drift.tensor for drift in report.drifts if drift.absolute is not None}
        assert compared >= names
        assert {"cross_key_m0_1", "cross_value_m1_0"} <= compared


@pytest.mark.slow
def test_info_and_the_manifest_list_the_members(static: Bundle, trio: list[Checkpoint]) -> None:
    manifest = read_manifest(static.path)
    assert [one.weights_sha256 for one in manifest.members] == [x.weights_sha256 for x in trio]
    assert [one.recurrent for one in manifest.members] == [True, False, False]
    assert manifest.model == manifest.members[0].model
    table = " ".join(CliRunner().invoke(main, ["info", str(static.path)]).output.split())
    total = sum(one.model.parameters for one in manifest.members)
    assert "exported from an ensemble of 3 models" in table
    assert f"ensemble: parameters {total:,} vocabulary" in table
    assert f"member 1: exported from weights of SHA-256 {trio[0].weights_sha256}" in table
    assert "layers 1 encoder, 2 decoder, recurrent" in table


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "'members' must be a list of objects, not {}"),
        ([3, 4], r"'members\[0\]'.*3"),
        ([{}], r"'members' must be a list of at least two members, not \[{}\]"),
        ([{}, {}], r"'members\[0\].model' is missing"),
    ],
)
def test_damaged_members(members: Any, message: str, compiled_bundle: Path, tmp_path: Path) -> None:
    values = json.loads((compiled_bundle / "manifest.json").read_bytes())
    (tmp_path / "manifest.json").write_text(json.dumps(values | {"members": members}))
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path)


# ---- refusals ----


def export(out: Path, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, arguments), "--output", str(out)])


def test_the_command_line(pair: list[Checkpoint], tmp_path: Path) -> None:
    paths = [one.path for one in pair]
    alone = export(tmp_path / "bundle", paths[0], "--ensemble")
    assert alone.exit_code == 2
    assert str(paths[0]) in alone.stderr
    several = export(tmp_path / "bundle", *paths)
    assert several.exit_code == 2
    assert "--ensemble" in several.stderr
    inside = export(paths[1] / "bundle", *paths, "--ensemble")
    assert inside.exit_code == 1
    assert str(paths[1]) in inside.stderr
    assert not (tmp_path / "bundle").exists()


def test_other_vocabularies_are_refused(checkpoint: Checkpoint, tmp_path: Path) -> None:
    # The same pieces, in a file that is one field longer.
    (tmp_path / "other.spm").write_bytes(checkpoint.tokenizer.read_bytes() + b"\x0a\x00")
    path = save_model(checkpoint.load_model(), tmp_path / "checkpoint", tmp_path / "other.spm")
    other = open_checkpoint(path)
    message = (
        f"{checkpoint.path} and {other.path} have different vocabularies, so their probabilities "
        f"cannot be averaged: {checkpoint.tokenizer} and {other.tokenizer}, of the source, have "
        "different contents."
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        compile_bundle(checkpoint, tmp_path / "bundle", BuildOptions(), others=[other])
    assert not (tmp_path / "bundle").exists()


def test_other_sizes_and_prompts_are_named(checkpoint: Checkpoint) -> None:
    size = checkpoint.model.vocabulary_size
    wider = dataclasses.replace(
        checkpoint, model=dataclasses.replace(checkpoint.model, vocabulary_size=size + 1)
    )
    with pytest.raises(CheckpointError, match=f"vocabulary_size is {size} and {size + 1}"):
        check_members([checkpoint, wider])
    prompt = dataclasses.replace(checkpoint.prompt, source=(5,))
    with pytest.raises(CheckpointError, match="the prompts are"):
        check_members([checkpoint, dataclasses.replace(checkpoint, prompt=prompt)])


def test_members_agree_on_the_end_symbol_of_the_source(
    checkpoint: Checkpoint, tmp_path: Path
) -> None:
    model = Transformer(dataclasses.replace(checkpoint.model, source_end=False))
    path = save_imported_model(model, tmp_path / "blind", checkpoint.tokenizer)
    message = f"decoder of {checkpoint.path} attends to the source's end symbol and that of {path}"
    for members in ([0, 1], [1, 0]):
        both = [checkpoint, open_checkpoint(path)]
        with pytest.raises(CheckpointError, match=re.escape(message)):
            check_members([both[index] for index in members])


def test_the_same_model_twice_is_refused(checkpoint: Checkpoint, pair: list[Checkpoint]) -> None:
    with pytest.raises(CheckpointError, match="same model"):
        check_members([*pair, checkpoint])


def test_shortlists_are_refused(pair: list[Checkpoint], tmp_path: Path) -> None:
    for options in (
        BuildOptions(("onnx-int8-shortlist",)), BuildOptions(shortlist=tmp_path / "table"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match="shortlist"):
            compile_bundle(pair[0], tmp_path / "bundle", options, others=pair[1:])
