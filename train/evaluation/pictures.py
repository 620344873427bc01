"""Saving of matplotlib figures, without pyplot and its global state."""

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
# Metadata of a picture by format, without its date.
_METADATA = {
    "png": {"Software": _CREATOR},
    "svg": {"Creator": _CREATOR, "Date": None},
    "pdf": {"Creator": _CREATOR, "CreationDate": None},
}  # fmt: skip

Colour = tuple[float, float, float]

#: Mid tones, legible on light and dark backgrounds.
PALETTE = (
    "#2f7fc2", "#d0661e", "#2a9a68", "#a05fc8", "#d0457b",
    "#8a7d1f", "#1c9aa8", "#8f6648", "#6b7f99", "#c0413a",
)  # fmt: skip
#: Colour of text and axes on a page whose background is unknown.
INK = "#76808c"

_MISSING_GLYPH = re.compile(r"Glyph (\d+) .*missing from")


def check_picture(path: Path, force: bool, inputs: Iterable[Path] = ()) -> None:
    """Check, before any work, whether a picture can be written to `path`.

    Args:
        path: Path of the file; its ending selects the format.
        force: Replace a picture of `save_picture`.
        inputs: Inputs of the picture, which must not be overwritten.

    Raises:
        OptionError: The ending is not one of `FORMATS`.
        OutputError: The path exists or lies in an input, or its directory does not exist.
    """
    if path.suffix.lower() not in FORMATS:
        raise OptionError(f"{path}: the name of a picture must end in one of {', '.join(FORMATS)}.")
    check_apart(path, inputs)
    kinds, creator = (b"\x89PNG", b"<?xml", b"%PDF-"), _CREATOR.encode()
    check_file(
        path, force, lambda sample: sample.startswith(kinds) and creator in sample,
        "a picture of translate-trt",
    )  # fmt: skip


def save_picture(figure: Figure, path: Path) -> None:
    """Write a figure atomically, in the format of the ending of `path`.

    The same figure gives the same bytes.
    Characters that the font lacks are drawn as boxes, and listed in a warning.

    Raises:
        OutputError: The disk is full, or the path is not writable.
    """
    FigureCanvasAgg(figure)  # attaches itself to the figure; the layout needs it to measure text
    content = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = path.suffix[1:].lower()
        with matplotlib.rc_context({"svg.hashsalt": _CREATOR}):  # else ids are random
            figure.savefig(content, format=kind, dpi=DOTS_PER_INCH, metadata=_METADATA[kind])
    _log_warnings(str(warning.message) for warning in caught)
    clear_leftovers(path)
    write_bytes_atomically(path, content.getvalue())


def _log_warnings(messages: Iterable[str]) -> None:
    """Log matplotlib's warnings; those of missing glyphs are merged into one."""
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
            "the font has no %s: boxes are drawn instead. Choose a font that has them by "
            "font.family in a matplotlibrc file.", " ".join(lacking),
        )  # fmt: skip
    for message in others:
        log.warning("matplotlib: %s", message)


def plain_axes(axes: Axes, ink: str = "black") -> None:
    """Reduce axes to two spines with tick labels and a faint grid."""
    axes.grid(alpha=0.25, linewidth=0.6, color=ink)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(ink)
    axes.tick_params(which="both", colors=ink)
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(ink)


def legend_columns(labels: Sequence[str], inches: float) -> int:
    """Return the number of legend columns that fit into a width in inches, at least 1."""
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
