"""Text tables and remarks for reports."""

from __future__ import annotations

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format the rows of a table as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def engine_not_run_note(reason: str) -> str:
    """Describe evidence from the CPU for a target that is made for GPUs."""
    return f"on a CPU, because the target did not run on a GPU: {reason}"
