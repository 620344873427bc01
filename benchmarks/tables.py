"""Markdown: tables, the description of a machine, and generated parts of pages; their inputs."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

END = "<!-- end -->"


def table(header: list[str], rows: list[list[str]]) -> str:
    """Format a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def read_inputs(kind: type[T], description: str | None) -> T:
    """Read the fields of a dataclass, all of which have defaults, from the command line."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for field in dataclasses.fields(kind):
        options.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(field.default), default=field.default
        )
    return kind(**vars(options.parse_args()))


def where(report: dict[str, Any]) -> str:
    """Describe date, machine and versions in a sentence."""
    machine, versions = report["machine"], report["versions"]
    shown = ("torch", "onnxruntime", "joeynmt", "ctranslate2", "pymarian", "ray", "transformers")
    packages = ", ".join(f"{name} {versions[name]}" for name in shown if name in versions)
    kernels = machine.get("kernels", "none")  # old reports lack the entry
    # The reason after "none" is left out.
    compiled = "" if kernels.startswith("none") else f", compiled kernels {kernels}"
    limited = "".join(f", {name}={value}" for name, value in machine.get("limits", {}).items())
    return f"{report['date']}, {' and '.join(machines_of(report))}, {packages}{compiled}{limited}."


def machines_of(report: dict[str, Any]) -> list[str]:
    """Describe the processors of the machines that a report is from."""
    one = report["machine"]
    name = f"{one['cores']} cores of {one['cpu']} ({', '.join(one['instructions'])})"
    machines: list[str] = report.get("machines", [name])
    return machines


def fill(page: Path, name: str, content: str) -> None:
    """Replace the part of a page between the marks of that name.

    Raises:
        ValueError: The page has no such marks.
    """
    begin = f"<!-- {name}{', ' if name else ''}made by benchmarks/render.py -->"
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{page} has no part between {begin} and {END}; put both there.")
    page.write_text(f"{before}{begin}\n{content}{END}{after}", encoding="utf-8")
