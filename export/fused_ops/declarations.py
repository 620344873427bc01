"""Declarations of the fused operators: the functions of the ONNX domain `translate_trt`.

A fused operator is an ONNX function. Its body consists of standard operators and ONNX Runtime's
own, so a graph that uses it runs anywhere: ONNX Runtime inlines the body before it optimizes the
graph. Where the operator has a kernel, libtranslate_trt or ONNX Runtime runs the kernel instead.
Names, inputs, outputs and attributes are therefore an interface with compiled code. `OPERATORS`
declares this interface once; scripts/declare.py generates the C++ declarations and the
table in docs/kernels.md.

Bodies are in ONNX's text format, one file per operator in `bodies/`, without the signature. The
variants of an operator share a file. `[Tag]` before a line restricts it to variants with that tag,
`[!Tag]` to variants without it, and `include name` inserts another file. `name...` are all outputs
of a variadic operator.

Matmul weights are stored in the order in which kernels read them; bodies restore the matrix, which
ONNX Runtime folds at load. 8-bit weights W [I, O'] are in blocks [O' / 16, I / 4, 16, 4], since
processors multiply four adjacent bytes at a time, for 16 columns at once. FP32 weights are in
panels [O' / 64, I, 64]: a processor multiplies 64 columns at a time.

Operators named `Gpu` are those of graphs with static caches, for GPUs. Their kernels are in Triton
(translate_trt.runtime.gpu), and their matmuls are those of a library, so weights stay matrices.

Letters as in runtime/bundle/contract.py; I and O are the rows and columns of a matrix, O' is O
rounded up to whole blocks or panels, C a number of candidates, V the size of the vocabulary, and
... are any leading axes.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import onnx.parser
import onnx_ir as ir

from translate_trt.runtime.interface.tensors import TENSORS, Tensor

DOMAIN = "translate_trt"
VERSION = 1

#: Traced graphs with a shortlist contain these operators before any pass.
SHORTLIST_CANDIDATES = "ListedCandidates"
SOURCE_SHORTLIST = "SourceShortlist"

#: Operators of traced graphs whose model has `ModelConfig.rms_norm` or `relative_positions`.
RMS_NORM = "RmsNorm"
RELATIVE_SOURCE_BIAS, RELATIVE_SLOT_BIAS = "RelativeSourceBias", "RelativeSlotBias"

#: Prefix of candidate operators whose logits have a bias.
BIASED = "Biased"

#: Sizes of the blocks and panels that weights are stored in.
BLOCK_COLUMNS, BLOCK_ROWS = 16, 4
PANEL_COLUMNS = 64

#: The largest finite number of binary16.
FP16_MAX = 65504.0

_FLOAT, _HALF, _BOOL = "float32", "float16", "bool"
_ANY = "any"  # the type that a pass has chosen: float32, float16 or bfloat16
_INT8, _INT32, _INT64 = "int8", "int32", "int64"


@dataclass(frozen=True)
class FusedOp:
    """The declaration of one fused operator.

    Attributes:
        name: Name in graphs and of the kernel.
        summary: One line for docs/kernels.md; the variants of an operator share it.
        rule: Name of the function or class that emits the operator.
        inputs: Element types by name, in order.
        outputs: Element types by name, in order.
        attributes: Names, in order.
        body: File of the body; None if the body is traced (subgraph.py).
        tags: Tags of the body's lines that belong to this variant.
        portable: Whether the kernel runs on every processor.
        variadic: Whether nodes have any number of the last output. Their functions are overloads,
            whose identifier is the number of outputs.
        axes: Sizes of the inputs by name, with spaces between them: letters, each of which stands
            for one size; {} if the kernel checks its shapes itself.
    """

    name: str
    summary: str
    rule: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: tuple[str, ...] = ()
    body: str | None = None
    tags: Collection[str] = ()
    portable: bool = False
    variadic: bool = False
    axes: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        """Whether the operator is for GPUs, in the graphs of targets with static caches."""
        return self.name.startswith("Gpu")


def _floats(*names: str) -> dict[str, str]:
    return dict.fromkeys(names, _FLOAT)


@dataclass(frozen=True)
class _Epilogue:
    """Operators after a matmul that its fused operator includes."""

    tag: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ("y",)
    attributes: tuple[str, ...] = ()


_NORM = ("residual", "gamma", "beta")

#: By the suffix of the operator's name.
_EPILOGUES = {
    "": _Epilogue("Plain"),
    "Relu": _Epilogue("Relu"),
    "Gelu": _Epilogue("Gelu"),
    "Swish": _Epilogue("Swish"),
    "Add": _Epilogue("Add", ("residual",)),
    "AddNorm": _Epilogue("Norm", _NORM, ("y",), ("epsilon",)),
    "AddAndNorm": _Epilogue("Norm", _NORM, ("sum", "y"), ("epsilon",)),
    f"Add{RMS_NORM}": _Epilogue(RMS_NORM, _NORM[:2], ("y",), ("epsilon",)),
    f"AddAnd{RMS_NORM}": _Epilogue(RMS_NORM, _NORM[:2], ("sum", "y"), ("epsilon",)),
}


def _linear() -> Iterator[FusedOp]:
    for suffix, epilogue in _EPILOGUES.items():
        yield FusedOp(
            name=f"Linear{suffix}",
            summary="matmul with a constant matrix, its bias, and an epilogue: an activation, a "
            "residual sum, or that and LayerNorm or RMSNorm; `AddAnd` also returns the sum",
            rule="linear",
            inputs=_floats("x", "weights", "bias", *epilogue.inputs),
            outputs=_floats(*epilogue.outputs),
            attributes=("shape", "end", *epilogue.attributes),
            body="linear",
            tags=(epilogue.tag,),
        )


def linear8_name(positive: bool, epilogue: str) -> str:
    """Name of an 8-bit matmul.

    Args:
        positive: Whether no value of x is negative.
        epilogue: Suffix of the operator's name, one of `_EPILOGUES`.
    """
    return f"Linear8{'Positive' if positive else ''}{epilogue}"


def _linear8() -> Iterator[FusedOp]:
    for positive in (False, True):
        for suffix, epilogue in _EPILOGUES.items():
            weights = {"weights": _INT8, **_floats("scales", "bias", *epilogue.inputs)}
            yield FusedOp(
                name=linear8_name(positive, suffix),
                summary="the same in 8 bits; `Positive`: x is the result of a ReLU",
                rule="integer_linear",
                inputs={**_floats("x"), **weights},
                outputs=_floats(*epilogue.outputs),
                attributes=("shape", "end", "columns", "width", *epilogue.attributes),
                body="linear8",
                tags=("Positive", epilogue.tag) if positive else (epilogue.tag,),
            )


_CANDIDATES = {"values": _FLOAT, "indices": _INT64, "at_columns": _FLOAT}
_LOOKUPS = {"columns": _INT64, "count": _INT64}


def _candidates() -> Iterator[FusedOp]:
    yield FusedOp(
        name="TopLogits",
        summary="the best logits of each beam, and those at `columns`, as log-probabilities",
        rule="top_logits",
        inputs={"logits": _FLOAT, **_LOOKUPS},
        outputs=_CANDIDATES,
        body="top_logits",
    )
    for prefix, tags in (("", ()), (BIASED, ("Biased",))):
        yield FusedOp(
            name=f"{prefix}VocabularyCandidates",
            summary="the projection to the vocabulary and `TopLogits`; `rows` is the embedding "
            "table where that is the same matrix; `Biased`: logits have a bias",
            rule="candidates",
            inputs={**_floats("x", "rows", *(["bias"] if prefix else [])), **_LOOKUPS},
            outputs=_CANDIDATES,
            body="vocabulary_candidates",
            tags=tags,
        )
    for prefix, tags in (("", ()), (BIASED, ("Biased",))):
        added = "bias" if prefix else "hidden"
        yield FusedOp(
            name=f"{prefix}Candidates8",
            summary="the same in 8 bits; `hidden` or `bias` also excludes padding columns",
            rule="integer_candidates",
            inputs={"x": _FLOAT, "weights": _INT8, **_floats("scales", added), **_LOOKUPS},
            outputs=_CANDIDATES,
            attributes=("shape", "width"),
            body="candidates8",
            tags=tags,
        )
    for int8 in (False, True):
        for prefix, tags in (("", ()), (BIASED, ("Biased",))):
            scales, biases = ["scales"] * int8, ["biases"] * bool(prefix)
            yield FusedOp(
                name=f"{prefix}{SHORTLIST_CANDIDATES}{'8' if int8 else ''}",
                summary="the same in 8 bits"
                if int8
                else "the same, from the tokens of each sentence's [shortlist](shortlist.md)",
                rule="DynamicInt8" if int8 else "StepGraph",
                inputs={
                    "x": _FLOAT, "rows": _INT8 if int8 else _FLOAT, **_floats(*scales, *biases),
                    "shortlist": _INT64, **_LOOKUPS,
                },
                outputs=_CANDIDATES,
                attributes=("width",) if int8 else (),
                body="listed_candidates",
                tags=("Int8", *tags) if int8 else tags,
            )  # fmt: skip


def _attention() -> Iterator[FusedOp]:
    caches: tuple[tuple[str, str, tuple[str, ...]], ...]
    caches = (("", _FLOAT, ()), ("16", _HALF, ("Fp16",)))
    for suffix, cache, tags in caches:
        yield FusedOp(
            name=f"CachedAttention{suffix}",
            summary="writes keys and values into caches and attends over them, for all beams; "
            "`16`: FP16 caches",
            rule="cached_attention",
            inputs={
                "qkv": _FLOAT, "past_key": cache, "past_value": cache, "slots": _INT64,
                "bias": _FLOAT,
            },
            outputs={"context": _FLOAT, "next_key": cache, "next_value": cache},
            attributes=("heads", "splits", "head_shape"),
            body="cached_attention",
            tags=tags,
        )  # fmt: skip
    for suffix, cache, tags in caches:
        yield FusedOp(
            name=f"BeamAttention{suffix}",
            summary="attends over the source, for all beams; `16`: FP16 keys and values",
            rule="beam_attention",
            inputs={"query": _FLOAT, "key": cache, "value": cache, "bias": _FLOAT},
            outputs=_floats("context"),
            attributes=("heads",),
            body="beam_attention",
            tags=tags,
        )
    for suffix, cache, tags in caches:
        yield FusedOp(
            name=f"BeamAttentionMean{suffix}",
            summary="the same and the mean weights of the heads `averaged`",
            rule="beam_attention_mean",
            inputs={"query": _FLOAT, "key": cache, "value": cache, "bias": _FLOAT},
            outputs=_floats("context", "attention"),
            attributes=("heads", "averaged"),
            body="beam_attention",
            tags=("Mean", *tags),
        )
    yield FusedOp(
        name="SelfAttention",
        summary="self-attention of the encoder",
        rule="self_attention",
        inputs=_floats("qkv", "bias"),
        outputs=_floats("context"),
        attributes=("heads", "splits"),
        body="self_attention",
    )
    for suffix, cache, tags in caches:
        yield FusedOp(
            name=f"SplitHeads{suffix}",
            summary="cuts keys or values of one decoder layer out of the encoder's matmul for all "
            "layers, head by head; `16`: in FP16",
            rule="split_heads",
            inputs=_floats("x"),
            outputs={"heads": cache},
            attributes=("begin", "end", "head_shape"),
            body="split_heads",
            tags=tags,
        )


def _norm_and_embedding() -> Iterator[FusedOp]:
    for rms in (False, True):
        for prefix, residual, outputs in (
            ("", (), ()), ("Add", _NORM[:1], ()), ("AddAnd", _NORM[:1], ("sum",))
        ):  # fmt: skip
            yield FusedOp(
                name=prefix + (RMS_NORM if rms else "Norm"),
                summary="a residual sum, if any, and LayerNorm or RMSNorm that no matmul includes",
                rule="norm",
                inputs=_floats("x", *residual, *_NORM[1 : 2 if rms else 3]),
                outputs=_floats(*outputs, "y"),
                attributes=("epsilon",),
                body="rms_norm" if rms else "norm",
                tags=("Add",) if residual else (),
            )
    yield FusedOp(
        name="GatedGelu",
        summary="GELU, by tanh, of the first half of the columns times the second half",
        rule="gated_gelu",
        inputs=_floats("x"),
        outputs=_floats("y"),
        body="gated_gelu",
    )
    yield FusedOp(
        name="RecurrentUnit",
        summary="the state of a decoder layer's recurrent unit (SSRU) and its output: `gates` are "
        "the logits of the forget gate and, beside them, the input",
        rule="recurrent_unit",
        inputs=_floats("gates", "state"),
        outputs=_floats("next_state", "y"),
        body="recurrent_unit",
    )
    for source in (False, True):
        for int8 in (False, True):
            scales = ["scales"] * int8
            yield FusedOp(
                name=f"Embed{'Source' * source}{'8' * int8}",
                summary="embeddings of the beams' or the source's tokens times sqrt(d_model), plus "
                "positions; `8`: in 8 bits",
                rule="embed",
                inputs={
                    "table": _INT8 if int8 else _FLOAT, **_floats(*scales, "position_table"),
                    "tokens": _INT64, **({} if source else {"positions": _INT64}),
                },
                outputs=_floats("y"),
                attributes=("factor",),
                body="embed",
                tags=("Source",) * source + ("Int8",) * int8,
                portable=True,
            )  # fmt: skip


def _source() -> Iterator[FusedOp]:
    inputs = {"source_ids": _INT64, "source_lengths": _INT64}
    axes = {"source_ids": "N S", "source_lengths": "N"}
    yield FusedOp(
        name="SourceBias",
        summary="masks padding and the last `hidden` tokens of each sentence",
        rule="source_bias",
        inputs=inputs,
        outputs=_floats("bias"),
        attributes=("hidden",),
        body="source_bias",
        portable=True,
        axes=axes,
    )
    yield FusedOp(
        name=SOURCE_SHORTLIST,
        summary="the [shortlist](shortlist.md) of each sentence without these tokens",
        rule="SentenceShortlist",
        inputs={**inputs, "frequent": _INT32, "translations": _INT32},
        outputs={"shortlist": _INT64},
        attributes=("hidden",),
        body="source_shortlist",
        portable=True,
        axes={**axes, "frequent": "F", "translations": "V C"},
    )
    yield FusedOp(
        name=RELATIVE_SOURCE_BIAS,
        summary="the mask of padding and the biases of distances between tokens, per head",
        rule="EncoderGraph",
        inputs=_floats("source_bias", "distances"),
        outputs=_floats("bias"),
        body="relative_source_bias",
        portable=True,
    )
    yield FusedOp(
        name=RELATIVE_SLOT_BIAS,
        summary="the ancestry and the biases of distances to tokens in slots, per head; records "
        "the position of the slots of this step",
        rule="AttentionPast",
        inputs={
            "ancestry": _FLOAT, "slots": _INT64, "positions": _INT64, "past_positions": _INT64,
            "distances": _FLOAT,
        },
        outputs={"bias": _FLOAT, "next_positions": _INT64},
        body="relative_slot_bias",
        portable=True,
    )  # fmt: skip


def _of_search() -> tuple[Tensor, ...]:
    """Tensors of the contract that SelectBeams takes: request, state, and rules 13 to 15."""
    request, state = TENSORS["request"], TENSORS["state"]
    return (
        *(tensor for tensor in request if not tensor.when),
        *(tensor for tensor in state if not tensor.when and tensor.name != "tokens"),
        *(tensor for tensor in request if tensor.when == "marks"),
    )


def _selection(tensors: Collection[Tensor]) -> tuple[dict[str, str], dict[str, str]]:
    """Return inputs and outputs of a selection that takes these tensors of the contract."""
    state = {tensor.name for tensor in TENSORS["state"]}
    inputs = {
        "log_probabilities": _FLOAT, "choices": _INT64, "looked_up": _FLOAT, "end_token": _INT64,
        **{tensor.name: tensor.dtype for tensor in tensors},
    }  # fmt: skip
    following = {f"next_{one.name}": one.dtype for one in tensors if one.name in state}
    return inputs, {"parents": _INT64, "next_tokens": _INT64, **following}


def _search() -> Iterator[FusedOp]:
    tensors = _of_search()
    axes = {tensor.name: tensor.axes for tensor in tensors}
    yield FusedOp(
        name="ForcedColumns",
        summary="the `columns` and `count` that candidates are requested for: the forced token, "
        "those of constraints and those of the tail, and 2K + 1 + B + R + U, at most the number of "
        "tokens (`choices`)",
        rule="forced_columns",
        inputs={
            "forced_tokens": _INT64, "tokens": _INT64, "marked_tokens": _INT64,
            "sampling_noise": _FLOAT, "constraint_tokens": _INT64, "tail_tokens": _INT64,
            "choices": _INT64,
        },
        outputs=_LOOKUPS,
        portable=True,
        axes={**axes, "tokens": "N K", "choices": ""},
    )  # fmt: skip
    selected = _selection(tensors)
    yield FusedOp(
        name="SelectBeams",
        summary="rules 2 to 6 and 13 to 15 of the [search](beam-search.md): from candidates to the "
        "next beams and the pool",
        rule="select_beams",
        inputs=selected[0],
        outputs=selected[1],
        portable=True,
        axes={
            "log_probabilities": "N K C", "choices": "N K C", "looked_up": "N K L",
            "end_token": "", **axes,
        },
    )  # fmt: skip
    yield FusedOp(
        name="ExtendAncestry",
        summary="adds to each beam's ancestry the slot of its own token",
        rule="extend_ancestry",
        inputs={"ancestry": _FLOAT, "slots": _INT64},
        outputs=_floats("extended"),
        portable=True,
        axes={"ancestry": "N K P", "slots": "N K"},
    )
    yield FusedOp(
        name="FollowAncestry",
        summary="the ancestry of the next beams, free slots for their tokens, and whether these "
        "are too few",
        rule="follow_ancestry",
        inputs={"ancestry": _FLOAT, "parents": _INT64},
        outputs={"next_ancestry": _FLOAT, "next_slots": _INT64, "full": _BOOL},
        portable=True,
        axes={"ancestry": "N K P", "parents": "N K"},
    )
    yield FusedOp(
        name="FollowParents",
        summary="the state of each beam's parent",
        rule="follow_parents",
        inputs={"state": _FLOAT, "parents": _INT64},
        outputs=_floats("next_state"),
        body="follow_parents",
        portable=True,
        axes={"state": "N K D", "parents": "N K"},
    )


def _gpu() -> Iterator[FusedOp]:
    for suffix in ("", "Relu"):
        yield FusedOp(
            name=f"GpuLinear{suffix}",
            summary="matmul with a constant matrix, its bias, and ReLU",
            rule="gpu_linear",
            inputs={"x": _ANY, "weights": _ANY, "bias": _ANY},
            outputs={"y": _ANY},
            body="gpu_linear",
            tags=(suffix,) if suffix else (),
        )
    for activation in ("Gelu", "Swish"):
        yield FusedOp(
            name=f"GpuBias{activation}",
            summary="the bias of a matmul and an activation in float32, in the `type` of the next "
            "matmul",
            rule="gpu_bias_activation",
            inputs={"x": _ANY, "bias": _FLOAT},
            outputs={"y": _ANY},
            attributes=("type",),
            body="gpu_bias_activation",
            tags=(activation,),
        )
    yield FusedOp(
        name="GpuGatedGelu",
        summary="`GatedGelu` of any type, in the `type` of the next matmul",
        rule="gpu_gated_gelu",
        inputs={"x": _ANY},
        outputs={"y": _ANY},
        attributes=("type",),
        body="gpu_gated_gelu",
    )
    branches: dict[str, tuple[str, ...]]
    branches = {"": (), "Add": ("residual",), "BiasAdd": ("bias", "residual")}
    for norm, (prefix, added), cast in itertools.product(
        ("Norm", RMS_NORM), branches.items(), ("", "Cast")
    ):
        outputs = _floats(*["sum"] * bool(prefix), "y") | ({"cast": _ANY} if cast else {})
        name = f"{prefix}{norm}{cast}"
        yield FusedOp(
            name=f"Gpu{name}",
            summary="the bias of a matmul and a residual sum, if any, and LayerNorm or RMSNorm; "
            "`Cast`: also in the `type` of the next matmul",
            rule="gpu_norm",
            inputs={"x": _ANY, **_floats(*added, *_NORM[1 : 3 if norm == "Norm" else 2])},
            outputs=outputs,
            attributes=("epsilon", *["type"] * bool(cast)),
            body="gpu_norm",
            tags=[tag for tag in ("Bias", "Add", RMS_NORM, "Cast") if tag in name],
        )
    for source in (False, True):
        for cast in ("", "Cast"):
            yield FusedOp(
                name=f"GpuEmbed{'Source' * source}{cast}",
                summary="embeddings of the beams' or the source's tokens plus positions; `Cast`: "
                "also in the `type` of the next matmul",
                rule="gpu_embed",
                inputs={
                    "table": _ANY, "position_table": _FLOAT, "tokens": _INT64,
                    **({} if source else {"positions": _INT64}),
                },
                outputs={"y": _FLOAT, **({"cast": _ANY} if cast else {})},
                attributes=("type",) if cast else (),
                body="gpu_embed",
                tags=("Source",) * source + ("Cast",) * bool(cast),
            )  # fmt: skip
    yield FusedOp(
        name="GpuRecurrentUnit",
        summary="`RecurrentUnit` for `gates` of any type",
        rule="gpu_recurrent_unit",
        inputs={"gates": _ANY, "state": _FLOAT},
        outputs=_floats("next_state", "y"),
        body="gpu_recurrent_unit",
    )
    for cast in ("", "Cast"):
        yield FusedOp(
            name=f"GpuRecurrentNorm{cast}",
            summary="the same, a residual sum and LayerNorm; `Cast`: also in the `type` of the "
            "next matmul",
            rule="gpu_norm",
            inputs={"gates": _ANY, **_floats("state", *_NORM)},
            outputs=_floats("next_state", "sum", "y") | ({"cast": _ANY} if cast else {}),
            attributes=("epsilon", *["type"] * bool(cast)),
            body="gpu_recurrent_norm",
            tags=(cast,) if cast else (),
        )
    relative = (("", (), ()), ("Relative", ("distances_by_head",), ("Relative",)))
    for prefix, distances, tags in relative:
        yield FusedOp(
            name=f"Gpu{prefix}CachedAttention",
            summary="writes keys and values into static caches, at the position of each sentence, "
            "and attends over each beam's past; `Relative`: with biases of distances",
            rule="gpu_cached_attention",
            inputs={
                "qkv": _ANY, "past_key": _ANY, "past_value": _ANY, "ancestry": _FLOAT,
                "positions": _INT64, "done": _BOOL, **_floats(*distances),
            },
            outputs={"context": _ANY, "next_key": _ANY, "next_value": _ANY},
            attributes=("heads", "splits", "head_shape", "type"),
            body="gpu_cached_attention",
            tags=tags,
        )  # fmt: skip
    for prefix, distances, tags in relative:
        yield FusedOp(
            name=f"Gpu{prefix}SelfAttention",
            summary="self-attention of the encoder, over the tokens of each sentence; `Relative`: "
            "with biases of distances",
            rule="gpu_self_attention",
            inputs={"qkv": _ANY, **_floats("source_bias" if prefix else "bias", *distances)},
            outputs={"context": _ANY},
            attributes=("heads", "splits", "head_shape", "type"),
            body="gpu_self_attention",
            tags=tags,
        )
    yield FusedOp(
        name="GpuSplitHeads",
        summary="cuts keys and values of all decoder layers out of the encoder's matmul for them, "
        "head by head",
        rule="gpu_split_heads",
        inputs={"x": _ANY},
        outputs={"heads": _ANY},
        attributes=("splits", "head_shape"),
        body="gpu_split_heads",
        variadic=True,
    )
    inputs = {"query": _ANY, "key": _ANY, "value": _ANY, "bias": _FLOAT, "done": _BOOL}
    yield FusedOp(
        name="GpuBeamAttention",
        summary="attends over the tokens of the source, for all beams of a sentence that is not "
        "done",
        rule="gpu_beam_attention",
        inputs=inputs,
        outputs={"context": _ANY},
        attributes=("heads", "head_shape", "type"),
        body="gpu_beam_attention",
    )
    yield FusedOp(
        name="GpuBeamAttentionMean",
        summary="the same and the mean weights of the heads `averaged`",
        rule="gpu_beam_attention_mean",
        inputs=inputs,
        outputs={"context": _ANY, "attention": _FLOAT},
        attributes=("heads", "head_shape", "type", "averaged"),
        body="gpu_beam_attention",
        tags=("Mean",),
    )
    for prefix in ("", BIASED):
        yield FusedOp(
            name=f"Gpu{prefix}TopLogits",
            summary="`TopLogits` of logits of any type, and of the forced token; `Biased`: logits "
            "have a bias",
            rule="gpu_top_logits",
            inputs={
                "logits": _ANY, **({"bias": _FLOAT} if prefix else {}), "forced_tokens": _INT64,
            },
            outputs=_CANDIDATES,
            attributes=("count", "at_beams"),
            body="gpu_top_logits",
            tags=(prefix,) if prefix else (),
        )  # fmt: skip
    tensors = [tensor for tensor in _of_search() if tensor.when != "marks"]
    selected = _selection(tensors)
    yield FusedOp(
        name="GpuSelectBeams",
        summary="rules 2 to 6 of the [search](beam-search.md), without the inputs of rules 13 to "
        "15",
        rule="gpu_select_beams",
        inputs=selected[0],
        outputs=selected[1],
    )  # fmt: skip
    yield FusedOp(
        name="GpuFollowAncestry",
        summary="adds the slot of this step to each beam's ancestry, and returns that of the next "
        "beams",
        rule="gpu_follow_ancestry",
        inputs={"ancestry": _FLOAT, "positions": _INT64, "parents": _INT64},
        outputs=_floats("next_ancestry"),
    )


#: Every fused operator by name.
OPERATORS: dict[str, FusedOp] = {
    op.name: op
    for family in (
        _linear,
        _linear8,
        _candidates,
        _attention,
        _norm_and_embedding,
        _source,
        _search,
        _gpu,
    )
    for op in family()
}


def function(name: str, opset: int, overload: str = "") -> ir.Function:
    """Build the function of an operator that has a body file.

    Args:
        name: One of `OPERATORS`.
        opset: Version of ONNX's operators in the graph that uses the function, at least 21.
        overload: Number of outputs of a variadic operator; by default, the declared number.
    """
    op = OPERATORS[name]
    assert op.body is not None, f"the body of {name} is traced"
    lines = "\n".join(_body_lines(op.body, frozenset(op.tags)))
    outputs = [*op.outputs]
    if op.variadic:
        count = int(overload or len(outputs))
        last = outputs.pop()
        repeated = [f"{last}_{index}" for index in range(count - len(outputs))]
        lines = lines.replace(f"{last}...", ", ".join(repeated))
        outputs += repeated
    opsets = {"": opset, "com.microsoft": 1, DOMAIN: VERSION}
    imports = ", ".join(f'"{d}" : {v}' for d, v in opsets.items() if not d or f"{d}." in lines)
    attributes = f"<{', '.join(op.attributes)}>" if op.attributes else ""
    text = (
        f'<domain: "{DOMAIN}", opset_import: [{imports}]> {name} '
        f"{attributes} ({', '.join(op.inputs)}) => ({', '.join(outputs)}) {{\n{lines}\n}}"
    )
    parsed = onnx.parser.parse_function(text)
    parsed.overload = overload
    return ir.serde.deserialize_function(parsed)


_TAGGED = re.compile(r"\[([^]]*)\] (.*)")


def _body_lines(body: str, tags: frozenset[str]) -> Iterator[str]:
    """Lines of a body file for a variant: tags resolved, files included, comments dropped."""
    for line in _read_body(body):
        tagged = _TAGGED.fullmatch(line)
        if tagged is not None:
            if any((tag.lstrip("!") in tags) == tag.startswith("!") for tag in tagged[1].split()):
                continue
            line = tagged[2]
        if line.startswith("include "):
            yield from _body_lines(line.removeprefix("include "), tags)
        elif not line.startswith("#"):
            yield line


@functools.cache
def _read_body(body: str) -> tuple[str, ...]:
    files = importlib.resources.files(__package__) / "bodies"
    return tuple((files / f"{body}.onnxtxt").read_text("utf-8").splitlines())
