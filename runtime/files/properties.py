r"""Properties of Java.

Files that are not UTF-8 are ISO 8859-1. In these and in files of ASCII alone, other characters are
written as \u escapes, which all versions of Java read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.resources import TextSource, Values, join_surrogates
from translate_trt.runtime.files.segments import FileText, ReadOptions

_END = r"(?:\r\n|\r|\n|\Z)"
_VALUE = r"(?:[^\\\r\n]|\\(?:\r\n|[^\r]|\r|\Z))*"
_LINE = re.compile(
    rf"[ \t\f]*(?:[#!][^\r\n]*|(?P<key>(?:[^\\\s:=]|\\(?:\r\n|.|\r|\n|\Z))*)"
    rf"[ \t\f]*(?:\\(?:\r\n|\r|\n)[ \t\f]*)*[:=]?[ \t\f]*(?P<value>{_VALUE})){_END}",
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|((?:\r\n|\r|\n)[ \t\f]*)|(.)|\Z)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
_WRITTEN = {value: f"\\{letter}" for letter, value in _ESCAPES.items()} | {"\\": "\\\\"}


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a file: the values of all keys."""
    if options.encoding is None:
        try:
            content.decode("utf-8")
        except UnicodeDecodeError:
            if not content.startswith((b"\xff\xfe", b"\xfe\xff")):
                options = replace(options, encoding="latin-1")
    source = TextSource(content, options)
    encoding = "ascii" if content.isascii() else source.encoding.name
    values, at = Values(options), 0
    while at < len(source.text):
        found = _LINE.match(source.text, at)
        assert found is not None
        at = found.end()
        if found["value"]:
            raw = found["value"]
            put = partial(_put, source, *found.span("value"), raw, encoding)
            line = source.line(found.start())
            values.add(_unescaped(raw, line), put, _unescaped(found["key"], line), java=True)
    return values.file_text(source.render)


def _unescaped(raw: str, line: int) -> str:
    def character(found: re.Match[str]) -> str:
        code, _, letter = found.groups()
        if code is not None:
            return chr(int(code, 16))
        if letter == "u":
            raise InputError(f"has an incomplete \\u escape in the entry at line {line}.")
        return "" if letter is None else _ESCAPES.get(letter, letter)

    if "\\" not in raw:
        return raw
    return join_surrogates(_ESCAPED.sub(character, raw))


def _put(source: TextSource, start: int, end: int, raw: str, encoding: str, text: str) -> None:
    """Replace a value by a text, whose lines are continued if those of the value are."""
    continued = re.search(r"\\n(\\(?:\r\n|\r|\n)[ \t\f]*)", raw)
    written = ""
    for number, line in enumerate(text.split("\n")):
        if number:
            written += "\\n" + (continued[1] if continued and line else "")
        if line[:1] == " " and (continued or not number):
            written += "\\"
        for one in line:
            try:
                one.encode(encoding)
                written += _WRITTEN.get(one, one)
            except UnicodeEncodeError:
                units = one.encode("utf-16-be")
                written += "".join(
                    f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)
                )
    source.replace(start, end, written)
