"""Translated operators compute in ONNX Runtime what they compute in PyTorch, for any sizes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from translate_trt.export.aten_to_onnx import to_onnx
from translate_trt.export.targets import DYNAMIC_OPSET
from translate_trt.runtime.errors import TranslateTrtError

pytestmark = pytest.mark.slow

Function = Callable[..., Tensor | tuple[Tensor, ...]]

# Functions of x [N, S, 6] float32, i [N, S] int64 from -5 to 5, and b [N, S] bool.
FUNCTIONS: dict[str, Function] = {
    # numbers of one type and of two
    "sums": lambda x, i, b: (x + x, x + 1, x + i[..., None], i + 2, i - i, x - 0.5, 1 - i, 0.5 - x),
    "factors": lambda x, i, b: (x * 3, i * -2, x * i[..., None], x / 2, x / (x + 9), -x, -i),
    "integers": lambda x, i, b: (i // 3, i % 3, i // -2, torch.maximum(i, -i)),
    "powers": lambda x, i, b: (x.exp() ** x, x.exp().log(), x.exp().sigmoid()),
    "activations": lambda x, i, b: (x.relu(), F.gelu(x), F.silu(x), x.softmax(-1)),
    "limits": lambda x, i, b: (x.clamp(min=0), i.clamp(max=-1), i.clamp(-2, 2), x.clamp(max=0.5)),
    "logarithms": lambda x, i, b: x.log_softmax(-1),
    "casts": lambda x, i, b: (i.to(torch.float32), b.to(torch.int64), x.to(torch.float32)),
    # reductions
    "totals": lambda x, i, b: (x.sum(-1), x.sum(1, keepdim=True), i.sum(1), b.sum(1), x.mean(2)),
    "extremes": lambda x, i, b: (x.amax(1), x.argmax(-1), x.argmax(1, keepdim=True)),
    "running totals": lambda x, i, b: (x.cumsum(1), i.cumsum(-1), b.cumsum(1)),
    # truth values
    "comparisons of numbers": lambda x, i, b: (i == 2, i != 2, i < 2, i >= 0, x > -math.inf),
    "comparisons of tensors": lambda x, i, b: (i == i[:, :1], i != i[:, :1], x < x[..., :1]),
    "comparisons of types": lambda x, i, b: (i < x[..., 0], x[..., 0] >= i, i > 0.5),
    "logic": lambda x, i, b: (b & ~b, b | (i > 0), ~b),
    "choices": lambda x, i, b: (
        torch.where(b, -math.inf, 0.0),
        torch.where(b, -1.0, x[..., 0]),
        torch.where(b[..., None], x, 0.0),
        torch.where(b, i, 7),
        torch.where(b, i, x[..., 2]),
    ),
    # places
    "ranges": lambda x, i, b: torch.arange(x.shape[1]) < i,
    "filled": lambda x, i, b: (torch.full_like(x, 2), torch.ones_like(i), torch.zeros_like(b)),
    "slices": lambda x, i, b: (x[:, :-1], x[:, 1:], x[..., ::2], x[:, : x.shape[1] - 1]),
    "choice of one": lambda x, i, b: (x[:, 0], x[..., -1], i[:, -1]),
    "choice of some": lambda x, i, b: x[..., [4, 0, 4]],
    "gathered": lambda x, i, b: x.gather(2, (i[..., None] % 6)),
    "joined": lambda x, i, b: (torch.cat((x, x[:, :1]), 1), torch.cat((i, b), 1)),
    "stacked": lambda x, i, b: (torch.stack((i, i + 1)), torch.stack((i, i), -1)),
    "expanded": lambda x, i, b: (i[..., None].expand(-1, -1, 3), i[..., None].expand_as(x)),
    "reshaped": lambda x, i, b: (
        x.flatten(1), x.flatten(-2), x.flatten(), x.unflatten(-1, (2, -1)),
        x.view(x.shape[0], -1), x.unflatten(-1, (3, 2)).transpose(1, 2).flatten(-2),
        torch.cat((i, i), 1)[..., None].flatten(-2),
    ),
    "turned": lambda x, i, b: (x.transpose(1, 2), x.transpose(-1, 0)),
    "best": lambda x, i, b: (*x.topk(2), *x.topk(x.shape[1], 1), i.sort(1).values, *x.sort(-1)),
    # sizes as numbers
    "sizes": lambda x, i, b: (
        i + x.shape[1],
        torch.arange(2 * x.shape[0] + i.shape[1]),
        x.flatten(1).topk(torch.sym_min(x.shape[1] * 6, 11)).values,
    ),
}  # fmt: skip


class Calls(nn.Module):
    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, i: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        found = self.function(x, i, b)
        return found if isinstance(found, tuple) else (found,)


def example(sentences: int, length: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(sentences)
    return (
        torch.randn(sentences, length, 6, generator=draw),
        torch.randint(-5, 6, (sentences, length), generator=draw),
        torch.randint(2, (sentences, length), generator=draw) > 0,
    )


def translated(module: nn.Module, outputs: int) -> ir.Model:
    any_size = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    program = torch.export.export(
        module, example(3, 5), dynamic_shapes=(any_size,) * 3, strict=False
    )
    inputs = {"x": ("N", "S", 6), "i": ("N", "S"), "b": ("N", "S")}
    names = [f"y{index}" for index in range(outputs)]
    return to_onnx(program, inputs, names, "test", DYNAMIC_OPSET)


def assert_equal(module: nn.Module) -> ir.Model:
    model = translated(module, len(module(*example(3, 5))))
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for sizes in ((3, 5), (1, 3), (4, 7)):
        given = example(*sizes)
        found = session.run(None, {n: a.numpy() for n, a in zip("xib", given, strict=True)})
        with torch.no_grad():
            expected = [result.numpy() for result in module(*given)]
        for one, right in zip(found, expected, strict=True):
            assert one.dtype == right.dtype
            np.testing.assert_allclose(one, right, rtol=1e-5, atol=1e-6)
    return model


@pytest.mark.parametrize("name", FUNCTIONS)
def test_operators(name: str) -> None:
    model = assert_equal(Calls(FUNCTIONS[name]))
    assert [value.shape for value in model.graph.inputs] == [
        ir.Shape(("N", "S", 6)), ir.Shape(("N", "S")), ir.Shape(("N", "S"))
    ]  # fmt: skip


class Layers(nn.Module):
    """Layers with weights, of which two are tied, and a buffer."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 4), nn.Linear(6, 4, bias=False)
        self.norm = nn.LayerNorm(4, eps=1e-3)
        self.table, self.unread = nn.Embedding(11, 4), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("scale", torch.tensor([1, 2, 3, 4]))

    def forward(self, x: Tensor, i: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = self.norm(self.first(x)) * self.scale
        return y, self.second(x) @ y.transpose(-1, -2), self.table(i + 5)


def test_weights_are_those_that_are_read_under_their_names() -> None:
    torch.manual_seed(1)
    module = Layers()
    model = assert_equal(module)
    # Of names of one tensor, torch.export keeps the last.
    assert set(model.graph.initializers) == {
        "second.weight", "first.bias", "norm.weight", "norm.bias", "table.weight", "scale"
    }  # fmt: skip
    weights = model.graph.initializers["second.weight"].const_value
    assert weights is not None
    np.testing.assert_array_equal(weights.numpy(), module.first.weight.detach().numpy())


def test_results_that_are_inputs_or_equal_have_names_of_their_own() -> None:
    def twice(x: Tensor, i: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        y = x + 1
        return x, y, y, i[:]

    model = assert_equal(Calls(twice))
    assert [value.name for value in model.graph.outputs] == ["y0", "y1", "y2", "y3"]
    assert [value.name for value in model.graph.inputs] == ["x", "i", "b"]


def test_an_operator_without_a_translation_is_named() -> None:
    with pytest.raises(TranslateTrtError, match=r"aten\.sin\.default"):
        translated(Calls(lambda x, i, b: x.sin()), 1)
