"""Plots of attention weights: lines as in the paper's appendix, or heat maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from translate_trt.runtime.errors import OptionError
from translate_trt.train.evaluation.attention_maps import AttentionMap
from translate_trt.train.evaluation.pictures import DOTS_PER_INCH, Colour, colours, legend_columns

STYLES = ("lines", "matrix")

# More tokens are illegible at any size of the picture.
MOST_TOKENS = 128
# 240 MB in matplotlib, at four bytes per pixel.
_MOST_PIXELS = 60_000_000

# Sizes in inches.
_TOKEN = 0.24  # distance of two tokens
_CHARACTER = 0.09  # approximate width of a character
_HEIGHT_OF_LINES = 2.4  # distance of queries and keys
_MARGIN = 0.9  # margin around a panel, for titles and axis labels
_FONT_SIZE = 9  # points

# Lines of less opacity do not change an 8-bit pixel.
_LEAST_OPACITY = 1 / 256

Weights = npt.NDArray[np.float32]


def draw_attention(
    attention: AttentionMap, layers: Sequence[int], heads: Sequence[int], style: str
) -> Figure:
    """Draw attention weights of layers and heads.

    Args:
        attention: Attention map to draw.
        layers: Numbers of layers; the bottom layer is 1.
        heads: Numbers of heads, from 1.
        style: `lines`: a panel per layer with queries above, keys below, and lines between them,
            of a colour per head, whose opacity is the weight (the paper's figures 3 to 5).
            `matrix`: a panel per layer and head, with a row per query.

    Raises:
        OptionError: The picture would have too many tokens or panels.
    """
    longest = max(len(attention.query), len(attention.key))
    if longest > MOST_TOKENS:
        raise OptionError(
            f"{longest} tokens cannot be drawn legibly, at most {MOST_TOKENS} can: shorten the "
            "sentence, or print the numbers with --json, without --output."
        )
    draw = _draw_lines if style == "lines" else _draw_matrices
    return draw(attention, layers, heads)


def _figure(width: float, height: float) -> Figure:
    """Make an empty figure of a size in inches."""
    pixels = int(width * height * DOTS_PER_INCH**2)
    if pixels > _MOST_PIXELS:
        raise OptionError(
            f"the picture would have {pixels / 1e6:.0f} million pixels, more than "
            f"{_MOST_PIXELS / 1e6:.0f}: choose one layer with --layer, fewer heads with --head, or "
            "--style lines."
        )
    return Figure(figsize=(width, height), layout="constrained")


def _widest(tokens: Sequence[str]) -> float:
    """Return the width of the longest token in inches."""
    return _CHARACTER * max(map(len, tokens))


def _title(attention: AttentionMap, layer: int) -> str:
    names = {
        "encoder": "encoder self-attention",
        "decoder": "decoder self-attention",
        "cross": "cross-attention",
    }
    return f"{names[attention.kind]}, layer {layer} of {len(attention.weights)}"


# ---- lines ----


def _draw_lines(attention: AttentionMap, layers: Sequence[int], heads: Sequence[int]) -> Figure:
    panel = _HEIGHT_OF_LINES + _widest(attention.query) + _widest(attention.key)
    width = max(6.0, _TOKEN * max(len(attention.query), len(attention.key)) + _MARGIN)
    names = [f"head {head}" for head in heads]
    columns = legend_columns(names, width)
    legend = 0.25 * -(-len(heads) // columns)
    figure = _figure(width, len(layers) * (panel + _MARGIN) + legend)
    of_head = colours(attention.weights.shape[1])
    for axes, layer in zip(
        figure.subplots(len(layers), 1, squeeze=False).flat, layers, strict=True
    ):
        axes.set_title(_title(attention, layer))
        _write_tokens(axes, attention)
        for head in heads:
            weights: Weights = attention.weights[layer - 1, head - 1].numpy()
            axes.add_collection(_lines(weights, of_head[head - 1]))
    handles = [Line2D([], [], color=of_head[head - 1]) for head in heads]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _positions(count: int) -> npt.NDArray[np.float64]:
    """Return the positions of a row of tokens on the x-axis, from 0 to 1."""
    return (np.arange(count) + 0.5) / count


def _write_tokens(axes: Axes, attention: AttentionMap) -> None:
    """Write the tokens as tick labels above and below, for which the layout reserves space."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_yticks([])
    above = axes.secondary_xaxis("top")
    for side, tokens in ((above, attention.query), (axes, attention.key)):
        side.set_xticks(_positions(len(tokens)), tokens, fontsize=_FONT_SIZE, parse_math=False)
        side.tick_params(axis="x", labelrotation=90, length=0)
        side.spines[:].set_visible(False)


def _lines(weights: Weights, colour: Colour) -> LineCollection:
    """Draw lines from each query, at height 1, to the keys, at height 0.

    Args:
        weights: [T, S].
        colour: Colour of the head.
    """
    rows, columns = np.nonzero(weights >= _LEAST_OPACITY)
    above, below = _positions(weights.shape[0])[rows], _positions(weights.shape[1])[columns]
    ends = np.stack((above, np.ones_like(above), below, np.zeros_like(below)), axis=1)
    opacity = np.minimum(weights[rows, columns], 1.0)  # rounding may exceed 1
    return LineCollection(
        list(ends.reshape(-1, 2, 2)), colors=[(*colour, float(share)) for share in opacity]
    )


# ---- heat maps ----


def _draw_matrices(attention: AttentionMap, layers: Sequence[int], heads: Sequence[int]) -> Figure:
    rows, columns = _TOKEN * len(attention.query), _TOKEN * len(attention.key)
    width = max(columns, 2.5) + _widest(attention.query) + _MARGIN
    height = max(rows, 1.0) + _widest(attention.key) + _MARGIN
    figure = _figure(len(heads) * width + _MARGIN, len(layers) * height)
    figure.set_layout_engine("compressed")  # for panels of a fixed shape
    grid = figure.subplots(len(layers), len(heads), squeeze=False)
    for axes_of_layer, layer in zip(grid, layers, strict=True):
        for axes, head in zip(axes_of_layer, heads, strict=True):
            _draw_matrix(axes, attention, attention.weights[layer - 1, head - 1].numpy())
            axes.set_title(f"{_title(attention, layer)},\nhead {head}", fontsize=_FONT_SIZE + 1)
    scale = grid[0, 0].get_images()[0]
    figure.colorbar(scale, ax=grid, label="weight", shrink=0.6)
    return figure


def _draw_matrix(axes: Axes, attention: AttentionMap, weights: Weights) -> None:
    axes.imshow(weights, cmap="Blues", vmin=0.0, vmax=1.0)
    for set_ticks, tokens in ((axes.set_xticks, attention.key), (axes.set_yticks, attention.query)):
        set_ticks(range(len(tokens)), tokens, fontsize=_FONT_SIZE, parse_math=False)
    axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel("key")
    axes.set_ylabel("query")
