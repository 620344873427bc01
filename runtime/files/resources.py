"""Resource files: values by key, whose translations are written at their places."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.files.message_text import Message, read_message, render_each
from translate_trt.runtime.files.segments import Encoding, FileText, ReadOptions, Segment, decode

_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


class TextSource:
    """A text file whose ranges can be replaced.

    Attributes:
        text: The text, to which all offsets refer.
        encoding: Its encoding.
    """

    def __init__(self, content: bytes, options: ReadOptions) -> None:
        """Decode the content of a file.

        Raises:
            InputError: The content is not text in its encoding.
        """
        self.text: str
        self.encoding: Encoding
        self.text, self.encoding = decode(content, options)
        self._edits: list[tuple[int, int, str]] = []
        self._lines: list[int] = []

    @property
    def line_end(self) -> str:
        """The line end of the file."""
        found = re.search(r"\r\n|\r|\n", self.text)
        return found[0] if found else "\n"

    def line(self, offset: int) -> int:
        """Return the number of the line of an offset, from 1."""
        if not self._lines:
            self._lines = [0, *(found.end() for found in re.finditer(r"\r\n|\r|\n", self.text))]
        return bisect_right(self._lines, offset)

    def replace(self, start: int, end: int, text: str) -> None:
        """Replace a range; an empty range inserts the text. Ranges are apart from each other."""
        self._edits.append((start, end, text))

    def rendered(self) -> str:
        """Return the text with all edits."""
        pieces: list[str] = []
        begin = 0
        for start, end, text in sorted(self._edits, key=lambda edit: edit[:2]):
            pieces += self.text[begin:start], text
            begin = end
        return "".join((*pieces, self.text[begin:]))

    def render(self) -> bytes:
        """Return the file with all edits."""
        return self.encoding.encode(self.rendered())


class Values:
    """Values of a file in order.

    Args:
        options: Options, of which `keys` selects the values.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._keys = options.keys
        self._values: list[tuple[str | None, Message, Callable[[str], None]]] = []

    def add(
        self,
        value: str,
        put: Callable[[str], None],
        key: str,
        *,
        java: bool = False,
        message: Message | None = None,
    ) -> None:
        """Add the value of a key, if the options select it.

        Args:
            value: The value as programs see it.
            put: Receives its translation if that is another.
            key: Path of its key.
            java: Whether it may be a pattern of Java's MessageFormat.
            message: The message that it is; None to read the value (`read_message`).
        """
        if self.selects(key):
            self._values.append((value, message or read_message(value, key, java=java), put))

    def selects(self, key: str) -> bool:
        """Return whether the options select a key."""
        return not self._keys or any(fnmatchcase(key, pattern) for pattern in self._keys)

    def add_message(self, message: Message, put: Callable[[str], None]) -> None:
        """Add a message whose translation is written even if it is the same text."""
        self._values.append((None, message, put))

    def file_text(self, render: Callable[[], bytes]) -> FileText:
        """Return the text of the file, given the function that renders it with what was put."""
        segments: list[Segment] = [one for _, found, _ in self._values for one in found.segments]

        def rendered(translations: Sequence[str]) -> bytes:
            found = render_each((message for _, message, _ in self._values), translations)
            for (value, _, put), translated in zip(self._values, found, strict=True):
                if translated != value:
                    put(translated)
            return render()

        return FileText(segments, rendered)


def join_surrogates(text: str) -> str:
    """Return a text whose characters were escaped as pairs of surrogates."""
    return _SURROGATES.sub(
        lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


def line_error(kind: str, line: int, reason: str) -> InputError:
    """Return the error of a line that is not of a format."""
    return InputError(f"is not {kind}: line {line} {reason}.")
