"""Catalogues of GNU gettext: PO and POT.

Translations of the program are marked "fuzzy", as translators expect of text without review:
editors list these entries, `msgfmt --use-fuzzy` compiles them, and `msgattrib --clear-fuzzy`
accepts them all. Entries that have a translation keep it, fuzzy or not, unless `overwrite`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from gettext import c2py
from typing import NamedTuple

from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.files.message_text import read_message
from translate_trt.runtime.files.resources import TextSource, Values, line_error
from translate_trt.runtime.files.segments import Encoding, FileText, ReadOptions
from translate_trt.runtime.text.languages import public_code

_TOKEN = re.compile(
    r"\s+|(?P<comment>#[^\r\n]*)|(?P<string>\"(?:[^\"\\\r\n]|\\.)*\")"
    r"|(?P<word>msgctxt|msgid_plural|msgid|msgstr|domain)"
    r"(?:[ \t]*\[[ \t]*(?P<index>\d{1,2})[ \t]*\])?"
)
_CHARSET = re.compile(rb"charset=([\w.:-]+)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
# Bytes of the charset, as msgcat --escape writes them, or a character.
_ESCAPED = re.compile(r"((?:\\(?:[0-7]{1,3}|x[0-9A-Fa-f]{1,2}))+)|\\(.)", re.DOTALL)
_WRITTEN = {value: f"\\{letter}" for letter, value in _ESCAPES.items()} | {
    "\\": "\\\\", '"': '\\"',
}  # fmt: skip
_WIDTH = 79

# A declaration of plural forms, and what must be equal for one form to take the other's place.
_DECLARED = re.compile(r"nplurals\s*=\s*([1-9])\s*;\s*plural\s*=\s*([^;\n]+)")
_PLACEHOLDER = re.compile(r"%\(\w+\)|%(?:\d+\$)?[-+#0-9.]*[A-Za-z]|\{[^{}]*\}")

# Plural forms of languages that have not the two of English, as msginit writes them.
_EAST_SLAVIC = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
_PLURAL_FORMS = {
    "id ja ka ko lo ms my th vi zh": (1, "0"),
    "am fa fr hi mg oc pt_BR ti tr wa": (2, "(n > 1)"),
    "be bs hr ru sr uk": (3, _EAST_SLAVIC),
    "cs sk": (3, "(n==1) ? 0 : (n>=2 && n<=4) ? 1 : 2"),
    "pl": (3, "n==1 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lt": (3, "n%10==1 && n%100!=11 ? 0 : n%10>=2 && (n%100<10 || n%100>=20) ? 1 : 2"),
    "lv": (3, "n%10==1 && n%100!=11 ? 0 : n != 0 ? 1 : 2"),
    "ro": (3, "n==1 ? 0 : (n==0 || (n%100 > 0 && n%100 < 20)) ? 1 : 2"),
    "ga": (3, "n==1 ? 0 : n==2 ? 1 : 2"),
    "sl": (4, "n%100==1 ? 0 : n%100==2 ? 1 : n%100==3 || n%100==4 ? 2 : 3"),
    "ar": (6, "n==0 ? 0 : n==1 ? 1 : n==2 ? 2 : n%100>=3 && n%100<=10 ? 3 : n%100>=11 ? 4 : 5"),
}


class _Plurals(NamedTuple):
    """Plural forms of a language.

    Attributes:
        size: Their number.
        expression: Expression of C for the form of a number `n`.
        one: The form of 1.
        is_alone: Whether 1 is the only number with its form.
    """

    size: int
    expression: str
    one: int = 0
    is_alone: bool = False

    @classmethod
    def of(cls, size: int, expression: str) -> _Plurals:
        try:
            form = c2py(expression.strip())
            forms = [form(number) for number in range(200)]
        except (ValueError, ArithmeticError):  # not an expression
            return cls(size, expression)
        return cls(size, expression, forms[1], forms.count(forms[1]) == 1)

    def source(self, form: int, singular: _Strings, plural: _Strings) -> _Strings:
        """Return the text whose translation a form is.

        It is the plural for all forms but that of 1, and also for that if the form has other
        numbers and the singular does not name the number, as in "One file".
        """
        names = (_PLACEHOLDER.findall(text.text) for text in (singular, plural))
        is_singular = self.is_alone or len({*map(frozenset, names)}) == 1
        return singular if form == self.one and self.size > 1 and is_singular else plural


class _Strings(NamedTuple):
    """Adjacent string tokens: where they are, and the text that they are."""

    start: int
    end: int
    text: str
    tokens: int


@dataclass
class _Entry:
    """An entry; offsets are those of its parts."""

    start: int
    flags: tuple[int, int] | None = None
    context: bool = False
    parts: dict[str, _Strings] = field(default_factory=dict)  # msgid and msgid_plural
    translations: dict[int, _Strings] = field(default_factory=dict)

    def is_header(self) -> bool:
        return not self.context and self.parts["msgid"].text == ""


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a catalogue: the entries without a translation, or all to overwrite them."""
    found = _CHARSET.search(content[:4096])
    if options.encoding is None and found and found[1] != b"CHARSET":
        try:
            options = replace(options, encoding=found[1].decode("ascii"))
        except OptionError as error:
            raise InputError(
                f"declares the charset {found[1].decode('ascii')}, which is unknown."
            ) from error
    source = TextSource(content, options)
    entries = [*_entries(source)]
    header = next((entry for entry in entries if entry.is_header()), None)
    declared = header.translations[0].text if header and 0 in header.translations else ""
    number = _DECLARED.search(declared)
    usual = _usual_plurals(options.target_language)
    plurals = _Plurals.of(int(number[1]), number[2]) if number else usual
    values, changed = Values(options), False
    for entry in entries:
        if entry is header or not any(one.text for one in entry.parts.values()):
            continue
        changed = _add_entry(source, entry, plurals, options.overwrite, values) or changed
    if not changed:
        return FileText((), lambda _: content)
    if header is not None:
        _complete_header(source, header, options.target_language, usual)

    def render() -> bytes:
        text = source.rendered()
        try:
            text.encode(source.encoding.name)
        except UnicodeEncodeError:  # a character that the charset lacks
            source.encoding = Encoding("utf-8")
            text = re.sub(r"charset=[\w.:-]+", "charset=UTF-8", text, count=1)
        return source.encoding.encode(text)

    return values.file_text(render)


def _add_entry(
    source: TextSource, entry: _Entry, plurals: _Plurals, overwrite: bool, values: Values
) -> bool:
    """Add the texts of an entry whose translation is missing; return whether there is one."""
    singular, plural = entry.parts["msgid"], entry.parts.get("msgid_plural")
    indexes = range(plurals.size) if plural else range(1)
    wanted = [
        index for index in indexes
        if overwrite or index not in entry.translations or not entry.translations[index].text
    ]  # fmt: skip
    if not wanted or not entry.translations:
        return False
    last = max(entry.translations)
    end, line_end = entry.translations[last].end, source.line_end
    for index in wanted:
        text = plurals.source(index, singular, plural) if plural else singular
        wrap = text.tokens > 1 or text.end - text.start <= _WIDTH or " " not in text.text.strip()
        keyword, at, to = f"{line_end}msgstr[{index}] ", end, end
        if index in entry.translations:
            keyword, (at, to, *_) = "", entry.translations[index]

        def put(
            translation: str, at: int = at, to: int = to, keyword: str = keyword, wrap: bool = wrap
        ) -> None:
            before = keyword or source.text[source.text.rfind("\n", 0, at) + 1 : at]
            written = _written(translation, len(before.strip()) + 1, wrap, line_end)
            source.replace(at, to, keyword + written)

        values.add_message(read_message(text.text, f"line {source.line(entry.start)}"), put)
    if entry.flags is None:
        source.replace(entry.start, entry.start, f"#, fuzzy{line_end}")
    elif "fuzzy" not in _flags(source, entry.flags):
        at = entry.flags[0] + len("#,")
        source.replace(at, at, " fuzzy,")
    return True


def _flags(source: TextSource, where: tuple[int, int]) -> list[str]:
    return [flag.strip() for flag in source.text[where[0] + len("#,") : where[1]].split(",")]


def _complete_header(
    source: TextSource, header: _Entry, language: str | None, plurals: _Plurals
) -> None:
    """Fill the fields of the header that are missing, or those of a template."""
    strings = header.translations.get(0)
    if strings is None:
        return
    if found := re.compile("charset=(CHARSET)").search(source.text, strings.start, strings.end):
        source.replace(*found.span(1), "UTF-8")
        if header.flags is not None:
            # A template; gettext ignores the header, its charset included, if it is fuzzy.
            flags = [flag for flag in _flags(source, header.flags) if flag != "fuzzy"]
            end = header.flags[1] + (0 if flags else len(source.line_end))
            source.replace(header.flags[0], end, f"#, {', '.join(flags)}" if flags else "")
    if language is None:
        return
    for name, template, value in (
        ("Language", r" *(?=\\n)", f" {public_code(language).replace('-', '_')}"),
        ("Plural-Forms", " *nplurals *= *INTEGER; *plural *= *EXPRESSION;?",
         f" nplurals={plurals.size}; plural={plurals.expression};"),
    ):  # fmt: skip
        if found := re.compile(f'"{name}:({template})').search(
            source.text, strings.start, strings.end
        ):
            source.replace(*found.span(1), value)
        elif f"\n{name}:" not in f"\n{strings.text}" and strings.text.endswith("\n"):
            added = f'{source.line_end}"{name}:{value}\\n"'
            source.replace(strings.end, strings.end, added)


def _usual_plurals(language: str | None) -> _Plurals:
    tag = public_code(language or "en").replace("-", "_")
    for code in (tag, tag.split("_")[0]):
        for languages, forms in _PLURAL_FORMS.items():
            if code in languages.split():
                return _Plurals.of(*forms)
    return _Plurals.of(2, "(n != 1)")


def _entries(source: TextSource) -> Iterator[_Entry]:
    """Iterate over the entries of a catalogue, without those that are comments."""
    text = source.text
    entry: _Entry | None = None
    flags: tuple[int, int] | None = None
    previous: int | None = None  # offset of the comments with the previous text of the entry
    for word, index, start, strings in _statements(source):
        if word == "#":
            kind = text[start : start + 2]
            if kind == "#," and not (flags and "fuzzy" in _flags(source, flags)):
                flags = start, strings.end
            elif kind == "#|" and previous is None:
                previous = start
            elif kind == "#~":  # of an obsolete entry
                flags = previous = None
            continue
        if word == "domain":
            continue
        if entry is None or (word in ("msgctxt", "msgid") and "msgid" in entry.parts):
            if entry is not None:
                yield _checked(source, entry)
            entry = _Entry(start if previous is None else previous, flags)
            flags = previous = None
        if word == "msgctxt":
            entry.context = True
        elif word == "msgstr":
            entry.translations[int(index or 0)] = strings
        else:
            entry.parts[word] = strings
    if entry is not None:
        yield _checked(source, entry)


def _checked(source: TextSource, entry: _Entry) -> _Entry:
    if "msgid" not in entry.parts:
        raise line_error("a PO file", source.line(entry.start), "has an entry without msgid")
    return entry


def _statements(source: TextSource) -> Iterator[tuple[str, str | None, int, _Strings]]:
    """Iterate over comments and keywords with their indexes and strings."""
    text, at = source.text, 0
    word: re.Match[str] | None = None
    strings: list[re.Match[str]] = []
    while True:
        found = _TOKEN.match(text, at)
        if found is None and at < len(text):
            raise line_error("a PO file", source.line(at), "is no comment, keyword or string")
        if found is not None and found["string"]:
            if word is None:
                raise line_error("a PO file", source.line(at), "has a string without a keyword")
            strings.append(found)
        elif found is None or found["comment"] or found["word"]:
            if word is not None:
                if not strings:
                    raise line_error("a PO file", source.line(word.start()), "lacks a string")
                value = "".join(_unescaped(one[0][1:-1], source) for one in strings)
                begin, end = strings[0].start(), strings[-1].end()
                found_strings = _Strings(begin, end, value, len(strings))
                yield word["word"], word["index"], word.start(), found_strings
                word, strings = None, []
            if found is None:
                return
            if found["comment"]:
                yield "#", None, at, _Strings(at, found.end(), "", 0)
            else:
                word = found
        at = found.end()


def _unescaped(text: str, source: TextSource) -> str:
    def character(found: re.Match[str]) -> str:
        if (letter := found[2]) is not None:
            return _ESCAPES.get(letter, letter)
        numbers = found[1].split("\\")[1:]
        values = (int(one[1:], 16) if one[0] == "x" else int(one, 8) & 0xFF for one in numbers)
        return bytes(values).decode(source.encoding.name, "replace")

    return _ESCAPED.sub(character, text) if "\\" in text else text


def _written(text: str, column: int, wrap: bool, line_end: str) -> str:
    """Write a text as strings: on the line of the keyword if it fits, otherwise below."""
    lines = ["".join(_WRITTEN.get(one, one) for one in line) for line in text.split("\n")]
    lines = [line + "\\n" for line in lines[:-1]] + lines[-1:]
    if not lines[-1]:
        lines = lines[:-1] or [""]
    if len(lines) == 1 and (not wrap or column + _width(lines[0]) + 2 <= _WIDTH):
        return f'"{lines[0]}"'
    if wrap:
        lines = [piece for line in lines for piece in _wrapped(line)]
    return line_end.join(('""', *(f'"{line}"' for line in lines)))


def _wrapped(line: str) -> Iterator[str]:
    """Iterate over the pieces of a line, cut after spaces."""
    piece, width = "", 2
    for word in re.findall(r" *[^ ]+ *| +", line):
        added = _width(word)
        if piece and width + added > _WIDTH + 1:
            yield piece
            piece, width = "", 2
        piece, width = piece + word, width + added
    yield piece


def _width(text: str) -> int:
    return len(text) + sum(unicodedata.east_asian_width(one) in "WF" for one in text)
