"""YAML: the strings of a file, each in the style that it has."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import yaml

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.resources import TextSource, Values
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.text.languages import is_same_language, public_code

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_STRING = "tag:yaml.org,2002:str"
_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")
_NOT_PRINTABLE = re.compile('["\\\\\0-\x1f\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]')
_NOT_ASCII = re.compile(r'["\\]|[^ -~]')
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


class _Scalar(NamedTuple):
    """A scalar, with the path of its keys and whether it stands in brackets or braces."""

    path: str
    event: yaml.ScalarEvent
    in_flow: bool


class _Level:
    """An open mapping or sequence."""

    def __init__(self, path: str, event: yaml.CollectionStartEvent, is_key: bool) -> None:
        self.path, self.in_flow = path, bool(event.flow_style)
        self.is_mapping, self.is_key = isinstance(event, yaml.MappingStartEvent), is_key
        self.key: str | None = None
        self.count = 0

    def child_path(self) -> str:
        name = self.key if self.is_mapping else str(self.count)
        return f"{self.path}.{name}" if self.path else str(name)

    def add(self, text: str) -> None:
        """Count a child, which is the next key of a mapping or its value."""
        if self.is_mapping and self.key is None:
            self.key = text
        else:
            self.key = None
            self.count += 1


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a file: all values that are strings.

    The one key at the top of a file of Rails, which names the source language, is replaced by the
    target language.
    """
    source = TextSource(content, options)
    values = Values(options)
    roots: list[yaml.ScalarEvent] = []
    try:
        for path, event, in_flow in _scalars(source.text, roots):
            values.add(event.value, _writer(source, event, in_flow), path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"is not YAML: {problem}{where}.") from error
    except RecursionError as error:
        raise InputError("nests values too deep.") from error
    if len(roots) == 1 and options.target_language is not None:
        root = roots[0]
        if is_same_language(root.value, options.source_language):
            tag = public_code(options.target_language)
            source.replace(*_range(root), _double_quoted(tag, False)
                           if root.style in ("'", '"') or not _is_string(tag) else tag)  # fmt: skip
    return values.file_text(source.render)


def _scalars(text: str, roots: list[yaml.ScalarEvent]) -> Iterator[_Scalar]:
    """Iterate over the strings that are no keys; keys of mappings at the top go to `roots`."""
    levels: list[_Level] = []
    for event in yaml.parse(text, Loader=_LOADER):
        level = levels[-1] if levels else None
        expects_key = level is not None and level.is_mapping and level.key is None
        if isinstance(event, yaml.CollectionStartEvent):
            path = level.child_path() if level and not expects_key else ""
            levels.append(_Level(path, event, expects_key or bool(level and level.is_key)))
        elif isinstance(event, yaml.CollectionEndEvent):
            levels.pop()
            if levels:
                levels[-1].add("?")
        elif isinstance(event, yaml.ScalarEvent):
            if expects_key:
                if len(levels) == 1:
                    roots.append(event)
            elif not (level and level.is_key) and _is_text(event):
                path = level.child_path() if level else ""
                yield _Scalar(path, event, bool(level and level.in_flow))
            if level is not None:
                level.add(event.value)
        elif isinstance(event, yaml.AliasEvent) and level is not None:
            level.add("*")


def _range(event: yaml.ScalarEvent) -> tuple[int, int]:
    assert event.start_mark is not None
    assert event.end_mark is not None
    return event.start_mark.index, event.end_mark.index


def _is_text(event: yaml.ScalarEvent) -> bool:
    if event.tag not in (None, "!", _STRING):
        return False
    return not event.implicit[0] or _is_string(event.value)


def _is_string(plain: str) -> bool:
    """Return whether a plain scalar is a string, and no number, date, Boolean or null."""
    resolvers = yaml.SafeLoader.yaml_implicit_resolvers
    candidates = [*resolvers.get(plain[:1], ()), *resolvers.get(None, ())]
    return not any(pattern.match(plain) for _, pattern in candidates)


def _writer(source: TextSource, event: yaml.ScalarEvent, in_flow: bool) -> Callable[[str], None]:
    def put(text: str) -> None:
        start, end = _range(event)
        raw = source.text[start:end]
        if event.anchor is not None or event.tag is not None:
            found = _PROPERTIES.match(raw)
            assert found is not None
            start, raw = start + found.end(), raw[found.end() :]
        source.replace(start, end, _written(text, raw, event, in_flow, source.line_end))

    return put


def _written(text: str, raw: str, event: yaml.ScalarEvent, in_flow: bool, line_end: str) -> str:
    """Write a string in the style of a scalar, or in double quotes if that style cannot have it."""
    if event.style in ("|", ">"):
        block = _Block(raw, event.value, line_end)
        for folded in (True, False) if event.style == ">" else (False,):
            candidate = block.written(text, folded)
            if _reads(f"{' ' * block.parent}k: {candidate}", text):
                return candidate
        return _double_quoted(text, False) + (line_end if raw.endswith(("\n", "\r")) else "")
    quoted = "'" + text.replace("'", "''") + "'"
    candidate = quoted if event.style == "'" else text
    if event.style != '"' and _reads(f"[{candidate}]" if in_flow else f"k: {candidate}", text):
        return candidate
    is_ascii = event.style == '"' and raw.isascii() and re.search(r"\\[uUx]", raw) is not None
    return _double_quoted(text, is_ascii)


def _reads(document: str, text: str) -> bool:
    """Return whether the last scalar of a small document is a text."""
    try:
        scalars = [one for one in yaml.parse(document, Loader=_LOADER)
                   if isinstance(one, yaml.ScalarEvent)]  # fmt: skip
    except yaml.YAMLError:
        return False
    return (
        len(scalars) == (1 if document.startswith("[") else 2)
        and scalars[-1].value == text and scalars[-1].anchor is None and _is_text(scalars[-1])
    )  # fmt: skip


def _double_quoted(text: str, is_ascii: bool) -> str:
    def escaped(found: re.Match[str]) -> str:
        if (written := _ESCAPES.get(found[0])) is not None:
            return written
        code = ord(found[0])
        letter, width = ("x", 2) if code < 0x100 else ("u", 4) if code < 0x10000 else ("U", 8)
        return f"\\{letter}{code:0{width}x}"

    return f'"{(_NOT_ASCII if is_ascii else _NOT_PRINTABLE).sub(escaped, text)}"'


class _Block:
    """A block scalar: its header, indentation, and the blank lines after it."""

    def __init__(self, raw: str, value: str, line_end: str) -> None:
        self._header, *lines = raw.splitlines(keepends=True)
        self._line_end = line_end
        filled = [line for line in lines if line.strip()]
        first = next((line for line in value.split("\n") if line.strip()), "")
        self._indent = _leading(filled[0]) - _leading(first) if filled else 1
        digit = re.match(r"[|>][+-]?([1-9])", self._header)
        self.parent = max(0, self._indent - int(digit[1])) if digit else 0
        body = "".join(lines)
        kept = body.rstrip()
        kept += re.split(r"[\r\n]", body[len(kept) :])[0]  # spaces of the last line
        self._tail = body[len(kept) :] or ""
        self._width = 0
        if len(filled) > len([line for line in value.split("\n") if line.strip()]):
            self._width = max(20, *(len(line.rstrip()) - self._indent for line in filled))

    def written(self, text: str, folded: bool) -> str:
        """Write a text, whose line ends at the end are those of the source."""
        lines = text.rstrip("\n").split("\n")
        header = self._header if folded else self._header.replace(">", "|", 1)
        if folded:
            written = []
            for number, line in enumerate(lines):
                if number:
                    written.append("")
                written += self._wrapped(line) if line else []
            lines = written
        margin = " " * self._indent
        body = self._line_end.join(margin + line if line else "" for line in lines)
        return header + body + self._tail

    def _wrapped(self, line: str) -> list[str]:
        if not self._width or len(line) <= self._width:
            return [line]
        return textwrap.wrap(line, self._width, break_long_words=False, break_on_hyphens=False)


def _leading(line: str) -> int:
    return len(line) - len(line.lstrip(" "))
