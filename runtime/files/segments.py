"""Segments of a file, and the file around them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from translate_trt.runtime.errors import InputError, OptionError

#: A letter, without which a text is not translated.
HAS_LETTER = re.compile(r"[^\W\d_]")

# Byte order marks, the longer ones first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Segment(NamedTuple):
    """A text that is translated by itself.

    Attributes:
        text: The text; of kind "xml" a well-formed fragment whose tags are kept, of kind "html" a
            whole document.
        kind: "text" for plain text, which may have line ends; "xml" or "html".
        place: Place in the file for messages and reports, such as "slide 3"; empty if unknown.
        length: Maximum number of characters of the translation that the format states; None for
            none.
    """

    text: str
    kind: str = "text"
    place: str = ""
    length: int | None = None


class FileText(NamedTuple):
    """The text of a file.

    Attributes:
        segments: Segments to translate, in order.
        render: Returns the file's content for one translation per segment, in order. With the
            segments' own texts it returns the file unchanged, where the format allows. To be called
            once.
    """

    segments: Sequence[Segment]
    render: Callable[[Sequence[str]], bytes]


@dataclass(frozen=True)
class ReadOptions:
    """Options of all formats.

    Attributes:
        source_language: Source language, in any form; None if unknown.
        target_language: Target language, which formats that name the language of their text
            declare; None if unknown.
        overwrite: Translate also what has a translation (PO, XLIFF, TMX).
        keys: Patterns (`fnmatch`) of the keys whose values are text, such as "*.title"; empty for
            all (JSON, YAML, properties and other resources).
        encoding: Encoding of text files without a byte order mark; None: UTF-8, or what the format
            declares.
        line_length: Maximum number of characters in a line of a subtitle.
        reading_speed: Reading speed of viewers in characters per second, for the division of a
            sentence over its cues.
        max_bytes: Maximum size of a file, and of all parts of a packed one.
    """

    source_language: str | None = None
    target_language: str | None = None
    overwrite: bool = False
    keys: tuple[str, ...] = ()
    encoding: str | None = None
    line_length: int = 42
    reading_speed: float = 17.0
    max_bytes: int = 1 << 28

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            OptionError: A number is out of range, or there is no such encoding.
        """
        for name, least in (("line_length", 1), ("max_bytes", 1)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least {least}.")
        if not self.reading_speed > 0:
            raise OptionError(f"reading_speed is {self.reading_speed}; it must be above 0.")
        if self.encoding is not None:
            try:
                "a".encode(self.encoding)
            except (LookupError, UnicodeError) as error:  # unknown, or of bytes, such as base64
                raise OptionError(
                    f"encoding is {self.encoding!r}, which is no encoding of text that Python "
                    "knows; write a name such as utf-8, utf-16 or cp1252."
                ) from error


class Encoding(NamedTuple):
    """Encoding of a text file, byte order mark included."""

    name: str
    mark: bytes = b""

    def encode(self, text: str) -> bytes:
        """Encode a text as the file was, or in UTF-8 if the encoding lacks a character."""
        try:
            return self.mark + text.encode(self.name)
        except UnicodeError:
            return text.encode("utf-8")


def decode(content: bytes, options: ReadOptions) -> tuple[str, Encoding]:
    """Decode a text file by its byte order mark, or else by the options.

    Raises:
        InputError: The bytes are not text in this encoding.
    """
    encoding = Encoding(options.encoding or "utf-8")
    for mark, name in _MARKS:
        if content.startswith(mark):
            encoding = Encoding(name, mark)
            break
    try:
        text = content[len(encoding.mark) :].decode(encoding.name)
    except UnicodeError as error:
        place = f", at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise InputError(
            f"not text in {encoding.name}{place}; name the file's encoding, such as --encoding "
            "cp1252."
        ) from error
    if "\0" in text:
        raise InputError("has NUL characters, which no text has; is it another kind of file?")
    return text, encoding
