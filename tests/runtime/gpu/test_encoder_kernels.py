"""Kernels of the encoder, against float64 and the operators that they replace."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed; run pip install triton")

from translate_trt.runtime.bundle.contract import MASKED
from translate_trt.runtime.gpu.encoder import self_attention, source_bias, split_heads

NAN = float("nan")

#: Largest relative error of a token's context, as in test_attention.py.
ERRORS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6}


def masked(lengths: list[int], size: int, device: torch.device, hidden: int = 0) -> Tensor:
    """Compute the bias [N, 1, 1, S] of sentences of these lengths."""
    bias = torch.full((len(lengths), 1, 1, size), NAN, device=device)
    for launch in source_bias(torch.tensor(lengths, device=device), bias, hidden=hidden):
        launch.run()
    return bias


def attend(qkv: Tensor, bias: Tensor, heads: int, distances: Tensor | None = None) -> Tensor:
    n, s, width = qkv.shape
    context = torch.full((n, s, width // 3), NAN, dtype=qkv.dtype, device=qkv.device)
    for launch in self_attention(qkv, bias, context, distances, heads=heads):
        launch.run()
    return context


def sources(
    lengths: list[int], size: int, heads: int, d: int, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return random queries, keys and values; those of padding are NaN."""
    random = torch.Generator().manual_seed(size + d)
    qkv = torch.randn(len(lengths), size, 3, heads * d, generator=random)
    qkv[:, :, 0] *= 2 * d**-0.5
    for row, length in enumerate(lengths):
        qkv[row, length:] = NAN
    return qkv.flatten(2).to(device, dtype)


@pytest.mark.parametrize("hidden", [0, 1])
def test_the_bias_masks_padding(hidden: int, device: torch.device) -> None:
    lengths = [300, 1, 129, 128]
    visible = torch.arange(300) < torch.tensor(lengths)[:, None] - hidden
    expected = torch.where(visible, 0.0, MASKED)[:, None, None]
    assert torch.equal(masked(lengths, 300, device, hidden).cpu(), expected)


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize(
    ("lengths", "size", "heads", "d", "most"),
    [
        ([5, 1, 3], 5, 4, 8, 0), ([70, 130, 64], 131, 2, 64, 0), ([40, 0], 50, 2, 128, 0),
        ([33], 40, 3, 24, 0), ([5, 2], 5, 3, 8, 9), ([70, 3], 71, 2, 64, 7),
    ],
)  # fmt: skip
def test_self_attention(
    lengths: list[int], size: int, heads: int, d: int, most: int, dtype: torch.dtype,
    device: torch.device,
) -> None:  # fmt: skip
    """Padding, which is NaN, is not read and has zeros; distances have biases up to `most`."""
    qkv = sources(lengths, size, heads, d, dtype, device)
    random = torch.Generator().manual_seed(most)
    distances = torch.randn(heads, 2 * most + 1, generator=random).to(device)
    found = attend(qkv, masked(lengths, size, device), heads, distances if most else None)
    for row, length in enumerate(lengths):
        parts = qkv[row, :length].double().view(length, 3, heads, d)
        query, key, value = parts.permute(1, 2, 0, 3)
        tokens = torch.arange(length, device=device)
        rows = (tokens - tokens[:, None]).clamp(-most, most) + most
        bias = distances[:, rows] if most else 0
        weights = (query @ key.transpose(1, 2) + bias).softmax(-1)
        expected = (weights @ value).transpose(0, 1).flatten(1)
        error = (found[row, :length].double() - expected).norm(dim=-1)
        assert (error <= ERRORS[dtype] * expected.norm(dim=-1)).all()
        assert not found[row, length:].any()


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
def test_a_sentence_depends_on_nothing_else(dtype: torch.dtype, device: torch.device) -> None:
    lengths = [70, 3, 100]
    qkv = sources(lengths, 100, 2, 32, dtype, device)
    found = attend(qkv, masked(lengths, 100, device), 2)
    for row, length in enumerate(lengths):
        alone = qkv[row : row + 1, :length].contiguous()
        assert torch.equal(
            attend(alone, masked([length], length, device), 2)[0], found[row, :length]
        )


def test_hidden_tokens_are_padding(device: torch.device) -> None:
    qkv = sources([4, 3], 4, 2, 16, torch.float16, device)
    found = attend(qkv, masked([5, 4], 4, device, hidden=1), 2)
    assert torch.equal(found, attend(qkv, masked([4, 3], 4, device), 2))


@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize(
    ("parts", "heads", "d", "size"), [(2, 3, 8, 5), (12, 2, 64, 70), (3, 1, 33, 1)]
)
def test_heads_are_split(
    parts: int, heads: int, d: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    x = torch.randn(2, size, parts * heads * d).to(device, dtype)
    found = [torch.zeros(2, heads, size, d, dtype=dtype, device=device) for _ in range(parts)]
    (launch,) = split_heads(x, found)
    launch.run()
    expected = x.view(2, size, parts, heads, d).permute(2, 0, 3, 1, 4)
    assert torch.equal(torch.stack(found), expected)
