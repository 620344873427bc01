"""JSON: locale files, Flutter's ARB, and messages of WebExtensions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from functools import partial

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.resources import TextSource, Values
from translate_trt.runtime.files.segments import FileText, ReadOptions
from translate_trt.runtime.text.languages import public_code

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]|[^\s"{}\[\],:]+', re.DOTALL)
_MAX_DEPTH = 256
_TOO_DEEP = f"nests values more than {_MAX_DEPTH} deep."
# Members with the text of a message, whose others describe it (WebExtensions, FormatJS).
_MESSAGES = ("message", "defaultMessage")


class JsonNode:
    """A value and its position.

    Attributes:
        start: Its begin.
        end: Its end.
        text: Its text if it is a string.
        children: Its members, or its items with their indexes.
        is_object: Whether the children are members.
    """

    __slots__ = ("children", "end", "is_object", "start", "text")

    def __init__(self, start: int, end: int) -> None:
        self.start, self.end = start, end
        self.text: str | None = None
        self.children: list[tuple[str, JsonNode]] = []
        self.is_object = False

    def get(self, *path: str) -> JsonNode | None:
        """Return the node of a path of keys."""
        node = self
        for key in path:
            found = next((child for name, child in node.children if name == key), None)
            if found is None:
                return None
            node = found
        return node

    def strings(self, path: str = "") -> Iterator[tuple[str, JsonNode]]:
        """Iterate over the strings in the value, with the paths of their keys."""
        if self.text is not None:
            yield path, self
        for key, child in self.children:
            yield from child.strings(f"{path}.{key}" if path else key)


class JsonSource(TextSource):
    """A JSON document whose values can be replaced.

    Attributes:
        root: The whole value.
    """

    def __init__(self, content: bytes, options: ReadOptions) -> None:
        """Parse a document.

        Raises:
            InputError: It is not JSON, or nests too deep.
        """
        super().__init__(content, options)
        try:
            json.loads(self.text, strict=False, parse_int=str, parse_float=str)
        except json.JSONDecodeError as error:
            raise InputError(
                f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}."
            ) from error
        except RecursionError as error:
            raise InputError(_TOO_DEEP) from error
        self.root = self._parsed()
        # Files of ASCII alone, and those with "\/" for "/", stay so.
        self._is_ascii = self.text.isascii() and re.search(r"\\u(?!00[0-7])", self.text)
        self._has_slashes = "\\/" in self.text and not re.search(r"(?<!\\)/", self.text)

    def _parsed(self) -> JsonNode:
        """Return the tree of the document, whose syntax is valid."""
        top = JsonNode(0, 0)
        open_nodes, key = [top], None
        for token in _TOKEN.finditer(self.text):
            first, parent = token[0][0], open_nodes[-1]
            if first in "]}":
                open_nodes.pop().end = token.end()
            elif first != ",":
                if parent.is_object and key is None:
                    key = self._decoded(token[0])
                    continue
                node = JsonNode(*token.span())
                parent.children.append((str(len(parent.children)) if key is None else key, node))
                key = None
                if first == '"':
                    node.text = self._decoded(token[0])
                elif first in "[{":
                    node.is_object = first == "{"
                    open_nodes.append(node)
                    if len(open_nodes) > _MAX_DEPTH:
                        raise InputError(_TOO_DEEP)
        return top.children[0][1]

    def _decoded(self, raw: str) -> str:
        return str(json.loads(raw, strict=False)) if "\\" in raw else raw[1:-1]

    def written(self, text: str) -> str:
        """Write a string as the file does."""
        written = json.dumps(text, ensure_ascii=bool(self._is_ascii))
        return written.replace("/", "\\/") if self._has_slashes else written

    def put(self, node: JsonNode, text: str) -> None:
        """Replace a string."""
        self.replace(node.start, node.end, self.written(text))


def read(content: bytes, options: ReadOptions) -> FileText:
    """Read a locale file: all values that are strings."""
    source = JsonSource(content, options)
    members = source.root.children
    names = [name for name in _MESSAGES if members and all(
        (found := child.get(name)) is not None and found.text is not None for _, child in members
    )]  # fmt: skip
    strings = [*source.root.strings()]
    if names:
        strings = [(path, node) for path, node in strings
                   if path.rpartition(".")[2] == names[0]]  # fmt: skip
    return _read(source, strings, options)


def read_arb(content: bytes, options: ReadOptions) -> FileText:
    """Read Application Resource Bundles, whose keys with "@" describe the others."""
    source = JsonSource(content, options)
    locale = source.root.get("@@locale")
    if locale is not None and options.target_language is not None:
        source.put(locale, public_code(options.target_language).replace("-", "_"))
    strings = (one for one in source.root.strings() if not one[0].startswith("@"))
    return _read(source, strings, options)


def _read(
    source: JsonSource, strings: Iterable[tuple[str, JsonNode]], options: ReadOptions
) -> FileText:
    values = Values(options)
    for path, node in strings:
        assert node.text is not None
        values.add(node.text, partial(source.put, node), path)
    return values.file_text(source.render)
