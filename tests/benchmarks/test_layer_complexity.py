"""Layers of Table 1, and the orders of growth fitted to their figures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

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
    with pytest.raises(ValueError, match="length 39 is not a multiple of the window 8"):
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


def report_of_powers(by_length: float, by_width: float) -> dict[str, Any]:
    """Return a report in which the figures of all layers are powers of the size."""
    from layer_growth import TABLE1

    def figures(value: float) -> dict[str, Any]:
        run = {"seconds": [value, value / 2, value * 2], "peak_bytes": 1e6 * value}
        return {name: {"forward": run, "training": run} for name in TABLE1}

    return {
        "benchmark": "layer-complexity",
        "date": "2026-01-01",
        "machine": {"cores": 2, "cpu": "a processor", "instructions": ["avx2"]},
        "versions": {"torch": "2.13.0"},
        "settings": SETTINGS | {"threads": 1, "width": 256, "length": 2048},
        "results": {
            "length": {str(n): figures(n**by_length) for n in (128, 256, 512, 1024)},
            "width": {str(d): figures(d**by_width) for d in (64, 128, 256)},
        },
    }


def test_exponents_of_powers_are_found(tmp_path: Path) -> None:
    from layer_growth import render
    from plots import plot_layers

    report = report_of_powers(1.5, 0.75)
    for layers in report["results"]["length"]["128"].values():
        layers["forward"]["seconds"] = [99.0, 99.0, 99.0]  # the cost of a call: not fitted
    text = render(report)
    line = "| self-attention | O(n² d) | 2 | 1.50 | 1.50 | 1 | 0.75 | 0.75 | 1.50 |"
    assert line in text.splitlines()
    assert "where n < d = 256; here it is for none of these n." in text
    plot_layers(report, tmp_path / "layers.svg")
    assert "restricted self-attention<" in (tmp_path / "layers.svg").read_text(encoding="utf-8")
