"""Hooks of MkDocs: links to files outside of docs/ lead to GitHub, and decisions are listed.

Pages link to sources as GitHub shows them (`../export/passes/base.py`). Those files are not on the
site.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def on_config(config: Any, **_: Any) -> None:
    """Append docs/adr/ to the navigation, under the titles of its pages."""
    decisions = sorted(path.name for path in Path(config["docs_dir"], "adr").glob("*.md"))
    config["nav"].append({"Decisions": [f"adr/{name}" for name in decisions]})


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite relative links that leave docs/; unknown files stay, and MkDocs reports them."""
    source = Path(page.file.abs_src_path)

    def rewritten(match: re.Match[str]) -> str:
        before, link, after = match.groups()
        if ":" in link or link.startswith("/"):
            return match.group()
        target = (source.parent / link).resolve()
        if target.is_relative_to(config["docs_dir"]) and target.is_file():
            return match.group()
        if not target.is_relative_to(ROOT) or not target.exists():
            return match.group()
        kind = "tree" if target.is_dir() else "blob"
        path = target.relative_to(ROOT).as_posix()
        return f"{before}{config['repo_url']}/{kind}/main/{path}{after}"

    return LINK.sub(rewritten, markdown)
