"""Encodings that documents with markup declare."""

from __future__ import annotations

import re

from translate_trt.runtime.errors import InputError

# Declarations of an encoding, which browsers look for in the first 1,024 bytes of HTML.
_ENCODINGS = {
    "xml": re.compile(r"""\ufeff?\s*<\?xml\s[^>]*?\bencoding\s*=\s*["'](?P<encoding>[^"'>]*)"""),
    "html": re.compile(
        r"""(?s:.{0,1024}?)<meta\s[^>]*?\bcharset\s*=\s*["']?(?P<encoding>[\w:-]+)""", re.IGNORECASE
    ),
}


def check_encoding(text: str, markup: str, name: str) -> None:
    """Refuse a document whose declaration names another encoding than UTF-8, in which it is stored.

    Args:
        text: The document.
        markup: Kind of markup.
        name: Name of the document in error messages.

    Raises:
        InputError: Readers of the translation would take it for text in that encoding.
    """
    found = _ENCODINGS[markup].match(text) if markup in _ENCODINGS else None
    if found is not None and found["encoding"].lower() not in ("utf-8", "utf8"):
        raise InputError(
            f"{name} declares the encoding {found['encoding']}, and is read and written in UTF-8; "
            "correct its declaration."
        )
