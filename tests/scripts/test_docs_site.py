"""The documentation site: its navigation has every page, and it builds without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.paths import ROOT
from support.scripts import run_script

CONFIGURATION = ROOT / "mkdocs.yml"


def test_every_page_is_in_the_navigation() -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    listed = re.findall(r"([\w/-]+\.md)$", text.partition("\nnav:\n")[2], re.MULTILINE)
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(page for page in pages if not page.startswith("adr/"))


@pytest.mark.nightly
def test_the_site_builds(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed")
    done = run_script("docs.sh", tmp_path / "site")
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site/reference/runtime/index.html").read_text(encoding="utf-8")
    for name in ("Translator.translate_iter", "TranslationService.submit", "SearchOptions"):
        assert name in page
