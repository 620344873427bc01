"""Layers of Table 1, and the orders of growth fitted to their figures."""

from __future__ import annotations

import argparse

import pytest
import torch

SETTINGS = {"batch": 1, "heads": 2, "window": 8, "kernel": 3, "device": "cpu", "precision": "fp32",
            "rounds": 1}  # fmt: skip


def test_restricted_attention_equals_attention_with_a_band_mask() -> None:
    from layer_complexity import RestrictedSelfAttention

    torch.manual_seed(0)
    restricted = RestrictedSelfAttention(16, heads=4, window=8)
    whole = torch.nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        whole.in_proj_weight.copy_(restricted.projections.weight)
        whole.in_proj_bias.copy_(restricted.projections.bias)
        whole.out_proj.load_state_dict(restricted.output.state_dict())
    x = torch.randn(2, 40, 16)
    distance = (torch.arange(40)[:, None] - torch.arange(40)).abs()
    expected = whole(x, x, x, attn_mask=distance > 4, need_weights=False)[0]
    torch.testing.assert_close(restricted(x), expected)
    with pytest.raises(ValueError, match=r"length 39.*multiple"):
        restricted(x[:, :39])


def test_every_layer_of_the_table_is_measured_in_both_passes() -> None:
    from layer_complexity import layers, measure
    from layer_growth import TABLE1

    given = argparse.Namespace(**SETTINGS)
    for module, layer in layers(4, given).values():
        x = torch.randn(2, 16, 4)
        assert layer(x).shape == x.shape
        assert all(weight.grad is None for weight in module.parameters())
    figures, samples = measure(16, 4, given)
    assert list(figures) == list(samples) == list(TABLE1)
    for runs in figures.values():
        assert list(runs) == ["forward", "training"]
        assert 0 < runs["forward"]["peak_bytes"] < runs["training"]["peak_bytes"]
