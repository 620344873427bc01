"""Tables of the C++ library that scripts write."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

_WIDTH = 100


def table(comment: str, kind: str, name: str, rows: Iterable[str]) -> str:
    """Return the definition of an array in C++.

    Args:
        comment: Comment before it.
        kind: Type of its elements.
        name: Name of the array.
        rows: The values of each element, separated by commas.
    """
    lines, line = [f"// {comment}", f"constexpr {kind} {name}[] = {{"], "   "
    for row in rows:
        cell = f" {{{row}}},"
        if len(line) + len(cell) > _WIDTH:
            lines.append(line)
            line = "   "
        line += cell
    return "\n".join([*lines, line, "};"])


def write_or_check(path: Path, content: str, description: str | None) -> None:
    """Write a file of tables; with --check on the command line, compare it instead.

    Args:
        path: Path of the file, relative to the repository.
        content: Content of the file.
        description: Docstring of the script.
    """
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if parser.parse_args().check:
        if (ROOT / path).read_text(encoding="utf-8") != content:
            raise SystemExit(f"{path} is not that of this Python; see {Path(sys.argv[0]).name}")
        return
    (ROOT / path).write_text(content, encoding="utf-8")
    print(f"wrote {path}")
