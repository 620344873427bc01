"""Orders of growth of layers, from a report of layer_complexity.py, beside the paper's Table 1."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from results_tables import note_of
from tables import table, where

SELF_ATTENTION = "self-attention"
STORED = "self-attention, weights stored"
RESTRICTED = "restricted self-attention"
RECURRENT = "recurrent"
CONVOLUTIONAL = "convolutional"


class Order(NamedTuple):
    """Complexity per layer in Table 1.

    Attributes:
        written: Formula.
        length: Exponent of n.
        width: Exponent of d.
    """

    written: str
    length: int
    width: int


TABLE1 = {
    SELF_ATTENTION: Order("n² d", 2, 1),
    STORED: Order("n² d", 2, 1),
    RESTRICTED: Order("r n d", 1, 1),
    RECURRENT: Order("n d²", 1, 2),
    CONVOLUTIONAL: Order("k n d²", 1, 2),
}

#: Number of largest sizes that exponents are fitted to; small ones measure the cost of calls.
FITTED = 3


def curve(
    report: Mapping[str, Any], growth: str, layer: str, run: str, figure: str
) -> dict[int, float]:
    """Return seconds or bytes of a layer by size.

    Args:
        report: Report of layer_complexity.py.
        growth: "length" or "width".
        layer: Name of the layer.
        run: "forward" or "training".
        figure: "seconds", of which the median is returned, or "peak_bytes".
    """
    sizes = report["results"][growth]
    found = {int(size): layers[layer][run][figure] for size, layers in sizes.items()}
    return {size: value[0] if figure == "seconds" else value for size, value in found.items()}


def exponent(values: Mapping[int, float]) -> float:
    """Fit the exponent of growth at the largest sizes by least squares of logarithms."""
    sizes = sorted(values)[-FITTED:]
    fitted = statistics.linear_regression(
        [math.log(size) for size in sizes], [math.log(values[size]) for size in sizes]
    )
    return fitted.slope


def render(report: dict[str, Any]) -> str:
    """Render the fitted exponents beside those of Table 1."""
    settings = report["settings"]
    runs = ("forward", "training")
    rows = [
        [
            layer,
            f"O({order.written})",
            f"{order.length}",
            *(f"{exponent(curve(report, 'length', layer, run, 'seconds')):.2f}" for run in runs),
            f"{order.width}",
            *(f"{exponent(curve(report, 'width', layer, run, 'seconds')):.2f}" for run in runs),
            f"{exponent(curve(report, 'length', layer, 'training', 'peak_bytes')):.2f}",
        ]
        for layer, order in TABLE1.items()
    ]
    header = ["layer", "Table 1", "time by n: Table 1", "forward", "and backward"]
    header += ["time by d: Table 1", "forward", "and backward", "memory by n"]
    gpu = settings["device"] if settings["device"] != "cpu" else None
    flags = "" if gpu is None else f" --device cuda --precision {settings['precision']}"
    measured = (
        "seconds with the GPU's work done"
        if gpu
        else f"processor seconds with --threads {settings['threads']}"
    )
    lengths, widths = (sorted(map(int, report["results"][one])) for one in ("length", "width"))
    return (
        f"`python benchmarks/layer_complexity.py --threads {settings['threads']}{flags}`\n\n"
        f"{f'{gpu}; ' if gpu else ''}{where(report)}{note_of(report)} Sequences of a batch: "
        f"{settings['batch']}; {settings['heads']} heads, window r = {settings['window']}, kernel "
        f"k = {settings['kernel']}, {settings['precision']}; {measured}, medians of "
        f"{settings['rounds']} rounds. By length: n from {lengths[0]:,} to {lengths[-1]:,}, d = "
        f"{settings['width']}. By width: d from {widths[0]} to {widths[-1]:,}, n = "
        f"{settings['length']:,}. Exponents are fitted to the {FITTED} largest sizes.\n\n"
        f"{table(header, rows)}\n"
        f"![Time and memory of layers by length and width](plots/{report['benchmark']}.svg)\n\n"
        "Solid lines are measured, forward and backward; dotted lines grow from the largest size "
        f"down as in Table 1. {_crossing(report)} Table 1 counts the operations of attention "
        "alone, n² d. The layers of torch.nn have four projections, too, with as many operations "
        "as attention where n is twice d, and a softmax of n² h weights. Time therefore grows by "
        "less than n² for shorter sequences, by more than d in wide layers and by less in narrow "
        "ones. Fused attention recomputes what it does not store: its memory grows with n, its "
        "time with n². The recurrent layer reads its 8 d² weights at every position, which takes "
        "longer where they exceed the caches.\n"
    )


def _crossing(report: Mapping[str, Any]) -> str:
    """Compare self-attention with the recurrent layer by length (section 4 of the paper)."""
    attention, recurrent = (
        curve(report, "length", layer, "training", "seconds")
        for layer in (SELF_ATTENTION, RECURRENT)
    )
    width = report["settings"]["width"]
    faster = list(itertools.takewhile(lambda n: attention[n] < recurrent[n], sorted(attention)))
    claim = f"By section 4, self-attention is faster than a recurrent layer where n < d = {width}; "
    return claim + (
        f"here it is up to n = {faster[-1]:,}." if faster else "here it is for none of these n."
    )
