"""Pictures as files: matplotlib figures, made without pyplot, whose state is shared by everyone."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.atomic_files import clear_leftovers, write_bytes_atomically
from translate_trt.runtime.io.outputs import check_apart, check_file

log = logging.getLogger("translate_trt")

FORMATS = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 100

_CREATOR = "translate-trt"  # in the metadata of each picture

Colour = tuple[float, float, float]

#: Mid tones, which stand out from white paper and from dark pages.
PALETTE = (
    "#2f7fc2", "#d0661e", "#2a9a68", "#a05fc8", "#d0457b",
    "#8a7d1f", "#1c9aa8", "#8f6648", "#6b7f99", "#c0413a",
)  # fmt: skip
#: Colour of text and axes on a page whose background is unknown.
INK = "#76808c"

_MISSING_GLYPH = re.compile(r"Glyph (\d+) .*missing from")


def check_picture(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Find out, before any work is done, whether a picture can be written to `path`.

    Args:
        path: of the file; its ending names the format.
        force: it may replace a picture that `save_picture` made.
        inputs: what it shows.

    Raises:
        OptionError: the ending is none of `FORMATS`.
        OutputError: the path is taken, or in an input, or its directory is not there.
    """
    if path.suffix.lower() not in FORMATS:
        raise OptionError(
            f"{path}: a picture's name ends in {', '.join(FORMATS)}; give such a one."
        )
    check_apart(path, inputs)
    check_file(path, force, _is_picture, "a picture of translate-trt")


def _is_picture(sample: bytes) -> bool:
    """By the program that it names; pictures of earlier versions name matplotlib alone."""
    return sample.startswith((b"\x89PNG", b"<?xml", b"%PDF-")) and (
        _CREATOR.encode() in sample or b"Matplotlib" in sample
    )


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure in the format that the ending of `path` names, whole or not at all.

    Characters that the font lacks come out as boxes; one warning lists them.

    Raises:
        OutputError: the disk is full, or the path may not be written.
    """
    FigureCanvasAgg(figure)  # attaches itself: what the layout measures text with
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = path.suffix[1:].lower()
        creator = {("Software" if kind == "png" else "Creator"): _CREATOR}
        figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=creator)
    _tell(str(warning.message) for warning in caught)
    clear_leftovers(path)
    write_bytes_atomically(path, content.getvalue())


def _tell(messages: Iterable[str]) -> None:
    """Pass on matplotlib's warnings; those of missing glyphs, many of each, become one."""
    lacking: dict[str, None] = {}
    others: dict[str, None] = {}
    for message in messages:
        match = _MISSING_GLYPH.search(message)
        if match:
            lacking[chr(int(match[1]))] = None
        else:
            others[message] = None
    if lacking:
        log.warning(
            "the font has no %s: boxes are drawn instead. Name a font that has them as font.family "
            "in a matplotlibrc file.", " ".join(lacking),
        )  # fmt: skip
    for message in others:
        log.warning("matplotlib: %s", message)


def plain_axes(axes: Axes, ink: str = "black") -> None:
    """Leave of the axes what is read: two lines, their numbers, and a faint grid."""
    axes.grid(alpha=0.25, linewidth=0.6, color=ink)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.tick_params(which="both", colors=ink)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(ink)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return how many columns of a legend fit into that width, at least one."""
    column = 0.8 + 0.1 * max(map(len, labels))  # a sample of the line, and about 0.1 a character
    return max(1, min(len(labels), int(inches / column)))


def colours(count: int) -> list[Colour]:
    """Return that many different colours, as far apart as possible."""
    if count <= len(PALETTE):
        return [to_rgb(name) for name in PALETTE[:count]]
    table = matplotlib.colormaps["tab20" if count <= 20 else "turbo"]
    positions = range(count) if count <= 20 else [index / (count - 1) for index in range(count)]
    found = [table(position) for position in positions]  # an integer is an index, a float a share
    return [(red, green, blue) for red, green, blue, _ in found]
