"""Order of passes, their reports and expected matches, and exports without each of them."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
import pytest
from support.graphs import build, node
from support.models import EVERYTHING_ELSE, SHAPES, T5
from support.shortlists import random_table
from support.translations import assert_same, random_sources, share_of_same

from translate_trt.export import compile as compile_module
from translate_trt.export.build_options import BuildOptions
from translate_trt.export.compile import Compiler, compile_bundle, trace_graphs
from translate_trt.export.contract import ensemble_contract
from translate_trt.export.fused_ops.fuse import FuseOps
from translate_trt.export.fused_ops.gpu import MOST_BEAMS
from translate_trt.export.passes.base import Outcome, Pass
from translate_trt.export.passes.expectations import Expected, ModelShape
from translate_trt.export.passes.pipeline import Report, run_passes
from translate_trt.export.targets import PASSES, TARGETS
from translate_trt.runtime.bundle.attention_heads import LAST_LAYER, AttentionHeads
from translate_trt.runtime.bundle.contract import ShortlistForm
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import ModelConfig
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search
from translate_trt.train.shortlist.table import Shortlist

pytestmark = pytest.mark.slow


class Named(Pass):
    """Pass that fails, or reports three matches."""

    summary = "for tests"

    expected: Expected | None = None
    roots = ("Relu",)

    def __init__(self, name: str, error: Exception | None = None) -> None:
        self.name, self.error = name, error

    def run(self, model: ir.Model) -> Outcome:
        if self.error is not None:
            raise self.error
        return Outcome(3, ("y: why",))


def small() -> ir.Model:
    model = build([node("Relu", "x", "y")], {"x": ["N"]}, {"y": ["N"]})
    model.graph.name = "encoder"
    return model


def test_every_pass_that_can_be_switched_off_has_a_name_and_a_summary() -> None:
    for name, one in PASSES.items():
        assert one.name == name
        assert one.summary
        assert not one.required
    required = {one.name for target in TARGETS.values() for one in target.passes if one.required}
    assert required == {"int8", "fp16", "bf16", "fp16-kv-cache", "separate-readers"}


def test_unknown_names_are_refused() -> None:
    assert BuildOptions(disabled_passes=tuple(PASSES)).disabled_passes == tuple(PASSES)
    for name in ("fuse", "int8", "fp16", ""):
        with pytest.raises(OptionError, match=f"no pass .*{name!r}; .*fuse-multi-head"):
            BuildOptions(disabled_passes=("simplify", name))


def test_reports_and_what_is_called_after_each_pass() -> None:
    seen: list[str] = []
    model = small()
    passes = [Named("first"), Named("second"), Named("third")]
    reports, _ = run_passes(model, passes, ["second"], lambda name, _: seen.append(name))
    assert seen == ["first", "third"]
    assert reports == [
        Report("encoder", "first", "for tests", 3, None, ("y: why",), 1, 1),
        Report("encoder", "second", "for tests", None, None, (), 1, 1),
        Report("encoder", "third", "for tests", 3, None, ("y: why",), 1, 1),
    ]


def test_an_exception_of_a_library_is_reported_with_the_pass() -> None:
    with pytest.raises(TranslateTrtError) as raised:
        run_passes(small(), [Named("calm"), Named("wild", KeyError("shape"))])
    assert "--disable-pass wild" in str(raised.value)
    assert isinstance(raised.value.__cause__, KeyError)
    own = TranslateTrtError("too large")
    with pytest.raises(TranslateTrtError, match=r"^too large$"):
        run_passes(small(), [Named("wild", own)])
    with pytest.raises(KeyboardInterrupt):
        run_passes(small(), [Named("wild", KeyboardInterrupt())])  # type: ignore[arg-type]


# ---- expected matches ----

SHAPE = ModelShape(
    encoder_layers=2, decoder_layers=2, cross_layers=2, self_attentions=2, ssrus=0,
    post_norm=True, rms_norm=False, embedding_norm=False, gated=False, scaled_queries=True,
    scaled_embeddings=True, equal_heads=True, attention=False, shortlist=False,
    static_caches=False, marks=True,
)  # fmt: skip


def expecting(matches: int) -> Named:
    """Build a pass that has three matches and expects this number of them in an encoder."""
    one = Named("watched")
    one.expected = Expected(encoder=lambda _: matches, step=lambda _: 0)
    return one


def test_every_pass_declares_its_matches_but_for_those_without_a_number() -> None:
    passes = [one for target in TARGETS.values() for one in target.passes]
    without = {one.name for one in passes if one.expected is None}
    assert without == {"simplify", "separate-readers"}


def test_too_few_matches_are_an_error_that_says_what_came_closest() -> None:
    seen: list[str] = []
    with pytest.raises(TranslateTrtError) as raised:
        run_passes(small(), [expecting(4)], (), lambda name, _: seen.append(name), shapes=[SHAPE])
    for part in ("--disable-pass watched", "3 matches", "instead of 4", "Relu y is left"):
        assert part in str(raised.value)
    assert seen == ["watched"]  # the graph is dumped, too
    needed = expecting(4)
    needed.required = True
    with pytest.raises(TranslateTrtError, match="another precision"):
        run_passes(small(), [needed], shapes=[SHAPE])


def test_enough_matches_are_reported_with_their_number() -> None:
    for expected in (2, 3):
        (report,), _ = run_passes(small(), [expecting(expected)], shapes=[SHAPE])
        assert (report.matches, report.expected) == (3, expected)


def test_refusals_that_the_model_causes_count_as_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Named, "run", lambda *_: Outcome(3, ("y: why",), unavoidable=1))
    run_passes(small(), [expecting(4)], shapes=[SHAPE])
    with pytest.raises(TranslateTrtError, match="has 3 matches"):
        run_passes(small(), [expecting(5)], shapes=[SHAPE])


def test_matches_are_not_enforced_where_a_pass_is_left_out() -> None:
    passes = [Named("other"), expecting(4)]
    reports, _ = run_passes(small(), passes, ["other"], shapes=[SHAPE])
    assert [report.expected for report in reports] == [None, 4]
    run_passes(small(), passes)  # nor without a model's shape


@pytest.mark.parametrize(
    ("target", "operator", "message", "miss"),
    [
        ("onnx-fp32", "Softmax", r"fuse-multi-head.*3 matches",
         r"Reshape .*axis mismatch.* \(nodes matched: 3\)"),
        ("tensorrt-fp32", "Softmax", r"fuse-attention.*3 matches",
         r"MatMul .*axis mismatch.* \(nodes matched: \d\)"),
        ("onnx-fp32", "LogSoftmax", r"top-k-first.*0 matches",
         "log_softmax: its axis is not known to be the last one"),
    ],
)  # fmt: skip
def test_a_graph_that_is_traced_in_another_way_fails_the_export(
    target: str, operator: str, message: str, miss: str, checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def traced(*arguments: Any) -> dict[str, ir.Model]:
        graphs = trace_graphs(*arguments)
        broken = next(node for node in graphs["step"].graph if node.op_type == operator)
        broken.attributes["axis"] = ir.AttrInt64("axis", 1)
        return graphs

    monkeypatch.setattr(compile_module, "trace_graphs", traced)
    model, options = checkpoint.load_model(), BuildOptions(("onnx-fp32",), beam_size=3)
    compiler = Compiler(model, Limits(48, 98), options)
    with pytest.raises(TranslateTrtError, match=message) as raised:
        compiler.graphs(target)
    assert re.search(miss, str(raised.value))


# ---- whole graphs ----


class Compiled(NamedTuple):
    """Reports and operators of a graph after all passes, and those that are not fused."""

    reports: list[Report]
    operators: Counter[str]
    standard: set[str]


def compiled(
    config: ModelConfig,
    target: str,
    attention: bool = False,
    heads: AttentionHeads = LAST_LAYER,
    shortlist: Shortlist | None = None,
    beams: int = 3,
) -> dict[str, Compiled]:
    form = None if shortlist is None else ShortlistForm(19, 4)
    layout = TARGETS[target].layout(beam_size=beams, max_target_length=98, shortlist=form)
    layout = dataclasses.replace(layout, cache_type="float32")  # as it is traced
    graphs = {}
    contract = ensemble_contract([config], attention, layout)
    traced = trace_graphs(
        Transformer(config).eval(), Limits(48, 98), contract, TARGETS[target].opset, shortlist,
        heads=heads,
    )  # fmt: skip
    for role, model in traced.items():
        before = len(model.graph)
        shape = ModelShape.of(config, contract)
        reports, _ = run_passes(model, TARGETS[target].passes, shapes=[shape])
        assert all(r.expected in (None, r.matches) for r in reports) or beams > 3, reports
        counts = [before]
        for report in reports:
            assert report.nodes_before == counts[-1], report
            counts.append(report.nodes_after)
        assert counts[-1] == len(model.graph)
        assert counts[-1] < before
        standard = {node.op_type for node in model.graph if not node.domain}
        graphs[role] = Compiled(reports, Counter(node.op_type for node in model.graph), standard)
    return graphs


@pytest.mark.parametrize(
    ("target", "norm"), [("onnx-fp32", "post"), ("onnx-fp32", "pre"), ("tensorrt-fp32", "post")]
)
def test_each_pass_finds_all_there_is_in_a_model(
    target: str, norm: str, checkpoint: Checkpoint
) -> None:
    config = dataclasses.replace(checkpoint.model, **SHAPES[norm])
    graphs = compiled(config, target)  # which compares matches with the expected ones
    attention = "fuse-multi-head" if target == "onnx-fp32" else "fuse-attention"
    for role, count in (("encoder", config.encoder_layers), ("step", 2 * config.decoder_layers)):
        matches = {report.name: report.matches for report in graphs[role].reports}
        assert matches[attention] == count
    reasons = [x for found in graphs.values() for one in found.reports for x in one.refused]
    assert not reasons


# Embed, ForcedColumns, SelectBeams, ExtendAncestry and FollowAncestry.
SEARCH = 5
# Fused ops per encoder layer, in the encoder per decoder layer and besides, per decoder layer, in
# the step besides. Candidates count twice, since they are TopLogits first.
CALLS = (5, 2, 3, 2 + 6, 2 + SEARCH)
#: What may be left in a graph for a CPU.
VIEWS = {"Unsqueeze", "Squeeze", "Shape"}


# Attention weights are an output of the last cross-attention, which precedes all that the shapes
# differ in, except for the norms.
@pytest.mark.parametrize(
    ("shape", "attention"),
    [
        ("post", False), ("pre", False), ("ssru, pre-norm, tied layers", False), ("post", True),
        *(
            pytest.param(shape, attention, marks=pytest.mark.nightly)
            for shape, attention in [
                ("marian", False), ("marian with relu", False), ("gelu, untied", False),
                ("ssru", False), ("pre-norm, tied layers", False), ("pre", True),
            ]
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
def test_kernels_are_called_wherever_they_can(
    target: str, shape: str, attention: bool, checkpoint: Checkpoint
) -> None:
    config = dataclasses.replace(checkpoint.model, **SHAPES[shape])
    graphs = compiled(config, target, attention)
    layer, handed_on, encoder, decoder_layer, step = CALLS
    if config.is_recurrent:
        # Five matmuls, one attention, the unit, the order of its state and a sum; no ancestry.
        decoder_layer, step = 9, step - 2
    # The norm of the embedding follows no matmul.
    first_norm = int(config.norm == "pre")
    calls = {
        role: sum(report.matches for report in one.reports if report.name == FuseOps.name)
        for role, one in graphs.items()
    }
    assert calls == {
        "encoder": layer * config.encoder_layers
        + handed_on * config.distinct_decoder_layers
        + encoder
        + first_norm,
        # The attention whose weights are an output is fused twice.
        "step": decoder_layer * config.decoder_layers + step + first_norm + attention,
    }
    end = "AddAndNorm" if config.norm == "pre" else "AddNorm"
    for role, sublayers in (
        ("encoder", 2 * config.encoder_layers), ("step", 3 * config.decoder_layers),
    ):  # fmt: skip
        operators = graphs[role].operators
        assert sum(n for name, n in operators.items() if name.endswith(end)) == sublayers
        assert operators["Norm"] == first_norm
        assert graphs[role].standard <= VIEWS
        assert "TopLogits" not in operators
    candidates = "Candidates8" if target == "onnx-int8" else "VocabularyCandidates"
    bias = "Biased" if "output_bias" in SHAPES[shape] else ""
    assert graphs["step"].operators[f"{bias}{candidates}"] == 1


@pytest.mark.parametrize(
    ("changes", "target", "heads"),
    [
        (SHAPES["ssru"] | {"decoder_layers": 1}, "onnx-fp32-shortlist", LAST_LAYER),
        (SHAPES["post"], "onnx-int8-shortlist", AttentionHeads(0, (1, 3))),
        (EVERYTHING_ELSE, "onnx-fp32", AttentionHeads(-1, (2,))),
        (T5, "onnx-fp32", LAST_LAYER),
        (T5, "onnx-int8-shortlist", LAST_LAYER),
    ],
)
def test_graphs_for_a_cpu_consist_of_fused_operators(
    changes: dict[str, Any], target: str, heads: AttentionHeads, checkpoint: Checkpoint
) -> None:
    config = dataclasses.replace(checkpoint.model, **changes)
    table = random_table(checkpoint) if TARGETS[target].shortlist else None
    graphs = compiled(config, target, True, heads, table)
    for role, one in graphs.items():
        assert one.standard <= VIEWS, role
    mean = "BeamAttentionMean16" if "int8" in target else "BeamAttentionMean"
    assert graphs["step"].operators[mean] == 1


ACTIVATIONS = ("GpuBiasGelu", "GpuBiasSwish", "GpuGatedGelu")


@pytest.mark.parametrize(
    ("changes", "attention"),
    [
        pytest.param(
            SHAPES[shape], attention, id=f"{shape}{', attention' * attention}",
            marks=[] if shape in ("post", "marian", "ssru, pre-norm, tied layers")
            else pytest.mark.nightly,
        )
        for shape in SHAPES
        for attention in ((False, True) if shape == "post" else (False,))
    ] + [
        pytest.param(EVERYTHING_ELSE, True, id="everything else"),
        pytest.param(T5, True, id="T5", marks=pytest.mark.nightly),
    ],
)  # fmt: skip
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_graphs_for_a_gpu_consist_of_fused_operators_and_matmuls(
    precision: str, changes: dict[str, Any], attention: bool, checkpoint: Checkpoint
) -> None:
    config = dataclasses.replace(checkpoint.model, **changes)
    graphs = compiled(config, f"torch-{precision}", attention)
    step, encoder = graphs["step"], graphs["encoder"]
    assert step.standard | encoder.standard <= {"MatMul"}
    layers = config.decoder_layers
    # Of a layer: six matmuls, two attentions and three norms; with an SSRU, which the first norm
    # includes, five matmuls, one attention, and the order of its state. Then the embedding, the
    # logits, and the search.
    nodes = sum(step.operators.values())
    activations = sum(step.operators[name] for name in ACTIVATIONS)
    assert activations == (layers if config.activation != "relu" else 0)
    norms = 3 * layers + (config.norm == "pre") + config.norm_embedding
    assert sum(n for name, n in step.operators.items() if "Norm" in name) == norms
    others = 4 + (not config.is_recurrent)
    matmuls = 5 if config.is_recurrent else 6
    assert nodes == (matmuls + 2) * layers + norms + activations + others
    # Of a layer four matmuls, attention and two norms; a matmul for all decoder layers, and its
    # heads; the embedding and the source's bias.
    more = (config.norm == "pre") + config.norm_embedding
    more += sum(encoder.operators[name] for name in ACTIVATIONS)
    assert sum(encoder.operators.values()) == 7 * config.encoder_layers + 4 + more


def test_more_beams_than_kernels_of_a_gpu_have(checkpoint: Checkpoint) -> None:
    step = compiled(checkpoint.model, "torch-fp32", beams=MOST_BEAMS + 1)["step"]
    operators = step.operators
    assert operators["Attention"] == 2 * checkpoint.model.decoder_layers
    assert operators["GpuLinear"]
    assert "GpuSelectBeams" not in operators


OF_A_CPU = {one.name for one in TARGETS["onnx-fp32"].passes}


@pytest.mark.parametrize("name", sorted(OF_A_CPU))
def test_every_pass_can_be_left_out(name: str, checkpoint: Checkpoint, tmp_path: Path) -> None:
    targets = ("onnx-fp32", "onnx-fp16", "onnx-int8") if name == "simplify" else ("onnx-fp32",)
    options = BuildOptions(targets, attention=True, disabled_passes=(name,))
    reports = compile_bundle(checkpoint, tmp_path / "bundle", options).reports
    for target in targets:
        matches = {r.name: r.matches for r in reports[target]}
        ran = {r.name for r in reports[target] if r.matches is not None}
        assert name not in ran
        assert ran == {one.name for one in TARGETS[target].passes} - {name}
        assert matches.get(name) is None
    sources = random_sources(16)
    search = SearchOptions(num_hypotheses=4, return_attention=True)
    expected = beam_search(checkpoint.load_model(), sources, search)
    translator = Translator(tmp_path / "bundle", threads=1)
    assert_same(translator.translate_ids(sources, search), expected)
    for target in targets[1:]:
        found = Translator(tmp_path / "bundle", target, threads=1).translate_ids(sources, search)
        # Without instructions for bytes, ONNX Runtime's own int8 matmuls saturate.
        assert share_of_same(found, expected) >= (0.3 if target == "onnx-int8" else 0.6), target
