"""Pictures of attention weights: lines as in the paper's appendix, or heat maps."""

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

# Beyond it lines and pieces become a texture, also in a picture large enough to hold them.
MOST_PIECES = 128
# Matplotlib holds four bytes for each; 60 million are about ten thousand by six thousand.
_MOST_PIXELS = 60_000_000

_PIECE = 0.24  # inches from one piece to the next
_CHARACTER = 0.09  # inches, about, of a character of a piece
_HEIGHT_OF_LINES = 2.4  # inches between the pieces that look and those looked at
_MARGIN = 0.9  # inches around a panel, for its title and the names of the axes
_FONT_SIZE = 9

# A line of less opacity does not change a pixel of 8 bits.
_LEAST_OPACITY = 1 / 256

Weights = npt.NDArray[np.float32]


def draw_attention(
    attention: AttentionMap, layers: Sequence[int], heads: Sequence[int], style: str
) -> Figure:
    """A picture of some layers and heads.

    Args:
        attention: what to draw.
        layers: numbers of layers, the bottom one is 1.
        heads: numbers of heads, from 1.
        style: `lines`: a panel for each layer, the pieces that look above, those looked at below,
            between them lines whose opacity is the weight, a colour for each head (the paper's
            figures 3 to 5). `matrix`: a panel for each layer and head, a row for each piece that
            looks.

    Raises:
        OptionError: too many pieces or panels for a picture.
    """
    longest = max(len(attention.query), len(attention.key))
    if longest > MOST_PIECES:
        raise OptionError(
            f"{longest} pieces cannot be drawn legibly, up to {MOST_PIECES} can: shorten the "
            "sentence, or take the numbers with --json, without --output."
        )
    draw = _draw_lines if style == "lines" else _draw_matrices
    return draw(attention, layers, heads)


def _figure(width: float, height: float) -> Figure:
    """An empty figure of that size in inches."""
    pixels = int(width * height * DOTS_PER_INCH**2)
    if pixels > _MOST_PIXELS:
        raise OptionError(
            f"the picture would have {pixels / 1e6:.0f} million pixels, more than "
            f"{_MOST_PIXELS / 1e6:.0f}: choose one layer with --layer, fewer heads with --head, or "
            "--style lines."
        )
    return Figure(figsize=(width, height), layout="constrained")


def _inches_of(pieces: Sequence[str]) -> float:
    """Of the longest piece."""
    return _CHARACTER * max(map(len, pieces))


def _title(attention: AttentionMap, layer: int) -> str:
    names = {
        "encoder": "encoder self-attention",
        "decoder": "decoder self-attention",
        "cross": "cross-attention",
    }
    return f"{names[attention.kind]}, layer {layer} of {len(attention.weights)}"


# ---- lines ----


def _draw_lines(attention: AttentionMap, layers: Sequence[int], heads: Sequence[int]) -> Figure:
    panel = _HEIGHT_OF_LINES + _inches_of(attention.query) + _inches_of(attention.key)
    width = max(6.0, _PIECE * max(len(attention.query), len(attention.key)) + _MARGIN)
    names = [f"head {head}" for head in heads]
    columns = legend_columns(names, width)
    legend = 0.25 * -(-len(heads) // columns)
    figure = _figure(width, len(layers) * (panel + _MARGIN) + legend)
    of_head = colours(attention.weights.shape[1])
    for axes, layer in zip(
        figure.subplots(len(layers), 1, squeeze=False).flat, layers, strict=True
    ):
        axes.set_title(_title(attention, layer))
        _write_pieces(axes, attention)
        for head in heads:
            weights: Weights = attention.weights[layer - 1, head - 1].numpy()
            axes.add_collection(_lines(weights, of_head[head - 1]))
    handles = [Line2D([], [], color=of_head[head - 1]) for head in heads]
    figure.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _places(count: int) -> npt.NDArray[np.float64]:
    """Where on the x-axis, from 0 to 1, the pieces of a row stand."""
    return (np.arange(count) + 0.5) / count


def _write_pieces(axes: Axes, attention: AttentionMap) -> None:
    """As the labels of ticks above and below, so that the layout makes room for them."""
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_yticks([])
    above = axes.secondary_xaxis("top")
    for side, pieces in ((above, attention.query), (axes, attention.key)):
        side.set_xticks(_places(len(pieces)), pieces, fontsize=_FONT_SIZE, parse_math=False)
        side.tick_params(axis="x", labelrotation=90, length=0)
        side.spines[:].set_visible(False)


def _lines(weights: Weights, colour: Colour) -> LineCollection:
    """Lines from each piece that looks, at height 1, to those looked at, at height 0.

    Args:
        weights: [T, S].
        colour: of the head.
    """
    rows, columns = np.nonzero(weights >= _LEAST_OPACITY)
    above, below = _places(weights.shape[0])[rows], _places(weights.shape[1])[columns]
    ends = np.stack((above, np.ones_like(above), below, np.zeros_like(below)), axis=1)
    opacity = np.minimum(weights[rows, columns], 1.0)  # rounding may leave a little more than 1
    return LineCollection(
        list(ends.reshape(-1, 2, 2)), colors=[(*colour, float(share)) for share in opacity]
    )


# ---- heat maps ----


def _draw_matrices(attention: AttentionMap, layers: Sequence[int], heads: Sequence[int]) -> Figure:
    rows, columns = _PIECE * len(attention.query), _PIECE * len(attention.key)
    width = max(columns, 2.5) + _inches_of(attention.query) + _MARGIN
    height = max(rows, 1.0) + _inches_of(attention.key) + _MARGIN
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
    for set_ticks, pieces in ((axes.set_xticks, attention.key), (axes.set_yticks, attention.query)):
        set_ticks(range(len(pieces)), pieces, fontsize=_FONT_SIZE, parse_math=False)
    axes.tick_params(axis="x", labelrotation=90)
    axes.set_xlabel("looked at (key)")
    axes.set_ylabel("looking (query)")
