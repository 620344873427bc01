"""Write the Unicode tables of the C++ library, from those of Python.

    python scripts/unicode_tables.py [--check]

The tables have the Unicode version of the Python that runs this script; characters that other
versions know are no letters in the library.
"""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from cpp_tables import table, write_or_check

from translate_trt.runtime.text.sentences import is_unspaced

TABLES = Path("runtime/cpp/src/text/unicode_tables.inc")

_HANGUL = range(0xAC00, 0xD7A4)  # syllables, which are composed by arithmetic
_SURROGATES = range(0xD800, 0xE000)  # which UTF-8 cannot contain


def joins(character: str) -> bool:
    """Return whether no word of a glossary ends between this character and another such one."""
    in_word = character == "_" or unicodedata.category(character)[0] in "LMN"
    return in_word and not is_unspaced(character)


def _characters() -> Iterator[str]:
    return (chr(code) for code in range(sys.maxunicode + 1) if code not in _SURROGATES)


def runs(value: Callable[[str], int]) -> list[tuple[int, int, int]]:
    """Return the first and last code point of each run of characters of one value, and the value.

    Characters of value 0 are left out.
    """
    found: list[tuple[int, int, int]] = []
    for character in _characters():
        if not (own := value(character)):
            continue
        code = ord(character)
        if found and found[-1][1:] == (code - 1, own):
            found[-1] = found[-1][0], code, own
        else:
            found.append((code, code, own))
    return found


def properties(character: str) -> int:
    """Return the properties of a character, one per bit, as unicode.cc numbers them."""
    held = (
        unicodedata.category(character)[0] == "M",
        character.isalpha(),
        character.isalnum(),
        joins(character),
        is_unspaced(character),
    )
    return sum(holds << bit for bit, holds in enumerate(held))


def decompositions() -> list[tuple[int, int, int, int]]:
    """Return each character with its canonical decomposition of one step.

    Returns:
        The character, the one or two (else 0) of its decomposition, and 1 if NFC composes these.
    """
    found = []
    for character in _characters():
        parts = unicodedata.decomposition(character).split()
        if not parts or parts[0].startswith("<") or ord(character) in _HANGUL:
            continue
        codes = [int(part, 16) for part in parts]
        text = "".join(map(chr, codes))
        composes = len(codes) == 2 and unicodedata.normalize("NFC", text) == character
        found.append((ord(character), codes[0], codes[1] if len(codes) > 1 else 0, int(composes)))
    return found


def foldings() -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """Return what str.casefold changes.

    Returns:
        First and last of each run of characters 1 or 2 apart that are replaced by the characters as
        far from them, the distance within the run, and how far; and each character that becomes two
        or three, with these.
    """
    found: list[tuple[int, ...]] = []
    longer = []
    for character in _characters():
        folded, code = character.casefold(), ord(character)
        if len(folded) > 1:
            assert len(folded) <= 3
            longer.append((code, *(*map(ord, folded), 0)[:3]))
        elif folded != character:
            far = ord(folded) - code
            first, last, step, before = found[-1] if found else (0, -9, 1, 0)
            if before == far and code - last in ((1, 2) if first == last else (step,)):
                found[-1] = first, code, code - last, far
            else:
                found.append((code, code, 1, far))
    return found, longer


def _table(comment: str, kind: str, name: str, rows: Iterable[tuple[int, ...]]) -> str:
    return table(comment, kind, name, (", ".join(map(hex, row)) for row in rows))


def tables() -> str:
    """Return the content of the file."""
    version = unicodedata.unidata_version
    runs_of_foldings, longer = foldings()
    return "\n\n".join(
        [
            f"// Unicode {version}, made by scripts/unicode_tables.py.",
            f'constexpr const char* kUnicodeVersion = "{version}";',
            _table("Properties: first, last, bits.", "Properties", "kProperties", runs(properties)),
            _table("Combining classes that are not 0: first, last, class.", "ClassRange",
                   "kCombiningClasses", runs(unicodedata.combining)),
            _table("Canonical decompositions: character, its one or two parts, whether they "
                   "compose.", "Decomposition", "kDecompositions", decompositions()),
            _table("Case folding by distance: first, last, the distance within the run, how far.",
                   "FoldingRun", "kFoldingRuns", runs_of_foldings),
            _table("Case folding: character, and the two or three that replace it.", "Folding",
                   "kFoldings", longer),
        ]
    ) + "\n"  # fmt: skip


if __name__ == "__main__":
    write_or_check(TABLES, tables(), __doc__)
