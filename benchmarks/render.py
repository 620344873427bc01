"""Write docs/results.md, and the generated parts of other pages, from benchmarks/results/.

    python benchmarks/render.py

`tables.toml` declares the tables. Every run overwrites them: to change a number, measure again.

Expressions of the tables are Python's; they have FUNCTIONS and the names of the report.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import derived
import plots
from harness import ROOT, machines_of, read_reports, shown

END = "<!-- end -->"
#: Packages whose versions stand beside the figures of reports with a word.
_PACKAGES = {"torch": "", "onnxruntime": "", "ctranslate2": "ctranslate2",
             "pymarian": "marian", "ray": "shard", "transformers": "transformers"}  # fmt: skip


class View(dict[str, Any]):
    """JSON object whose entries are attributes, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def view(value: Any) -> Any:
    """Return JSON values with objects as `View`."""
    if isinstance(value, Mapping):
        return View({name: view(one) for name, one in value.items()})
    return [view(one) for one in value] if isinstance(value, list) else value


# ---- functions of the declarations ----


def mib(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 2**20:,.0f} MiB"


def optional(shape: str, value: Any) -> str:
    """Format a value; nothing for None and for False."""
    return "" if value is None or value is False else shape.format(value)


def plural(count: int, noun: str) -> str:
    """Format a number of things."""
    return f"{count:,} {noun}{'s' * (int(count) != 1)}"


def model(shape: Any) -> str:
    """Describe the shape of a model."""
    return (
        f"{shape.encoder_layers}+{shape.decoder_layers} layers, d_model {shape.d_model}, "
        f"d_ff {shape.d_ff}, {shape.heads} heads, vocabulary {shape.vocabulary_size:,}"
    )


def where(report: Mapping[str, Any]) -> str:
    """Describe date, machine and versions in a sentence."""
    machine, versions = report["machine"], report["versions"]
    text = str([report.get(part) for part in ("benchmark", "settings", "results")]).lower()
    used = [name for name, word in _PACKAGES.items() if name in versions and word in text]
    packages = ", ".join(f"{name} {versions[name]}" for name in used)
    kernels = machine.get("kernels", "none")  # old reports lack the entry
    # The reason after "none" is left out.
    compiled = "" if kernels.startswith("none") else f", compiled kernels {kernels}"
    limited = "".join(f", {name}={value}" for name, value in machine.get("limits", {}).items())
    return f"{report['date']}, {' and '.join(machines_of(report))}, {packages}{compiled}{limited}."


FUNCTIONS: dict[str, Any] = {
    **{name: one for name, one in vars(derived).items() if not name.startswith("_")},
    "commas": lambda numbers: ", ".join(f"{number:,}" for number in numbers),
    "first": lambda values: next(iter(values)),
    "last": lambda values: list(values.values())[-1],
    "lines": "\n".join,
    "ratio": shown,
    **{one.__name__: one for one in (mib, model, optional, plural)},
}


def evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """Return the value of an expression of tables.toml, which is code of this repository."""
    return eval(expression, {**names})


# ---- layouts ----


def _template(text: str, clause: str = "") -> str:
    """Return the expression of an f-string, which a clause may repeat or leave out."""
    if clause.startswith("if "):
        clause = f"for _ in (0,) {clause}"
    return f"*(f'''{text}''' {clause})" if clause else f"f'''{text}'''"


def table(declared: Mapping[str, Any], names: Mapping[str, Any], **more: Any) -> str:
    """Render a declared table in Markdown."""
    names = {**names, **more}
    columns = [(header, cell, *clause) for header, cell, *clause in declared["columns"]]
    header = ", ".join(_template(header, *clause) for header, _, *clause in columns)
    cells = ", ".join(_template(cell, *clause) for _, cell, *clause in columns)
    heads = evaluate(f"[{header}]", names)
    rows = evaluate(f"[[{cells}] {declared['rows']}]", names)
    found = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in found)


def render(layout: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> str:
    """Render reports by a layout."""
    shown = [view(one) for one in reports]
    report = shown[0]
    note = report.get("settings", {}).get("note")
    names: dict[str, Any] = FUNCTIONS | {
        "layout": view(layout), "report": report, "reports": shown,
        "settings": report.get("settings"), "results": report.get("results"),
        "note": f" {note}" if note else "",
        "where": where(report) if "versions" in report else "",
    }  # fmt: skip
    for name, expression in layout.get("let", {}).items():
        names[name] = evaluate(expression, names)
    tables = {"table": layout, **layout.get("tables", {})}
    names |= {name: functools.partial(table, one, {**names}) for name, one in tables.items()}

    def text(name: str = "text") -> str:
        return str(evaluate(_template(layout[name].strip("\n")), names)).rstrip()

    names["text"] = text
    return f"{text()}\n"


def page_of_results(declared: Mapping[str, Any], reports: Mapping[str, Any]) -> str:
    """Render the page of all results."""
    parts = [declared["head"].strip() + "\n"]
    for section in declared["pages"]["sections"]:
        if "group" in section:
            parts.append(f"## {section['group']}\n")
        if section["reports"][0] in reports:
            intro = f"{section['intro'].strip()}\n\n" if "intro" in section else ""
            found = [reports[name] for name in section["reports"] if name in reports]
            shown = render(declared["layouts"][section["layout"]], found)
            parts.append(f"### {section['title']}\n\n{intro}{shown}")
    return "\n".join(parts)


def fill(page: Path, mark: str, content: str) -> None:
    """Replace the part of a page between the marks of that name.

    Raises:
        ValueError: The page has no such marks.
    """
    begin = f"<!-- {mark}, made by benchmarks/render.py -->"
    text = page.read_text(encoding="utf-8")
    before, found, rest = text.partition(begin)
    _, ended, after = rest.partition(END)
    if not (found and ended):
        raise ValueError(f"{page} has no part between {begin} and {END}; put both there.")
    page.write_text(f"{before}{begin}\n{content}{END}{after}", encoding="utf-8")


def declarations() -> dict[str, Any]:
    """Read tables.toml."""
    return tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))


def text_of(name: str, reports: Iterable[Mapping[str, Any]]) -> str:
    """Render reports by the layout of that name."""
    return render(declarations()["layouts"][name], list(reports))


def main() -> None:
    """Render the newest report of every kind."""
    declared, reports = declarations(), read_reports()
    (ROOT / "docs/results.md").write_text(page_of_results(declared, reports), encoding="utf-8")
    for part in declared["pages"]["parts"]:
        if all(name in reports for name in part["reports"]):
            layout = declared["layouts"][part["layout"]]
            shown = render(layout, [reports[name] for name in part["reports"]])
            fill(ROOT / part["page"], part["mark"], shown)
    for one in (*declared["pages"]["sections"], *declared["pages"]["parts"]):
        if "plot" in one and one["reports"][0] in reports:
            plots.DRAWINGS[one["plot"]](reports[one["reports"][0]])


if __name__ == "__main__":
    main()
