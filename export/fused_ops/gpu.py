"""The pass that fuses operators for GPUs, and its rules.

It runs on graphs with static caches, after their precision has been decided: most rules look
through the casts between float32 and the type of matmuls. docs/gpu.md lists the kernels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from translate_trt.export.fused_ops.declarations import OPERATORS, RELATIVE_SOURCE_BIAS
from translate_trt.export.fused_ops.fuse import FuseOps, Rules, norms_after_embedding
from translate_trt.export.fused_ops.match_embedding import (
    lookup,
    sentence_position,
    source_bias,
    source_positions,
)
from translate_trt.export.fused_ops.match_matmul import swish, top_logits
from translate_trt.export.fused_ops.match_recurrence import follow_parents, recurrent_unit
from translate_trt.export.fused_ops.match_search import graph_values, select
from translate_trt.export.fused_ops.matching import (
    NORMS,
    Constant,
    FusedNode,
    Unavoidable,
    norm_of_rows,
    numbers,
    other,
    producer,
    reader,
    same_axes,
)
from translate_trt.export.fused_ops.subgraph import Subgraph
from translate_trt.export.passes.base import axes, constant, constant_of, operand
from translate_trt.export.passes.expectations import Expected
from translate_trt.export.roles import RESIDUAL, has_role
from translate_trt.runtime.bundle.contract import NEXT

Found: TypeAlias = FusedNode | str | None

#: Largest beam size of the kernels: a tile of 16 queries is the smallest that GPUs multiply.
MOST_BEAMS = 16
_TOO_MANY_BEAMS = Unavoidable(f"kernels have at most {MOST_BEAMS} beams")


def gpu_norm(node: ir.Node) -> Found:
    """Match a norm of a residual sum, with the bias of the matmul before it, if any."""
    attributes = norm_of_rows(node)
    if attributes is None:
        return None
    constants = [operand(node, index) for index in range(1, len(node.inputs))]
    x, residual, bias = operand(node, 0), None, None
    addition = producer(x, "Add")
    if addition is not None and same_axes(*(pair := (operand(addition, 0), operand(addition, 1)))):
        own = [x for x in pair if len(x.uses()) == 1 and not has_role(x, RESIDUAL)]
        x = next((x for x in own if _bias_of_matmul(x) is not None), pair[0])
        residual, bias = other(addition, x), _bias_of_matmul(x) if x in own else None
        for value in pair:
            unit = producer(value, "GpuRecurrentUnit")
            if unit is not None and reader(value, "Add") is addition and len(constants) == 2:
                given = operand(unit, 0), operand(unit, 1), other(addition, value)
                return _with_cast(
                    "GpuRecurrentNorm",
                    (*given, *constants),
                    [unit.outputs[0], addition.outputs[0], node.outputs[0]],
                    attributes,
                )
    inputs = [] if residual is None else [residual]
    if bias is not None:
        x = other(_of(x), bias)
        inputs.insert(0, bias)
    total = [] if addition is None or residual is None else [addition.outputs[0]]
    prefix = {0: "", 1: "Add", 2: "BiasAdd"}[len(inputs)]
    return _with_cast(
        f"Gpu{prefix}{NORMS[node.op_type]}",
        (_uncast(x), *inputs, *constants),
        [*total, node.outputs[0]],
        attributes,
    )


def _of(value: ir.Value) -> ir.Node:
    node = value.producer()
    assert node is not None
    return node


def _uncast(value: ir.Value) -> ir.Value:
    """Find the value that a cast to float32 makes of one, or return the value itself."""
    cast = producer(value, "Cast")
    return operand(cast, 0) if cast is not None and value.dtype == ir.DataType.FLOAT else value


def _with_cast(
    name: str,
    inputs: Sequence[ir.Value],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, float],
) -> FusedNode:
    """Make a node whose last output is also cast to a type, if a Cast reads it."""
    casts = [use.node for use in outputs[-1].uses() if use.node.op_type == "Cast"]
    if len(casts) != 1:
        return FusedNode(name, inputs, outputs, attributes)
    kind = casts[0].attributes["to"].as_int()
    outputs = [*outputs, casts[0].outputs[0]]
    return FusedNode(f"{name}Cast", inputs, outputs, {**attributes, "type": kind})


def gpu_bias_activation(node: ir.Node) -> Found:
    """Match the bias of a matmul and a GELU or swish, which are in float32 (mixed_precision.py)."""
    biased = operand(node, 0)
    bias, activated = _bias_of_matmul(biased), node.outputs[0]
    if node.op_type == "Sigmoid":
        found = swish(biased)
        name = "GpuBiasSwish"
        if found is None:
            return None
        activated = found
    elif node.attributes.get_string("approximate", "none") == "none":
        name = "GpuBiasGelu"
    else:
        return None  # the approximation by tanh
    if bias is None:
        return None
    inputs = (_uncast(other(_of(biased), bias)), bias)
    return FusedNode(name, inputs, *_as_it_is_read(activated))


def _as_it_is_read(value: ir.Value) -> tuple[Sequence[ir.Value], dict[str, int]]:
    """Return a value in float32, or its cast if that alone is read, and the attribute `type`."""
    cast = reader(value, "Cast")
    if cast is None:
        return [value], {"type": int(ir.DataType.FLOAT)}
    return cast.outputs, {"type": cast.attributes["to"].as_int()}


def gpu_gated_gelu(node: ir.Node) -> Found:
    """Match GELU of a half of a matmul's columns times the other half, in float32."""
    by_tanh = node.attributes.get_string("approximate", "none") == "tanh"
    gated = reader(node.outputs[0], "Mul")
    if not by_tanh or gated is None:
        return None
    halves = [_uncast(x) for x in (operand(node, 0), other(gated, node.outputs[0]))]
    split = producer(halves[0], "Split")
    sizes = constant(split.inputs[1]) if split is not None else None
    if split is None or halves != list(split.outputs) or sizes is None or sizes[0] != sizes[1]:
        return None
    return FusedNode("GpuGatedGelu", (operand(split, 0),), *_as_it_is_read(gated.outputs[0]))


def _bias_of_matmul(biased: ir.Value) -> ir.Value | None:
    """Find the constant vector in the sum of it and the result of a matmul."""
    addition = producer(biased, "Add")
    for index in (0, 1) if addition is not None else ():
        assert addition is not None
        vector = constant(addition.inputs[index])
        matmul = producer(_uncast(operand(addition, 1 - index)), "MatMul")
        if vector is not None and vector.ndim == 1 and matmul is not None:
            return operand(addition, index)
    return None


def gpu_linear(node: ir.Node) -> Found:
    """Match a matmul with a constant matrix, its bias in the same type, and ReLU."""
    weights, (result,) = constant(node.inputs[1]), node.outputs
    addition = reader(result, "Add")
    if weights is None or weights.ndim != 2 or addition is None:
        return None
    bias = other(addition, result)
    vector = constant(bias)
    if vector is None or vector.shape != weights.shape[1:]:
        return None
    inputs = (operand(node, 0), operand(node, 1), bias)
    relu = reader(addition.outputs[0], "Relu")
    if relu is not None:
        return FusedNode("GpuLinearRelu", inputs, relu.outputs)
    return FusedNode("GpuLinear", inputs, addition.outputs)


def gpu_embed(node: ir.Node) -> Found:
    """Match rows of the embedding table plus positions, of beams or of the source."""
    for summand in (operand(node, 0), operand(node, 1)):
        rows = lookup(_uncast(other(node, summand)))
        if rows is None:
            continue
        table, tokens = rows
        of_sentence, of_source = sentence_position(summand), source_positions(summand, tokens)
        if of_sentence is not None:
            position_table, positions = of_sentence
            inputs = [table, position_table, tokens, positions]
            return _with_cast("GpuEmbed", inputs, node.outputs, {})
        if of_source is not None:
            return _with_cast("GpuEmbedSource", [table, of_source, tokens], node.outputs, {})
    return None


def gpu_recurrent_unit(node: ir.Node) -> Found:
    """Match a recurrent unit whose gates are the result of a matmul of any type."""
    found = recurrent_unit(node, _uncast)
    if not isinstance(found, FusedNode):
        return found
    return FusedNode("GpuRecurrentUnit", found.inputs, found.outputs)


def gpu_cached_attention(node: ir.Node) -> Found:
    """Match attention over caches that the step writes, of the same beams in every step."""
    read = [producer(node.inputs[index], "Slice") for index in (1, 2)]
    writes = [producer(cut.inputs[0], "TensorScatter") for cut in read if cut is not None]
    scatters = [write for write in writes if write is not None]
    if not writes:
        return None  # attention over the source, or of the encoder
    if len(scatters) != 2:
        return Unavoidable("keys and values are cast after they are read")
    given = graph_values(node, "inputs", "ancestry", "positions", "done")
    query = _before_heads(operand(node, 0))
    split = producer(query, "Split")
    written = [query, *(_before_heads(operand(write, 1)) for write in scatters)]
    if given is None or split is None or written != list(split.outputs):
        return "queries, keys and values are not the outputs of one matmul, in this order"
    if not all(operand(write, 0).is_graph_input() for write in scatters):
        return "the caches are not inputs of the graph"
    sizes, context = constant(split.inputs[1]), _context(node)
    assert sizes is not None  # merge-matmuls emits constants
    if context is None:
        return "the heads are not joined"
    heads, size = _heads(operand(node, 0))
    if len(set(sizes.tolist())) > 1:
        return Unavoidable("keys and values have different sizes")
    bias, distances, beams = _unclamped(operand(node, 3)), [], _beams(context)
    if (addition := producer(bias, "Add")) is not None:
        bias, by_slot = (operand(addition, index) for index in (0, 1))
        if (table := _distances_of_slots(by_slot, given["positions"], beams)) is None:
            return "the scores have other biases than those of distances"
        distances = [_by_head(table)]
    own = producer(_of_all_heads(bias), "Where")
    if own is None or own.inputs[2] is not given["ancestry"] or numbers(own.inputs[1]) != 0:
        return "the mask is not that of the ancestry"
    if beams > MOST_BEAMS:
        return _TOO_MANY_BEAMS
    caches = [operand(write, 0) for write in scatters]
    return FusedNode(
        f"Gpu{'Relative' * bool(distances)}CachedAttention",
        (operand(split, 0), *caches, *given.values(), *distances),
        (context, *(write.outputs[0] for write in scatters)),
        {
            "heads": heads,
            "splits": sizes.tolist(),
            "head_shape": [0, 0, heads, size],
            "type": int(_type(caches[0])),
        },
    )


def _of_all_heads(value: ir.Value) -> ir.Value | None:
    """Find the mask [N, K, P] of which a value [N, 1, K, P] is made."""
    return None if (unsqueezed := producer(value, "Unsqueeze")) is None else operand(unsqueezed, 0)


def _distances_of_slots(bias: ir.Value, positions: ir.Value, beams: int) -> ir.Value | None:
    """Find the table [M + 1, H] of biases [N, H, 1, P] by the distance of tokens in static caches.

    Args:
        bias: Biases of the scores.
        positions: Positions [N] of the queries.
        beams: Beam size, by which the index of a slot is divided.
    """
    by_head = producer(_of_all_heads(bias), "Transpose")
    found = lookup(operand(by_head, 0)) if by_head is not None else None
    clip = producer(found[1], "Clip") if found is not None else None
    distance = producer(operand(clip, 0), "Sub") if clip is not None else None
    if found is None or clip is None or distance is None:
        return None
    query, position = producer(distance.inputs[0], "Unsqueeze"), producer(distance.inputs[1], "Div")
    whole = producer(position.inputs[0], "Sub") if position is not None else None
    slot = producer(whole.inputs[0], "Range") if whole is not None else None
    if query is None or position is None or slot is None or operand(query, 0) is not positions:
        return None
    limits = [numbers(clip.inputs[index]) for index in (1, 2)]
    expected = [0, len(constant_of(found[0])) - 1]
    return found[0] if limits == expected and numbers(position.inputs[1]) == beams else None


def _by_head(distances: ir.Value) -> Constant:
    """Transpose a table of biases, so that those of a head are adjacent."""
    return Constant(f"{distances.name}_by_head", np.ascontiguousarray(constant_of(distances).T))


def gpu_beam_attention(node: ir.Node) -> Found:
    """Match attention of all beams over the source."""
    key, value = operand(node, 1), operand(node, 2)
    if not key.is_graph_input() or not value.is_graph_input():
        return None
    given = graph_values(node, "inputs", "source_bias", "done")
    query, context = _before_heads(operand(node, 0)), _context(node)
    if given is None or query is None or context is None:
        return "the heads are not split and joined"
    if (axes(key) or ())[-1] != (axes(value) or ())[-1]:
        return Unavoidable("keys and values have different sizes")
    if _beams(context) > MOST_BEAMS:
        return _TOO_MANY_BEAMS
    heads, size = _heads(operand(node, 0))
    return FusedNode(
        "GpuBeamAttention",
        (query, key, value, *given.values()),
        (context,),
        {"heads": heads, "head_shape": [0, 0, heads, size], "type": int(_type(key))},
    )


def gpu_beam_attention_mean(node: ir.Node) -> Found:
    """Match attention over the source whose weights, averaged over heads, the graph returns."""
    weights, averaged = operand(node, 0), None
    chosen = producer(weights, "Gather")
    if chosen is not None:
        weights, averaged = operand(chosen, 0), constant(chosen.inputs[1])
    softmax = producer(weights, "Softmax")
    total = producer(softmax.inputs[0], "Add") if softmax is not None else None
    scores = producer(_uncast(operand(total, 0)), "MatMul") if total is not None else None
    columns = producer(scores.inputs[1], "Transpose") if scores is not None else None
    given = graph_values(node, "inputs", "source_bias", "done")
    if total is None or scores is None or columns is None or given is None:
        return None
    if operand(total, 1) is not given["source_bias"]:
        return None
    read = [weights, *(use.node.outputs[0] for use in weights.uses() if use.node.op_type == "Cast")]
    sums = [use.node for x in read for use in x.uses() if use.node.op_type == "MatMul"]
    query, key = _before_heads(operand(scores, 0)), operand(columns, 0)
    context, value = (_context(sums[0]), operand(sums[0], 1)) if len(sums) == 1 else (None, key)
    if query is None or context is None or not key.is_graph_input() or not value.is_graph_input():
        return "the heads are not split and joined, or the weights are read elsewhere"
    if (axes(key) or ())[-1] != (axes(value) or ())[-1]:
        return Unavoidable("keys and values have different sizes")
    if _beams(context) > MOST_BEAMS:
        return _TOO_MANY_BEAMS
    heads, size = _heads(operand(scores, 0))
    return FusedNode(
        "GpuBeamAttentionMean",
        (query, key, value, *given.values()),
        (context, node.outputs[0]),
        {
            "heads": heads,
            "head_shape": [0, 0, heads, size],
            "type": int(_type(key)),
            "averaged": [*range(heads)] if averaged is None else averaged.tolist(),
        },
    )


def gpu_self_attention(node: ir.Node) -> Found:
    """Match self-attention of the encoder."""
    written = [_before_heads(operand(node, index)) for index in range(3)]
    if written[1] is None:
        return None  # attention of a step
    split, context = producer(written[0], "Split"), _context(node)
    if split is None or written != list(split.outputs):
        return "queries, keys and values are not the outputs of one matmul, in this order"
    bias, distances = _unclamped(operand(node, 3)), []
    relative = producer(bias, RELATIVE_SOURCE_BIAS)
    if relative is not None:
        bias, distances = operand(relative, 0), [_by_head(operand(relative, 1))]
    if {"source_bias": bias} != graph_values(node, "outputs", "source_bias"):
        return "the mask is not that of the source"
    if context is None:
        return "the heads are not joined"
    sizes = constant(split.inputs[1])
    assert sizes is not None  # merge-matmuls emits constants
    if len(set(sizes.tolist())) > 1:
        return Unavoidable("keys and values have different sizes")
    heads, size = _heads(operand(node, 0))
    return FusedNode(
        f"Gpu{'Relative' * bool(distances)}SelfAttention",
        (operand(split, 0), bias, *distances),
        (context,),
        {
            "heads": heads,
            "splits": sizes.tolist(),
            "head_shape": [0, 0, heads, size],
            "type": int(_type(context)),
        },
    )


def _unclamped(mask: ir.Value) -> ir.Value:
    """Find the float32 bias of which a mask is made: before the cast and the clamp, if any."""
    for operator in ("Cast", "Max"):
        node = producer(mask, operator)
        mask = mask if node is None else operand(node, 0)
    return mask


def gpu_split_heads(node: ir.Node) -> Found:
    """Match keys and values that the encoder returns, which are all columns of one matmul."""
    parts = [_split_heads(part) for part in node.outputs]
    heads = [part for part in parts if part is not None and part.is_graph_output()]
    if not heads:
        return None  # queries, keys and values of a layer
    if len(heads) < len(parts):
        return "the encoder returns only some columns of a matmul as heads"
    sizes = {_heads(part) for part in heads}
    if len(sizes) > 1:
        return Unavoidable("keys and values have different sizes")
    number, size = sizes.pop()
    return FusedNode(
        "GpuSplitHeads",
        (operand(node, 0),),
        heads,
        {"splits": [number] * len(heads), "head_shape": [0, 0, number * len(heads), size]},
    )


def _split_heads(value: ir.Value) -> ir.Value | None:
    """Find the heads [N, H, S, D] that a value [N, S, H * D] is split into."""
    split = reader(value, "Reshape")
    transpose = reader(split.outputs[0], "Transpose") if split is not None else None
    return transpose.outputs[0] if transpose is not None else None


def _type(value: ir.Value) -> ir.DataType:
    assert value.dtype is not None
    return value.dtype


def _beams(value: ir.Value) -> int:
    """Return the beam size K of a value [N, K, ...]."""
    beams = (axes(value) or (0, 0))[1]
    assert isinstance(beams, int)
    return beams


def _heads(query: ir.Value) -> tuple[int, int]:
    """Return the number of heads and the size of a head, of queries [N, H, K, D]."""
    _, heads, _, size = axes(query) or ()
    assert isinstance(heads, int)
    assert isinstance(size, int)
    return heads, size


def _before_heads(value: ir.Value) -> ir.Value | None:
    """Find the value [N, K, H * D] that is split into heads [N, H, K, D]."""
    transpose = producer(value, "Transpose")
    split = producer(transpose.inputs[0], "Reshape") if transpose is not None else None
    return split.inputs[0] if split is not None else None


def _context(attention: ir.Node) -> ir.Value | None:
    """Find the result [N, K, H * D] of an attention with its heads joined."""
    transpose = reader(attention.outputs[0], "Transpose")
    joined = reader(transpose.outputs[0], "Reshape") if transpose is not None else None
    return joined.outputs[0] if joined is not None else None


def gpu_top_logits(node: ir.Node) -> Found:
    """Match the top-k of log-probabilities whose columns are those of forced tokens."""
    found, given = top_logits(node), graph_values(node, "inputs", "forced_tokens")
    if not isinstance(found, FusedNode) or given is None:
        return found if isinstance(found, str) else None
    logits, columns, count = found.inputs
    assert isinstance(logits, ir.Value)
    assert isinstance(columns, ir.Value)
    assert isinstance(count, ir.Value)
    forced = _forced_tokens(columns)
    number, beams = constant(count), _beams(logits)
    if forced is not given["forced_tokens"] or number is None:
        return "other columns than forced tokens are looked up (--all-options)"
    bias = _bias_of_matmul(logits)
    if bias is not None:
        logits = other(_of(logits), bias)
    return FusedNode(
        "GpuTopLogits" if bias is None else "GpuBiasedTopLogits",
        (_uncast(logits), *([] if bias is None else [bias]), forced),
        found.outputs,
        {"count": number.tolist(), "at_beams": [1, beams, 1]},
    )


def _forced_tokens(columns: ir.Value) -> ir.Value | None:
    """Find the forced tokens [N] of columns [N, K, 1]."""
    value: ir.Value | None = columns
    for operator in ("Expand", "Clip", "Unsqueeze", "Max"):
        node = producer(value, operator)
        if node is None and operator == "Expand":
            continue  # of a single beam, which needs none
        value = node.inputs[0] if node is not None else None
    return value


def gpu_select_beams(node: ir.Node) -> Found:
    """Match the selection: from candidates to the next beams and the pool."""
    if _beams(node.outputs[0]) > MOST_BEAMS:
        return _TOO_MANY_BEAMS
    return select(node, OPERATORS["GpuSelectBeams"])


def gpu_follow_ancestry(node: ir.Node) -> Found:
    """Match the ancestry of the next beams."""
    given = graph_values(node, "inputs", "ancestry", "positions")
    outputs = graph_values(node, "outputs", "parents", NEXT + "ancestry")
    if given is None or outputs is None or node.outputs[0] is not outputs[NEXT + "ancestry"]:
        return None
    parents = outputs["parents"]
    inputs = {**given, "parents": parents}
    return Subgraph("GpuFollowAncestry", inputs, node.outputs).fuse()


#: Operators with the rules that match there, in the order in which they run: a norm takes the bias
#: before a matmul can, and attention reads what the ancestry's rule replaces.
RULES: Rules = (
    ("TopK", gpu_top_logits),
    ("Add", gpu_embed),
    ("Sigmoid", gpu_bias_activation),
    ("Gelu", gpu_bias_activation),
    ("Gelu", gpu_gated_gelu),
    ("Sigmoid", gpu_recurrent_unit),
    *((name, gpu_norm) for name in NORMS),
    ("MatMul", gpu_linear),
    ("Attention", gpu_cached_attention),
    ("Attention", gpu_beam_attention),
    ("Attention", gpu_self_attention),
    ("Split", gpu_split_heads),
    ("Where", source_bias),
    ("ReduceMean", gpu_beam_attention_mean),
    ("GpuTopLogits", gpu_select_beams),
    ("GpuBiasedTopLogits", gpu_select_beams),
    ("GatherElements", gpu_follow_ancestry),
    ("GatherElements", follow_parents),
)


class FuseGpuOps(FuseOps):
    """Fuse operators of static graphs for the kernels of GPUs."""

    name = "fuse-gpu-ops"
    summary = "matmuls, norms, attention and the beam search become fused operators of GPUs"
    rules = RULES
    expected = Expected(
        # Two matmuls, the attention and two norms of a layer; one matmul of all cross-attentions,
        # and its heads; the embedding; further norms. Gated layers have an activation.
        encoder=lambda model: (
            (4 + model.equal_heads + model.gated) * model.encoder_layers
            + (1 + model.equal_heads)
            + 1
            + norms_after_embedding(model)
        ),
        source=lambda _: 1,  # the bias
        # Of a layer the matmul before self-attention or SSRU, either of these, three norms, the
        # query and the attention over the source, and the first matmul of the feed-forward block;
        # with an SSRU the order of its state; the embedding.
        step=lambda model: (
            (5 + 3 * model.equal_heads + model.gated) * model.self_attentions
            + (8 + model.equal_heads + model.gated) * model.ssrus
            + 1
            + norms_after_embedding(model)
        ),
        # Candidates and selection, unless rules 13 to 15 take part; and the ancestry.
        search=lambda model: 2 * (not model.marks) + (model.self_attentions > 0),
    )
