"""Values of resources: ICU messages, markup in strings, and placeholders of many libraries.

A message with cases, such as "{n, plural, one {# day} other {# days}} left", is translated one
sentence per case: the text around an argument with cases goes into each of them, since only whole
sentences have the right inflection and word order. Messages of more than 16 combinations keep the
text around the argument as segments of their own. The source's cases are kept; languages with
further plural categories take their case "other".
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from html.entities import html5
from typing import NamedTuple, TypeAlias
from xml.parsers import expat

from translate_trt.runtime.files.segments import HAS_LETTER, Segment

# Sentences that a message may become, and nesting of its arguments.
_MAX_SENTENCES = 16
_MAX_DEPTH = 8

# Placeholders that the core does not know; it is shown numbered ones in their place.
_PLACEHOLDERS = re.compile(
    r"%(?:\d+\$)?#@\w+@"  # Apple's variables
    r"|%\{[^{}\n]*\}|%<\w+>"  # Ruby, C
    r"|(?<![\w%])%(?:[A-Za-z_]\w{2,}%(?![\w%])|L?[1-9]\d?\b(?![.$])|n\b|[-+0#]*(?:\d+|\*)?(?:\.(?:\d+|\*))?"
    r"(?:[zjtLq][diouxXeEfgG]|p)\b)"  # Symfony, Qt, C
    r"|(?<=[^\W\d_])%[sd](?![^\W\d_])|(?<![\w%])(?<!\d )%[sd](?=[^\W\d_])"  # v%s, %sK
    r"|\$(?:\w+\$|t\([^()\n]*\))"  # WebExtensions, i18next
    r"|(?<![^\s(])(?::[A-Za-z_]\w*|@:?[A-Za-z_][\w.]*\b)"  # Laravel, Drupal, Vue
    r"|(?<![{$])\{(?=[^{}]*[\s$])\s*\$?[\w.-]+\s*(?:,[^{},'\n]*){0,2}\}(?!\})"  # ICU, Fluent
)
_NUMBERED = re.compile(r"\{\s*(\d+)\s*\}")
# What has letters but nothing to translate.
_CODE = re.compile(
    r"\{\{[^{}]*\}\}|\$?\{[^{}]*\}|%(?:\(\w+\))?[-+#\d$.]*(?:hh?|ll?)?[A-Za-z@]\b|%@|<[^<>]*>|&\w+;"
)
_UNREADABLE = re.compile("[\0\ud800-\udfff]")

_TAG = re.compile(r"</?([A-Za-z0-9][\w:.-]*)(?:\s[^<>]*)?/?>|<!--")
_ENTITY = re.compile(r"&(?:#\d+|#[xX][0-9A-Fa-f]+|(\w+));")
_LINES = re.compile(r"((?:\r\n|\r|\n)+)")
_BLOCKS = frozenset(re.findall(r"\w+",
    "address article aside blockquote body br caption center dd div dl dt fieldset figure footer "
    "form h1 h2 h3 h4 h5 h6 head header hr html img input li main nav ol option p pre script "
    "section select style table tbody td textarea tfoot th thead title tr ul wbr",
))  # fmt: skip
_INLINE = frozenset(re.findall(r"\w+",
    "a abbr b bdi bdo big button cite code del dfn em font i ins kbd label mark q s samp small "
    "span strike strong sub sup time tt u var",
))  # fmt: skip


class Message(NamedTuple):
    """A value of a resource.

    Attributes:
        segments: Its texts.
        render: Returns the value with a translation per segment.
    """

    segments: Sequence[Segment]
    render: Callable[[Sequence[str]], str]


def render_each(messages: Iterable[Message], translations: Sequence[str]) -> Iterator[str]:
    """Iterate over the values of messages, given the translations of all their segments."""
    begin = 0
    for message in messages:
        end = begin + len(message.segments)
        yield message.render(translations[begin:end])
        begin = end


def read_message(value: str, place: str = "", *, java: bool = False) -> Message:
    """Read a value.

    Args:
        value: Value as programs see it.
        place: Place in the file.
        java: Whether doubled apostrophes show that it is a pattern of Java's MessageFormat.
    """
    if not has_text(value) or _UNREADABLE.search(value):
        return Message((), lambda _: value)
    texts = _icu_texts(value, _parts) if _CASES.search(value) else []
    # Whether all apostrophes quote, so that those of a translation must be doubled.
    is_pattern = java and ("''" in value or re.search(r"\{\d", value) is not None)
    if not texts and is_pattern and "'" not in re.sub(r"''|'[^'{}]*[{}][^']*'", "", value):
        texts = [_java_text(value)]
    return _joined(value, texts or [_Text.of(value, _parts)], place)


def read_fragment(fragment: str, place: str = "", *, has_lines: bool = False) -> Message:
    """Read a well-formed fragment of XML.

    Args:
        fragment: The fragment, as it is written.
        place: Place in the file.
        has_lines: Whether its line ends are kept; otherwise they are spaces.
    """
    if not has_text(fragment):
        return Message((), lambda _: fragment)
    parts = _lines if has_lines else _fragment
    texts = _icu_texts(fragment, parts) if _CASES.search(fragment) else []
    if not all(isinstance(text, str) or text.is_well_formed() for text in texts):
        texts = []  # an element around a part of an argument
    return _joined(fragment, texts or [_Text.of(fragment, parts)], place)


def has_text(value: str) -> bool:
    """Return whether a value has letters outside placeholders and tags."""
    return HAS_LETTER.search(_CODE.sub("", _PLACEHOLDERS.sub("", value))) is not None


# Returns the parts of a text with their kinds; "" is the kind of what stays.
_Divide: TypeAlias = Callable[[str], Sequence[tuple[str, str]]]


class _Text(NamedTuple):
    """A text without cases: its parts that are translated, and their places in it."""

    parts: Sequence[tuple[str, str]]
    finish: Callable[[str], str]

    @classmethod
    def of(cls, text: str, divide: _Divide) -> _Text:
        shield = _Shield(text)
        return cls(divide(_PLACEHOLDERS.sub(shield.hide, text)), shield.restore)

    def is_well_formed(self) -> bool:
        return all(kind != "xml" or _is_fragment(part) for part, kind in self.parts)


def _joined(value: str, texts: Sequence[str | _Text], place: str) -> Message:
    segments = [
        Segment(part, kind, place)
        for text in texts if not isinstance(text, str) for part, kind in text.parts if kind
    ]  # fmt: skip

    def render(translations: Sequence[str]) -> str:
        if all(new == old.text for new, old in zip(translations, segments, strict=True)):
            return value
        found = iter(translations)
        return "".join(
            text if isinstance(text, str)
            else text.finish("".join(next(found) if kind else part for part, kind in text.parts))
            for text in texts
        )  # fmt: skip

    return Message(segments, render)


def _parts(text: str) -> Sequence[tuple[str, str]]:
    if not has_text(text):
        return [(text, "")]
    kind = _kind(text)
    return _lines(text) if kind == "xml" else [(text, kind)]


def _fragment(text: str) -> Sequence[tuple[str, str]]:
    return [(text, "xml" if has_text(text) else "")]


def _lines(text: str) -> Sequence[tuple[str, str]]:
    """Divide a fragment into lines, which would be joined, unless an element has several."""
    lines = _LINES.split(text)
    if not all(map(_is_fragment, lines)):
        lines = [text]
    return [part for line in lines for part in _fragment(line)]


def _kind(text: str) -> str:
    tags = {found[1].lower() for found in _TAG.finditer(text) if found[1]}
    html = any(f"{found[1]};" in html5 for found in _ENTITY.finditer(text) if found[1])
    if not tags and not html and "<!--" not in text and "&#" not in text:
        return "text"
    html = html or not tags.isdisjoint(_BLOCKS | _INLINE)
    if _is_fragment(text):
        return "html" if tags and tags <= _BLOCKS | _INLINE and tags & _BLOCKS else "xml"
    return "html" if html else "text"


def _is_fragment(text: str) -> bool:
    try:
        expat.ParserCreate("utf-8").Parse(f"<r>{text}</r>", True)
    except expat.ExpatError:
        return False
    return True


class _Shield:
    """Numbered placeholders in a text for what the core cannot keep by itself."""

    def __init__(self, text: str) -> None:
        used = {found[1] for found in _NUMBERED.finditer(text)}
        self._free: Iterator[int] = (n for n in itertools.count() if str(n) not in used)
        self.raw: dict[str, str] = {}

    def hide(self, raw: str | re.Match[str]) -> str:
        """Return the placeholder of a raw text."""
        number = next(self._free)
        self.raw[str(number)] = raw if isinstance(raw, str) else raw[0]
        return f"{{{number}}}"

    def restore(self, text: str) -> str:
        """Replace the placeholders by the raw texts."""
        return _NUMBERED.sub(lambda found: self.raw.get(found[1], found[0]), text)


# Java's MessageFormat: pairs of apostrophes, quoted text, and arguments.
_JAVA = re.compile(r"''|'[^']*'|\{[^{}]*\}")


def _java_text(value: str) -> _Text:
    shield = _Shield(value)

    def token(found: re.Match[str]) -> str:
        raw = found[0]
        return "'" if raw == "''" else shield.hide(raw) if raw[0] == "'" else raw

    text = _PLACEHOLDERS.sub(shield.hide, _JAVA.sub(token, value))
    return _Text(_parts(text), lambda translation: shield.restore(translation.replace("'", "''")))


# Parts of an ICU message: the number of the plural argument of a name, other arguments, tags and
# quoted text as written, and arguments with cases. Plain strings are text, unquoted.
class _Number(NamedTuple):
    name: str


class _Code(NamedTuple):
    raw: str


class _Cases(NamedTuple):
    """An argument with cases.

    Attributes:
        name: Name of the argument.
        is_plural: Whether "#" in its cases is its number.
        layout: What is written before, between and after the contents of the cases.
        contents: The contents.
    """

    name: str
    is_plural: bool
    layout: list[str]
    contents: list[_Tokens]


_Token: TypeAlias = str | _Number | _Code | _Cases
_Tokens: TypeAlias = list[_Token]

_CASES = re.compile(r"\{\s*([\w.-]+)\s*,\s*(plural|select|selectordinal)\s*,\s*(offset:\s*\d+)?")
_CASE = re.compile(r"\s*(?:=\d+|[\w-]+)\s*\{")
_CASES_END = re.compile(r"\s*\}")
_ARGUMENT = re.compile(r"\{[^{}']*\}")
_QUOTED = re.compile(r"'(?:[^']|'')*(?:'(?!')|\Z)")
# What the core sees as it is: placeholders that it knows, and tags.
_SIMPLE = re.compile(r"\{[\w.:!+,#-]+\}|<.*>", re.DOTALL)
_MARKUP = r"""</?[A-Za-z](?:"[^"]*"|'[^']*'|[^'"<>{}])*>"""
_SPECIAL, _SPECIAL_IN_PLURAL = (re.compile(f"{_MARKUP}|[{signs}]") for signs in ("{}'", "{}'#"))


class _NotIcuError(Exception):
    """The text is not an ICU message."""


def _icu_texts(value: str, divide: _Divide) -> list[str | _Text]:
    """Return the texts of an ICU message, and what is written between them; none if it is not."""
    parser = _IcuParser(value)
    try:
        tokens = parser.parse(None, 0)
    except _NotIcuError:
        return []
    is_small = not parser.has_offset and parser.count <= _MAX_DEPTH
    is_small = is_small and _combinations(tokens) <= _MAX_SENTENCES
    return [*_expanded(tokens, None, is_small, _Style(divide, "''" in value))]


class _Style(NamedTuple):
    """Division of the texts of a message, and whether apostrophes are written twice."""

    divide: _Divide
    doubled: bool


class _IcuParser:
    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self.has_offset, self.count = False, 0  # of the arguments with cases

    def parse(self, plural: str | None, depth: int) -> _Tokens:
        """Parse to the end of the text, or in a case to its closing brace."""
        tokens: _Tokens = []
        text = self._text
        special = _SPECIAL_IN_PLURAL if plural else _SPECIAL
        while self._at < len(text):
            found = special.search(text, self._at)
            stop = found.start() if found else len(text)
            tokens.append(text[self._at : stop])
            self._at = stop
            if found is None:
                break
            if found[0] == "}":
                if not depth:
                    raise _NotIcuError
                return tokens
            if found[0][0] == "<":
                tokens.append(_Code(found[0]))
                self._at = found.end()
            else:
                tokens.append(self._special(found[0], plural, depth))
        if depth:
            raise _NotIcuError
        return tokens

    def _special(self, character: str, plural: str | None, depth: int) -> _Token:
        text, at = self._text, self._at
        if character == "#":
            self._at += 1
            return _Number(plural or "")
        if character == "'":
            following = text[at + 1 : at + 2]
            if following == "'" or following not in ("{", "}", "#" if plural else "{"):
                self._at += 1 + (following == "'")
                return "'"
            found = _QUOTED.match(text, at)
        elif cases := _CASES.match(text, at):
            return self._cases(cases, depth)
        else:
            found = _ARGUMENT.match(text, at)
        if found is None:
            raise _NotIcuError
        self._at = found.end()
        return _Code(found[0])

    def _cases(self, head: re.Match[str], depth: int) -> _Cases:
        if depth == _MAX_DEPTH:
            raise _NotIcuError
        self.count += 1
        is_plural = head[2] != "select"
        self.has_offset = self.has_offset or head[3] is not None
        node = _Cases(head[1], is_plural, [], [])
        begin, self._at = head.start(), head.end()
        while found := _CASE.match(self._text, self._at):
            self._at = found.end()
            node.layout.append(self._text[begin : self._at])
            node.contents.append(self.parse(head[1] if is_plural else None, depth + 1))
            begin, self._at = self._at, self._at + 1
        end = _CASES_END.match(self._text, self._at)
        if end is None or not node.contents:
            raise _NotIcuError
        self._at = end.end()
        node.layout.append(self._text[begin : self._at])
        return node


def _combinations(tokens: Iterable[_Token]) -> int:
    return math.prod(
        sum(map(_combinations, token.contents)) for token in tokens if isinstance(token, _Cases)
    )


def _expanded(
    tokens: _Tokens, plural: str | None, is_small: bool, style: _Style
) -> Iterator[str | _Text]:
    """Iterate over the texts of a message and the layout between them.

    Args:
        tokens: The message.
        plural: Name of the argument whose case the message is, if "#" is its number.
        is_small: Whether text around cases goes into them.
        style: Style of the texts.
    """
    plain: _Tokens = []
    for number, token in enumerate(tokens):
        if not isinstance(token, _Cases):
            plain.append(token)
            continue
        after = tokens[number + 1 :] if is_small else []
        is_moved = any(not isinstance(one, str) or one.strip() for one in (*plain, *after))
        is_moved = is_small and is_moved
        if not is_moved:
            yield _icu_text(plain, plural, style)
        inner = token.name if token.is_plural else None
        for layout, content in zip(token.layout, token.contents, strict=False):
            yield layout
            whole = [*plain, *content, *after] if is_moved else content
            yield from _expanded(whole, inner, is_small, style)
        yield token.layout[-1]
        if is_moved:
            return
        plain = []
    yield _icu_text(plain, plural, style)


def _icu_text(tokens: _Tokens, plural: str | None, style: _Style) -> _Text:
    shield = _Shield("".join(token.raw for token in tokens if isinstance(token, _Code)))
    pieces: list[str] = []
    shown: list[str] = []
    for token in tokens:
        if isinstance(token, _Number):
            raw = "#" if token.name == plural else f"{{{token.name}, number}}"
            pieces.append(shield.hide(raw))
        elif isinstance(token, _Code) and _SIMPLE.fullmatch(token.raw):
            shown.append(token.raw)
            pieces.append(token.raw)
        elif isinstance(token, _Code):
            pieces.append(shield.hide(token.raw))
        else:
            assert isinstance(token, str)
            pieces.append(_PLACEHOLDERS.sub(shield.hide, token))
    hidden = (rf"\{{\s*{number}\s*\}}" for number in shield.raw)
    known = re.compile("|".join((*map(re.escape, shown), *hidden)) or r"(?!)")
    pattern = re.compile(r"[{}#]" if plural else r"[{}]")

    def quoted(text: str) -> str:
        text = text.replace("'", "''") if style.doubled else re.sub(r"'(?=[{}#|']|\Z)", "''", text)
        return pattern.sub(r"'\g<0>'", text)

    def finish(text: str) -> str:
        begin = 0
        written: list[str] = []
        for found in known.finditer(text):
            written += quoted(text[begin : found.start()]), shield.restore(found[0])
            begin = found.end()
        return "".join((*written, quoted(text[begin:])))

    return _Text(style.divide("".join(pieces)), finish)
