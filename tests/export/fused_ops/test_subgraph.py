"""Subgraphs that become bodies of fused operators, those of the beam search among them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import NodeProto
from onnx_ir.passes import common
from support.graphs import Array, Axes, build, feeds, node, operators, run

from translate_trt.export.compile import trace_graphs
from translate_trt.export.contract import GraphLayout, ensemble_contract
from translate_trt.export.fused_ops.declarations import DOMAIN
from translate_trt.export.fused_ops.fuse import FuseOps
from translate_trt.export.fused_ops.matching import FusedNode, add_functions
from translate_trt.export.fused_ops.subgraph import Subgraph
from translate_trt.export.passes.pipeline import run_passes
from translate_trt.export.search_step import State
from translate_trt.export.targets import DYNAMIC_OPSET, STATIC_OPSET, TARGETS
from translate_trt.runtime.bundle.contract import NEXT
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow


def graph(nodes: Sequence[NodeProto], constants: dict[str, Array] | None = None) -> ir.Model:
    inputs: dict[str, Axes] = {"x": ["N", "K"], "y": ["N", "K"], "other": ["N", "P"]}
    outputs: dict[str, Axes] = {"z": ["N", "K"], "w": ["N", "K"]}
    return build(nodes, inputs, outputs, constants, DYNAMIC_OPSET)


def fuse(model: ir.Model, *names: str, **inputs: str) -> FusedNode | str:
    """Fuse the subgraph between values, given by their names."""
    values = {str(value.name): value for value in model.graph.inputs}
    values |= {str(x.name): x for one in model.graph for x in one.outputs}
    parameters = {name: values[value] for name, value in inputs.items()}
    return Subgraph("Part", parameters, [values[name] for name in names]).fuse()


def assert_same_bits_within(model: ir.Model, call: FusedNode | str) -> ir.Function:
    """The fused operator computes what it replaces; returns its function."""
    assert isinstance(call, FusedNode)
    inputs = feeds(model)
    right = run(model, inputs)
    call.insert(model)
    common.RemoveUnusedNodesPass()(model)
    add_functions(model)
    for name, found in run(model, inputs).items():
        np.testing.assert_array_equal(found, right[name], err_msg=name)
    assert "Part" in operators(model)
    (function,) = model.functions.values()
    onnx.checker.check_function(ir.to_proto(function))
    return function


def test_a_subgraph_becomes_a_function() -> None:
    nodes = [
        node("Relu", "x", "a"), node("Add", "a one", "b"), node("Mul", "b y", "z"),
        node("Neg", "b", "w"),
    ]  # fmt: skip
    model = graph(nodes, {"one": np.array(1, np.float32)})
    function = assert_same_bits_within(model, fuse(model, "z", "b", first="x", second="y"))
    assert [x.name for x in function.inputs] == ["first", "second"]
    assert [x.name for x in function.outputs] == ["z", "b"]
    assert [n.op_type for n in function] == ["Relu", "Constant", "Add", "Mul"]
    assert operators(model) == {"Part": 1, "Neg": 1}
    assert model.opset_imports[DOMAIN] == 1


def test_what_others_read_stays_and_is_computed_inside_as_well() -> None:
    nodes = [node("Relu", "x", "a"), node("Mul", "a y", "z"), node("Neg", "a", "w")]
    model = graph(nodes)
    function = assert_same_bits_within(model, fuse(model, "z", x="x", y="y"))
    assert [n.op_type for n in function] == ["Relu", "Mul"]
    assert operators(model) == {"Part": 1, "Relu": 1, "Neg": 1}


def test_a_subgraph_may_begin_within_the_graph() -> None:
    nodes = [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Mul", "b y", "z"),
             node("Neg", "y", "w")]  # fmt: skip
    model = graph(nodes)
    function = assert_same_bits_within(model, fuse(model, "z", begin="a", y="y"))
    assert [n.op_type for n in function] == ["Exp", "Mul"]


def test_names_inside_are_not_those_of_parameters() -> None:
    model = graph([node("Relu", "x", "y_"), node("Mul", "y_ y", "z"), node("Neg", "y", "w")])
    function = assert_same_bits_within(model, fuse(model, "z", x="x", y_="y"))
    names = [x.name for x in (*function.inputs, *(x for n in function for x in n.outputs))]
    assert len(set(names)) == len(names) == 4


def test_sizes_are_those_of_a_parameter_with_the_same_letter() -> None:
    nodes = [
        node("Shape", "other", "rows", start=0, end=1), node("Cast", "rows", "count", to=1),
        node("Mul", "x count", "z"), node("Neg", "y", "w"),
    ]  # fmt: skip
    model = graph(nodes)
    function = assert_same_bits_within(model, fuse(model, "z", x="x"))
    (shape,) = [n for n in function if n.op_type == "Shape"]
    assert list(shape.inputs) == [function.inputs[0]]


@pytest.mark.parametrize(("start", "end"), [(1, 2), (0, 2)])
def test_other_sizes_are_refused(start: int, end: int) -> None:
    nodes = [
        node("Shape", "other", "sizes", start=start, end=end),
        node("Cast", "sizes", "counts", to=1), node("ReduceMax", "counts", "count", keepdims=0),
        node("Mul", "x count", "z"), node("Neg", "y", "w"),
    ]  # fmt: skip
    assert fuse(graph(nodes), "z", x="x") == "the subgraph also reads sizes of other"


def test_a_subgraph_that_reads_more_is_refused() -> None:
    model = graph([node("Mul", "x y", "z"), node("Neg", "y", "w")])
    assert fuse(model, "z", x="x") == "the subgraph also reads y"
    large = {"table": np.zeros((13, 5), np.float32), "sum": np.array([1])}
    nodes = [node("ReduceMax", "table", "most", keepdims=0), node("Mul", "x most", "z"),
             node("Neg", "y", "w")]  # fmt: skip
    assert fuse(graph(nodes, large), "z", x="x") == "the subgraph also reads table"


def test_a_fused_operator_inside_is_refused() -> None:
    model = graph([node("Relu", "x", "a"), node("Mul", "a y", "z"), node("Neg", "y", "w")])
    call = fuse(model, "a", x="x")
    assert isinstance(call, FusedNode)
    call.insert(model)
    assert fuse(model, "z", x="x", y="y") == "the subgraph contains a Part"


def test_functions_have_the_same_order_in_every_process() -> None:
    names = ["Linear", "VocabularyCandidates", "AddNorm", "Linear8", "LinearAddNorm"]
    model = build([node("Relu", "x", "y")], {"x": ["N"]}, {"y": ["N"]}, opset=DYNAMIC_OPSET)
    for name in names:
        model.graph.append(ir.Node(DOMAIN, name, []))
    add_functions(model)
    assert [name for _, name, _ in model.functions if name in names] == sorted(names)


# ---- the search of a step ----


def trace_step(checkpoint: Checkpoint, layout: GraphLayout, opset: int) -> ir.Model:
    contract = ensemble_contract([checkpoint.model], layout=layout)
    return trace_graphs(checkpoint.load_model(), Limits(48, 98), contract, opset)["step"]


@pytest.fixture(scope="module")
def traced(checkpoint: Checkpoint) -> ir.Model:
    return trace_step(checkpoint, GraphLayout(), DYNAMIC_OPSET)


@pytest.fixture(scope="module")
def called(traced: ir.Model) -> ir.Model:
    model = traced.clone()
    run_passes(model, TARGETS["onnx-fp32"].passes)
    return model


def test_the_search_of_a_step_is_fused(called: ir.Model) -> None:
    found = {n.op_type: n for n in called.graph}
    for name in ("Embed", "ForcedColumns", "SelectBeams", "ExtendAncestry", "FollowAncestry"):
        assert (DOMAIN, name, "") in called.functions
        assert operators(called)[name] == 1
    selected = [x.name for x in found["SelectBeams"].outputs]
    assert selected == ["parents", *(NEXT + name for name in State._fields)]
    followed = [x.name for x in found["FollowAncestry"].outputs]
    assert followed == [NEXT + "ancestry", NEXT + "slots", "full"]
    # No node of the search is left.
    matmuls = {"MatMul", "Add", "Relu", "Unsqueeze", "Reshape"}
    assert {n.op_type for n in called.graph if not n.domain} <= matmuls


def test_its_parameters_are_inputs_of_the_graph_or_of_candidates(called: ir.Model) -> None:
    """Their names and order are what a kernel is compiled for."""
    found = {n.op_type: n for n in called.graph}
    names = {}
    for (_, name, _), function in called.functions.items():
        if name in found:  # one that another calls is not
            pairs = zip(function.inputs, found[name].inputs, strict=True)
            names[name] = {str(one.name): str(value and value.name) for one, value in pairs}
    select = names["SelectBeams"]
    assert list(select) == [
        "log_probabilities", "choices", "looked_up", "end_token", "forced_tokens",
        "min_lengths", "max_lengths", "length_penalty_alpha", "length_penalty_beta",
        "num_hypotheses", "early_stopping", "log_probs", "positions", "done", "finished_scores",
        "finished_lengths", "finished_parents", "finished_truncated", "marked_tokens",
        "marked_factors", "sampling_noise", "sampling_temperature", "sampling_top_p",
        "tail_tokens", "tail_noise", "constraint_tokens", "constraint_progress", "other_progress",
    ]  # fmt: skip
    values, indices, at_columns = (x.name for x in found["VocabularyCandidates"].outputs)
    assert [select.pop(x) for x in ("log_probabilities", "choices", "looked_up")] == [
        values, indices, at_columns
    ]  # fmt: skip
    assert select.pop("end_token") in called.graph.initializers
    assert all(name == value for name, value in select.items())
    choices = names["ForcedColumns"].pop("choices")
    assert choices in called.graph.initializers
    assert all(name == value for name, value in names["ForcedColumns"].items())
    assert names["ExtendAncestry"] == {"ancestry": "ancestry", "slots": "slots"}
    follow = {"ancestry": found["ExtendAncestry"].outputs[0].name, "parents": "parents"}
    assert names["FollowAncestry"] == follow


def test_a_second_run_changes_nothing(called: ir.Model) -> None:
    before = [(n.op_type, [x and x.name for x in n.inputs]) for n in called.graph]
    assert FuseOps().run(called).matches == 0
    assert [(n.op_type, [x and x.name for x in n.inputs]) for n in called.graph] == before


def test_a_search_that_reads_something_else_is_left_alone(traced: ir.Model) -> None:
    model = traced.clone()
    *others, last = TARGETS["onnx-fp32"].passes
    run_passes(model, others)
    # `done` also depends on the source, which is no input of SelectBeams.
    done = next(x for x in model.graph.inputs if x.name == "done")
    bias = next(x for x in model.graph.inputs if x.name == "source_bias")
    flag = ir.node("ReduceMax", [bias], {"keepdims": 0})
    positive = ir.node("Cast", [flag.outputs[0]], {"to": int(ir.DataType.BOOL)})
    either = ir.node("Or", [done, positive.outputs[0]])
    done.replace_all_uses_with(either.outputs[0])
    either.replace_input_with(0, done)
    for one in (flag, positive, either):
        model.graph.append(one)
    model.graph.sort()
    outcome = last.run(model)
    assert any(reason.endswith("the subgraph also reads source_bias") for reason in outcome.refused)
    assert "SelectBeams" not in operators(model)
    assert operators(model)["FollowAncestry"] == 1


def test_static_caches_have_no_slots_to_follow(checkpoint: Checkpoint) -> None:
    layout = TARGETS["tensorrt-fp32"].layout(beam_size=3, max_target_length=98)
    model = trace_step(checkpoint, layout, STATIC_OPSET)
    run_passes(model, TARGETS["onnx-fp32"].passes)
    assert not {"ExtendAncestry", "FollowAncestry"} & operators(model).keys()
