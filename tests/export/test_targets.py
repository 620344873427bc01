"""Targets whose graphs can run in ONNX Runtime on a CPU: FP16, and the static ones of engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest
from support.static_bundles import static_bundle
from support.translations import assert_same, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler, compile_bundle
from translate_trt.export.targets import TARGETS, Target
from translate_trt.export.trace import check
from translate_trt.runtime.bundle.contract import ShortlistForm, unscored
from translate_trt.runtime.bundle.manifest import SHORTLIST, read_manifest
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

SEARCH = SearchOptions(num_hypotheses=4)


def mostly_the_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    """Check that nine in ten best hypotheses are equal, with similar scores."""
    pairs = [(a[0], b[0]) for a, b in zip(found, expected, strict=True)]
    same = [(a, b) for a, b in pairs if a.tokens == b.tokens]
    assert len(same) >= 0.9 * len(pairs)
    # FP16 has an error of 5e-4 times a logit near 10 per token, and scores are means over tokens.
    assert max(abs(a.score - b.score) for a, b in same) < 0.02
    assert any(a.score != b.score for a, b in same)  # the precision differs


def test_fp16_translates_on_a_cpu(
    checkpoint: Checkpoint, compiled_bundle: Path, tmp_path: Path
) -> None:
    options = BuildOptions(("onnx-fp16",), attention=True)
    compiled = compile_bundle(checkpoint, tmp_path / "bundle", options)
    entry = compiled.manifest.target("onnx-fp16")
    assert {spec.dtype for spec in entry.contract.caches} == {"float16"}
    reports = {(r.graph, r.name): r for r in compiled.reports["onnx-fp16"]}
    for graph in ("encoder", "step"):
        assert reports[graph, "fp16"].refused == ()
    sources = random_sources(32, longest=12)
    expected = beam_search(checkpoint.load_model(), sources, SEARCH)
    translator = Translator(tmp_path / "bundle", threads=1)
    mostly_the_same(translator.translate_ids(sources, SEARCH), expected)
    sizes = [file.bytes for file in entry.files.values()]
    full = read_manifest(compiled_bundle).target("onnx-fp32").files.values()
    assert sum(sizes) < 0.8 * sum(file.bytes for file in full)  # much of a small graph is structure


# ---- static graphs ----


@pytest.fixture
def static_translator(
    checkpoint: Checkpoint, compiled_bundle: Path, tmp_path: Path
) -> Callable[..., Translator]:
    """Function that runs the graphs for TensorRT in ONNX Runtime."""

    def translator(target: str, disabled: tuple[str, ...] = ()) -> Translator:
        path = tmp_path / "bundle"
        static_bundle(checkpoint, compiled_bundle, path, target, "onnxruntime", disabled)
        return Translator(path, threads=1)

    return translator


@pytest.mark.parametrize(
    "disabled", [(), ("fuse-attention",), ("fuse-transposes",), ("simplify",)], ids=str
)
def test_static_graphs_are_equal_to_the_reference(
    disabled: tuple[str, ...], checkpoint: Checkpoint, static_translator: Callable[..., Translator]
) -> None:
    translator = static_translator("tensorrt-fp32", disabled)
    contract = translator.target.contract
    assert (contract.beams, contract.slots) == (4, 4 * 98)
    sources = random_sources(24)
    for options in (SEARCH, SearchOptions(max_length=4, length_penalty=1.5, num_hypotheses=4)):
        expected = beam_search(checkpoint.load_model(), sources, options)
        assert_same(translator.translate_ids(sources, options), expected)
    prefixes = [[5, 6][: index % 3] for index in range(len(sources))]
    forced = [[unscored(token) for token in prefix] for prefix in prefixes]
    expected = beam_search(checkpoint.load_model(), sources, SEARCH, forced)
    assert_same(translator.translate_ids(sources, SEARCH, prefixes), expected)
    with pytest.raises(OptionError, match="4 beams"):
        translator.translate_ids(sources, SearchOptions(beam_size=2))


def test_static_caches_are_full_at_the_longest_translation(
    checkpoint: Checkpoint, static_translator: Callable[..., Translator]
) -> None:
    translator = static_translator("tensorrt-fp32")
    sources = random_sources(3, longest=20)
    options = SearchOptions(min_length=98, max_length=98, num_hypotheses=4)
    expected = beam_search(checkpoint.load_model(), sources, options)
    found = translator.translate_ids(sources, options)
    assert {len(h.token_log_probs) for hypotheses in found for h in hypotheses} == {98}
    assert_same(found, expected)


def test_static_graphs_in_fp16(
    checkpoint: Checkpoint, static_translator: Callable[..., Translator]
) -> None:
    translator = static_translator("tensorrt-fp16")
    assert {spec.dtype for spec in translator.target.contract.caches} == {"float16"}
    sources = random_sources(32, longest=12)
    expected = beam_search(checkpoint.load_model(), sources, SEARCH)
    mostly_the_same(translator.translate_ids(sources, SEARCH), expected)


def test_static_graphs_in_bf16_are_well_formed(checkpoint: Checkpoint) -> None:
    # ONNX Runtime has no matmul in bfloat16 on a CPU.
    options = BuildOptions(attention=True)  # as the other static graphs, which are traced already
    compiler = Compiler(checkpoint.load_model(), options.limits(48, None), options)
    for model in compiler.graphs("tensorrt-bf16").values():
        check(model)
        caches = [v for v in (*model.graph.inputs, *model.graph.outputs)
                  if str(v.name).removeprefix("next_").startswith(("self_", "cross_"))]  # fmt: skip
        assert caches
        assert {v.dtype for v in caches} == {ir.DataType.BFLOAT16}
        matmuls = [n.outputs[0] for n in model.graph if n.op_type in ("MatMul", "Attention")]
        full = [value.name for value in matmuls if value.dtype != ir.DataType.BFLOAT16]
        assert full == (["logits"] if model.graph.name == "step" else [])


def test_forms() -> None:
    for name, target in TARGETS.items():
        layout = target.layout(beam_size=3, max_target_length=70)
        assert (target.package is not None) == name.startswith("tensorrt")
        assert target.static == name.startswith(("tensorrt", "torch", "cuda"))
        assert (layout.beams, layout.slots) == ((3, 210) if target.static else (None, None))
        if target.static:
            assert target.layout(beam_size=1, max_target_length=5).slots == 8
        assert target.opset == (24 if target.static else 21)
        kinds = {"fp16": "float16", "bf16": "bfloat16", "int8": "float16"}
        assert layout.cache_type == kinds.get(target.precision, "float32")
        assert name.removesuffix(SHORTLIST).rsplit("-", 1)[1] == target.precision
        assert name.endswith(SHORTLIST) == target.shortlist
        listed = target.layout(3, 70, ShortlistForm(20, 5)).shortlist
        assert listed == (ShortlistForm(20, 5) if target.shortlist else None)
    assert isinstance(TARGETS["tensorrt-rtx-bf16"], Target)
