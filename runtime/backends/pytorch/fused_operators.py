"""Fused operators of `torch` targets: their kernels in Triton, one table entry for each.

Without kernels, the backend runs the operators' bodies (`onnx_program`).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from translate_trt.runtime.backends.pytorch.onnx_operators import DTYPES
from translate_trt.runtime.errors import BackendError

if TYPE_CHECKING:  # Triton need not be installed
    from translate_trt.runtime.gpu.launch import Launch

#: Domain of the fused operators.
DOMAIN = "translate_trt"

#: Shape and type of an output.
Form: TypeAlias = tuple[Sequence[int], torch.dtype]

#: Attributes of a node by name, and its inputs or outputs in order.
Attributes: TypeAlias = Mapping[str, Any]
Values: TypeAlias = Sequence[Any]


@dataclass(frozen=True)
class FusedOperator:
    """Entry of the table.

    Attributes:
        forms: Forms of the outputs, from the node's attributes and inputs. An output that the
            operator updates in place is that input instead.
        describe: Launches, from the attributes, inputs, and outputs; None for an output that
            nothing reads, or that is not to be updated.
        launches: Number of launches.
        scalars: Indices of inputs that arrive as numbers.
        in_place: Indices of inputs that an output is, by the index of the output.
    """

    forms: Callable[[Attributes, Values], Sequence[Form | Tensor]]
    describe: Callable[[Attributes, Values, Values], Sequence[Launch]]
    launches: int = 1
    scalars: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()

    def bind(self, attributes: Attributes, wanted: Sequence[bool]) -> Callable[..., Any]:
        """Return the computation of a node.

        Args:
            attributes: Attributes of the node.
            wanted: Whether anything reads each output.
        """

        def call(*inputs: Any, targets: Sequence[Tensor | None] | None = None) -> list[Any]:
            """Enqueue the launches; `targets` are tensors to write outputs to, if any."""
            # Kernels compute addresses of dense tensors; a view of another order is copied.
            inputs = tuple(x.contiguous() if isinstance(x, Tensor) else x for x in inputs)
            outputs: list[Any] = []
            for index, form in enumerate(self.forms(attributes, inputs)):
                target = targets[index] if targets is not None else None
                if isinstance(form, Tensor):
                    outputs.append(form)
                elif target is not None:
                    outputs.append(target)
                elif wanted[index]:
                    outputs.append(torch.empty(form[0], dtype=form[1], device=inputs[0].device))
                else:
                    outputs.append(None)
            for launch in self.describe(attributes, inputs, outputs):
                _run(launch)
            return outputs

        return call


def _run(launch: Launch) -> None:
    try:
        launch.run()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # Triton's own errors share no other base class
        name = getattr(launch.kernel, "__name__", "?")
        raise BackendError(
            f"the kernel {name} failed: {error}. Please report it with the versions of torch and "
            "triton; TRANSLATE_TRT_KERNELS=none runs the target without kernels."
        ) from error


def have_kernels(device: torch.device) -> bool:
    """Whether Triton runs kernels on a device: a GPU or, in its interpreter, the CPU."""
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return False
    return why_no_kernels() is None


def why_no_kernels() -> str | None:
    """Say why there are no kernels even on a GPU; None if there are."""
    if os.environ.get("TRANSLATE_TRT_KERNELS") == "none":
        return "TRANSLATE_TRT_KERNELS is none"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; PyTorch's package for the GPU brings it"
    return None


def operators() -> dict[str, FusedOperator]:
    """Return the table: operators by name. Triton must be installed."""
    from translate_trt.runtime.gpu import (
        activation,
        ancestry,
        attention,
        embedding,
        encoder,
        norm,
        recurrence,
        select_beams,
        top_logits,
    )

    def norm_of(biased: bool, added: bool, rms: bool) -> FusedOperator:
        totals = int(added)  # whether a residual sum is an output

        def describe(a: Attributes, x: Values, y: Values) -> Sequence[Launch]:
            given = iter(x[1:])
            bias, residual = next(given) if biased else None, next(given) if added else None
            gamma, beta = next(given), None if rms else next(given)
            total = y[0] if added else None
            found, cast = _padded(y[totals:])
            return norm.norm(
                x[0], bias, residual, gamma, beta, total, found, cast, epsilon=a["epsilon"]
            )

        return FusedOperator(lambda a, x: _with_cast(a, [x[0].shape] * (totals + 1)), describe)

    def activation_of(gelu: bool) -> FusedOperator:
        return FusedOperator(
            lambda a, x: [(x[0].shape, DTYPES[a["type"]])],
            lambda _, x, y: activation.bias_activation(x[0], x[1], y[0], gelu=gelu),
        )

    def recurrent_norm(a: Attributes, x: Values, y: Values) -> Sequence[Launch]:
        found, cast = _padded(y[2:])
        return recurrence.recurrent_norm(
            x[0], x[1], x[2], x[3], x[4], y[0], y[1], found, cast, epsilon=a["epsilon"]
        )

    recurrent = FusedOperator(lambda a, x: _with_cast(a, [x[1].shape] * 3), recurrent_norm)
    embed = FusedOperator(
        lambda a, x: _with_cast(a, [(*x[2].shape, x[1].shape[1])]),
        lambda _, x, y: embedding.embed(
            x[0], x[1], x[2], x[3] if len(x) > 3 else None, *_padded(y)
        ),
    )
    norms = {
        f"Gpu{prefix}{norm}{suffix}": norm_of("Bias" in prefix, "Add" in prefix, norm == "RmsNorm")
        for prefix in ("", "Add", "BiasAdd")
        for norm in ("Norm", "RmsNorm")
        for suffix in ("", "Cast")
    }
    cached_attention = FusedOperator(
        lambda _, x: [((*x[3].shape[:2], x[0].shape[-1] // 3), x[0].dtype), x[1], x[2]],
        lambda a, x, y: attention.cached_attention(
            x[0], x[1], x[2], x[3], x[4], x[5], y[0], x[6] if len(x) > 6 else None,
            heads=a["heads"], writes=y[1] is not None,
        ),
        in_place=((1, 1), (2, 2)),
    )  # fmt: skip
    self_attention = FusedOperator(
        lambda _, x: [((*x[0].shape[:2], x[0].shape[2] // 3), x[0].dtype)],
        lambda a, x, y: encoder.self_attention(x[0], x[1], y[0], *x[2:], heads=a["heads"]),
    )
    return {
        **norms,
        "GpuEmbed": embed,
        "GpuEmbedCast": embed,
        "GpuEmbedSource": embed,
        "GpuEmbedSourceCast": embed,
        "GpuBiasGelu": activation_of(gelu=True),
        "GpuBiasSwish": activation_of(gelu=False),
        "GpuGatedGelu": FusedOperator(
            lambda a, x: [((*x[0].shape[:-1], x[0].shape[-1] // 2), DTYPES[a["type"]])],
            lambda _, x, y: activation.gated_gelu(x[0], y[0]),
        ),
        "GpuRecurrentNorm": recurrent,
        "GpuRecurrentNormCast": recurrent,
        "GpuRecurrentUnit": FusedOperator(
            lambda _, x: [(x[1].shape, torch.float32)] * 2,
            lambda _, x, y: recurrence.recurrent_unit(x[0], x[1], y[0], y[1]),
        ),
        "GpuCachedAttention": cached_attention,
        "GpuRelativeCachedAttention": cached_attention,
        "GpuBeamAttention": FusedOperator(
            lambda _, x: [(x[0].shape, x[0].dtype)],
            lambda a, x, y: attention.beam_attention(
                x[0], x[1], x[2], x[3], x[4], y[0], heads=a["heads"]
            ),
        ),
        "GpuBeamAttentionMean": FusedOperator(
            lambda _, x: [
                (x[0].shape, x[0].dtype),
                ((*x[0].shape[:2], x[1].shape[2]), torch.float32),
            ],
            lambda a, x, y: attention.beam_attention_mean(
                x[0], x[1], x[2], x[3], x[4], y[0], y[1],
                heads=a["heads"], averaged=a["averaged"],
            ),
            launches=2,
        ),
        "GpuSelfAttention": self_attention,
        "GpuRelativeSelfAttention": self_attention,
        "GpuSplitHeads": FusedOperator(
            _heads,
            lambda _, x, y: encoder.split_heads(x[0], y),
        ),
        "SourceBias": FusedOperator(
            lambda _, x: [((x[0].shape[0], 1, 1, x[0].shape[1]), torch.float32)],
            lambda a, x, y: encoder.source_bias(x[1], y[0], hidden=a["hidden"]),
        ),
        "GpuTopLogits": FusedOperator(
            _candidates,
            lambda _, x, y: top_logits.top_logits(x[0], x[1], y[0], y[1], y[2]),
            launches=2,
        ),
        "GpuBiasedTopLogits": FusedOperator(
            _candidates,
            lambda _, x, y: top_logits.top_logits(x[0], x[2], y[0], y[1], y[2], x[1]),
            launches=2,
        ),
        "GpuSelectBeams": FusedOperator(
            _selected,
            lambda _, x, y: select_beams.select_beams([*x[:3], *x[4:]], y, x[3]),
            scalars=(3,),
        ),
        "GpuFollowAncestry": FusedOperator(
            lambda _, x: [(x[0].shape, torch.float32)],
            lambda _, x, y: ancestry.follow_ancestry(x[0], x[1], x[2], y[0]),
        ),
        "FollowParents": FusedOperator(
            lambda _, x: [(x[0].shape, torch.float32)],
            lambda _, x, y: ancestry.follow_parents(x[0], x[1], y[0]),
        ),
    }  # fmt: skip


def _with_cast(attributes: Attributes, shapes: Sequence[Sequence[int]]) -> list[Form]:
    """Forms of float32 outputs, and of one in the node's type, if it has any."""
    forms: list[Form] = [(shape, torch.float32) for shape in shapes]
    if "type" in attributes:
        forms.append((shapes[-1], DTYPES[attributes["type"]]))
    return forms


def _padded(outputs: Values) -> tuple[Any, Any]:
    """Return a result and its cast, which is None if the node has none."""
    return outputs[0], outputs[1] if len(outputs) > 1 else None


def _heads(attributes: Attributes, inputs: Values) -> list[Form]:
    """Forms of parts [N, H, S, D] of x [N, S, C * H * D]."""
    sentences, tokens, _ = inputs[0].shape
    size = attributes["head_shape"][-1]
    return [((sentences, heads, tokens, size), inputs[0].dtype) for heads in attributes["splits"]]


def _candidates(attributes: Attributes, inputs: Values) -> list[Form]:
    sentences, beams, _ = inputs[0].shape
    (count,) = attributes["count"]
    return [
        ((sentences, beams, count), torch.float32),
        ((sentences, beams, count), torch.int64),
        ((sentences, beams, 1), torch.float32),
    ]


def _selected(_: Attributes, inputs: Values) -> list[Form]:
    """Forms of parents, tokens, and the other tensors of the state, which are the last inputs."""
    like_beams = (inputs[0].shape[:2], torch.int64)
    return [like_beams, like_beams, *((x.shape, x.dtype) for x in inputs[-7:])]
