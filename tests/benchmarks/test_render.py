"""Pages that are generated from all reports."""

from __future__ import annotations

import re

import pytest
from support.paths import ROOT


def test_every_report_is_rendered_into_whole_tables() -> None:
    from render import declarations, page_of_results, read_reports, render

    declared, reports = declarations(), read_reports()
    text = page_of_results(declared, reports)
    for part in declared["pages"]["parts"]:
        found = [reports[name] for name in part["reports"] if name in reports]
        if found:
            text += "\n" + render(declared["layouts"][part["layout"]], found)
        assert f"<!-- {part['mark']}, made by" in (ROOT / part["page"]).read_text(encoding="utf-8")
    assert not re.search(r"\b(None|nan|inf)\b|[{}]", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.M)
    assert len(tables) > 60
    for table in tables:
        widths = {line.count(" | ") for line in table.splitlines()}
        assert len(widths) == 1, table
    shown = {name for one in (*declared["pages"]["sections"], *declared["pages"]["parts"])
             for name in one["reports"]}  # fmt: skip
    assert set(reports) - shown == {"vocabulary-selection"}  # docs/shortlist.md has its figures


def test_expressions_are_a_subset_of_python() -> None:
    from render import evaluate

    names = {"one": {"a": [3, 1]}, "text": "abc", "total": 4}
    for expression, expected in {
        "[x * y for x in one['a'] if x > 1 for y in (1, 2)]": [3, 6],
        "f'{total / 3:.2f} {text.upper() if total in (4, 5) else 0}'": "1.33 ABC",
        "[*one['a'], *sorted(one['a'], key=lambda x: -x)][1:]": [1, 3, 1],
        "{key: not value for key, value in one.items()}": {"a": False},
        "total and '' or -total ** 2": -16,
    }.items():
        assert evaluate(expression, names) == expected
    for refused in ("text.__class__", "(total := 1)"):
        with pytest.raises(ValueError, match="cannot have"):
            evaluate(refused, names)
    with pytest.raises(KeyError):
        evaluate("open('file')", names)
