"""Sources of parallel text: plain and compressed files, members of tar archives, and SGM."""

from __future__ import annotations

import itertools
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol
from xml.sax.saxutils import unescape

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.compression import reading_compressed, uncompressed_name
from translate_trt.runtime.io.lines import check_input, read_parallel, text_lines

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# A language, and a region or script.
_LANGUAGE = re.compile(r"[^\W\d_]{2,3}([-_]([A-Z]{2}|[A-Z][a-z]{3}))?")
_SEGMENT = re.compile(r"<seg\b[^>]*>(.*?)</seg\s*>", re.DOTALL | re.IGNORECASE)
_ENTITIES = {"&quot;": '"', "&apos;": "'"}  # in addition to &lt; &gt; &amp;

# Block size for reading archives, in bytes; tarfile's default of 10 kB costs many more calls.
_BLOCK = 1 << 20


@dataclass(frozen=True)
class TextSource:
    """Lines of one language: a file, or a member of a tar archive.

    Compressed files are decompressed; of `.sgm` files, compressed or not, the text of the segments
    is read. Members are streamed, never extracted to disk.
    """

    path: Path
    member: str | None = None

    def __str__(self) -> str:
        return f"{self.path}: {self.member}" if self.member else str(self.path)

    def check(self) -> None:
        """Raise an InputError if the file cannot be read."""
        check_input(str(self.path))

    @contextmanager
    def open(self) -> Iterator[Iterator[bytes]]:
        """Open the source as an iterator over lines in bytes, with line ends.

        Raises:
            InputError: The file or member is missing or damaged, also during iteration.
        """
        self.check()
        with ExitStack() as stack:
            with _reading(self):
                lines = self._open(stack)
            yield self._guarded(lines)

    def _open(self, stack: ExitStack) -> Iterator[bytes]:
        name = self.member or self.path.name
        if self.member is None:
            stream: IO[bytes] = stack.enter_context(self.path.open("rb"))
        else:
            archive = stack.enter_context(
                tarfile.open(self.path, mode="r|*", bufsize=_BLOCK)  # noqa: SIM115
            )
            stream = stack.enter_context(_find_member(archive, self))
        lines = text_lines(stream, str(self))
        if uncompressed_name(name).endswith(".sgm"):
            return iter(_segments(b"".join(lines), self))
        return _lines(lines)

    def _guarded(self, lines: Iterator[bytes]) -> Iterator[bytes]:
        with _reading(self):
            yield from lines


@contextmanager
def _reading(source: TextSource) -> Iterator[None]:
    try:
        with reading_compressed(str(source)):
            yield
    except tarfile.TarError as error:
        raise InputError(
            f"{source} is damaged ({error or type(error).__name__}); get it again."
        ) from error


def _find_member(archive: tarfile.TarFile, source: TextSource) -> IO[bytes]:
    """Find a member in a streamed archive, skipping the members before it."""
    names = []
    for member in archive:
        names.append(member.name.removeprefix("./"))
        stream = archive.extractfile(member) if names[-1] == source.member else None
        if stream is not None:
            return stream
    raise InputError(f"{source.path} has no file {source.member}; it has {', '.join(names)}.")


def _lines(stream: Iterator[bytes]) -> Iterator[bytes]:
    for index, line in enumerate(stream):
        if index == 0:
            line = line.removeprefix(_BYTE_ORDER_MARK)
            if not line:  # a file of a byte order mark only
                return
        yield line


def _segments(content: bytes, source: TextSource) -> list[bytes]:
    """Return the text of each <seg>, one line each."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{source} is not UTF-8: {error}.") from error
    segments = _SEGMENT.findall(text)
    if not segments:
        raise InputError(f"{source} has no <seg> element; it is not a test set in SGM.")
    # split(" \t\r\n"): other white space, such as U+00A0 or U+2028, belongs to the text.
    return [
        (unescape(re.sub(r"[ \t\r\n]+", " ", segment).strip(" "), _ENTITIES) + "\n").encode()
        for segment in segments
    ]


class LineSource(Protocol):
    """Lines of one side of a corpus."""

    def check(self) -> None:
        """Raise an InputError if the source cannot be read."""

    def open(self) -> AbstractContextManager[Iterator[bytes]]:
        """Open the source as an iterator over lines in bytes, with line ends."""


Pair = tuple[LineSource, LineSource]


def read_line_chunks(
    source: LineSource, target: LineSource, size: int, alignment: LineSource | None = None
) -> Iterator[tuple[list[bytes], ...]]:
    """Iterate over the lines of both sources in chunks of `size` pairs; the last may be shorter.

    Args:
        source: Source text.
        target: Its translation.
        size: Pairs of a chunk.
        alignment: Alignments of the pairs, for chunks of three lists of lines.

    Raises:
        InputError: A source cannot be read, or the numbers of lines differ.
    """
    sides = [source, target] if alignment is None else [source, target, alignment]
    with ExitStack() as stack:
        streams = [stack.enter_context(side.open()) for side in sides]
        done = 0
        while True:
            chunk = tuple(list(itertools.islice(stream, size)) for stream in streams)
            if len({len(lines) for lines in chunk}) > 1:
                counts = [
                    done + len(lines) + sum(1 for _ in rest)
                    for lines, rest in zip(chunk, streams, strict=True)
                ]
                raise _not_parallel(sides, counts)
            if not chunk[0]:
                return
            done += len(chunk[0])
            yield chunk


def decode_lines(lines: Iterable[bytes]) -> list[str]:
    """Decode lines and remove their ends; bytes that are not UTF-8 become U+FFFD."""
    return [line.removesuffix(b"\n").removesuffix(b"\r").decode(errors="replace") for line in lines]


def read_sides(source: Path, target: Path) -> tuple[list[str], list[str]]:
    """Read all lines of a text and of its translation (`read_parallel`)."""
    pairs = list(read_parallel(source, target))
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def _not_parallel(sides: Sequence[LineSource], counts: Sequence[int]) -> InputError:
    if counts[0] == counts[1]:
        return InputError(
            f"{sides[2]} has {counts[2]} lines and {sides[0]} has {counts[0]}; it must have the "
            "alignment of each pair, line by line."
        )
    return InputError(
        f"{sides[0]} has {counts[0]} lines and {sides[1]} has {counts[1]}; they must be "
        "translations of each other, line by line."
    )


def language_of(path: Path) -> str | None:
    """Return the language code at the end of a file name, if any: "en" for `train.en.gz`."""
    code = uncompressed_name(path.name).rpartition(".")[2]
    return code if _LANGUAGE.fullmatch(code) and code != path.name else None
