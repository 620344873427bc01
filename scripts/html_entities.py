"""Write the character references of HTML for the C++ library, from those of Python.

    python scripts/html_entities.py [--check]

The library decodes references as html.unescape does. The names are those of the HTML standard and
do not change any more.
"""

from __future__ import annotations

import html
import sys
from html.entities import html5
from pathlib import Path

from cpp_tables import table, write_or_check

TABLES = Path("runtime/cpp/src/text/html_entities.inc")

_SURROGATES = range(0xD800, 0xE000)  # which the library replaces without a table


def names() -> list[tuple[str, int, int]]:
    """Return each name in the order of its bytes, with the one or two (else 0) characters."""
    found = []
    for name, characters in sorted(html5.items()):
        first, second = (*map(ord, characters), 0)[:2]
        assert len(characters) <= 2
        assert name.isascii()
        found.append((name, first, second))
    return found


def replacements() -> list[tuple[int, int]]:
    """Return each number that does not refer to its own character, and the character or 0."""
    found = []
    for code in range(sys.maxunicode + 1):
        if code in _SURROGATES:
            continue
        decoded = html.unescape(f"&#{code};")
        if decoded != chr(code):
            found.append((code, ord(decoded) if decoded else 0))
    return found


def tables() -> str:
    """Return the content of the file."""
    longest = max(len(name) for name in html5 if not name.endswith(";"))
    named = (f'"{name}", {first:#x}, {second:#x}' for name, first, second in names())
    replaced = (f"{code:#x}, {character:#x}" for code, character in replacements())
    return "\n\n".join(
        [
            "// Made by scripts/html_entities.py.",
            f"constexpr std::size_t kLongestWithoutSemicolon = {longest};",
            table("Names, and the one or two (else 0) characters of each.", "NamedReference",
                   "kNamedReferences", named),
            table("Numbers that refer to another character, or to none (0).", "NumberedReference",
                   "kReplacedNumbers", replaced),
        ]
    ) + "\n"  # fmt: skip


if __name__ == "__main__":
    write_or_check(TABLES, tables(), __doc__)
