"""Pages that are generated from all reports."""

from __future__ import annotations

import re

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
    assert len(tables) > 45
    for table in tables:
        widths = {line.count(" | ") for line in table.splitlines()}
        assert len(widths) == 1, table
    shown = {name for one in (*declared["pages"]["sections"], *declared["pages"]["parts"])
             for name in one["reports"]}  # fmt: skip
    assert set(reports) <= shown
