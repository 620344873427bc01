"""Text without anything to translate: numbers, dates, prices, time codes, addresses.

The library does the same in runtime/cpp/src/text/translatable.cc.
"""

from __future__ import annotations

import re

# ASCII only: text of a language without spaces may follow a URL.
_ADDRESS = re.compile(
    r"(?:(?:https?|ftp)://|www\.)[!-~]+ | (?:mailto:)?[\w.+-]+@[\w-]+(?:\.[\w-]+)+",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
# What would end a line of output, and surrogates, which UTF-8 cannot contain.
_NOT_IN_A_LINE = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]")


def is_translatable(text: str) -> bool:
    """Return whether a text has a letter (Unicode category L), and is no URL or e-mail address."""
    return any(map(str.isalpha, text)) and not _ADDRESS.fullmatch(text.strip())


def untranslated(line: str) -> str:
    """Return the translation of a line that is not translatable: itself, or nothing if blank."""
    return _NOT_IN_A_LINE.sub(" ", line) if line.strip() else ""
