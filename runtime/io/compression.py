"""Compressed text: gzip and zstd.

Inputs are recognized by their first bytes, whatever their name; outputs are compressed if their
name has the suffix. The same content always gives the same bytes, without names and times.
"""

from __future__ import annotations

import contextlib
import gzip
import importlib
import io
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, Protocol, cast

from translate_trt.runtime.errors import InputError, OutputError


def _zstd() -> Any:
    with contextlib.suppress(ImportError):
        name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
        return importlib.import_module(name)
    return None


#: The module; None after `pip install --no-deps`, or if Python was built without libzstd.
zstd: Any = _zstd()

# The default levels of the programs gzip and zstd.
_GZIP_LEVEL, _ZSTD_LEVEL = 6, 3
_GZIP_FORMAT = 16 + zlib.MAX_WBITS  # wbits of a gzip header and trailer; the header has no time


class Compressor(Protocol):
    """Compressor of the standard library; `flush` ends the stream."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


@dataclass(frozen=True)
class Compression:
    """A format of compressed files.

    Attributes:
        name: Name in messages.
        suffix: File name suffix.
        magic: First bytes of a file, all of one length.
        reader: Opens a stream of compressed bytes as one of decompressed bytes. Concatenated
            members are read as one; memory does not depend on their sizes.
        compressor: Creates a compressor.
        missing: Remedy if this installation lacks the library; otherwise None.
    """

    name: str
    suffix: str
    magic: frozenset[bytes]
    reader: Callable[[BinaryIO], IO[bytes]]
    compressor: Callable[[], Compressor]
    missing: str | None = None


def _zstd_compressor() -> Compressor:
    parameter = zstd.CompressionParameter
    # With the checksum, readers notice changed bytes, as those of gzip always do.
    options = {parameter.compression_level: _ZSTD_LEVEL, parameter.checksum_flag: 1}
    compressor: Compressor = zstd.ZstdCompressor(options=options)
    return compressor


_ZSTD_REMEDY = (
    "use a Python that has the module compression.zstd"
    if sys.version_info >= (3, 14)
    else "run: pip install backports.zstd"
)

GZIP = Compression(
    "gzip",
    ".gz",
    frozenset({b"\x1f\x8b"}),
    lambda stream: cast(IO[bytes], gzip.GzipFile(fileobj=stream)),
    lambda: zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT),
)
ZSTD = Compression(
    "zstd",
    ".zst",
    # A file begins with a frame, or with one of 16 kinds of skippable frames, as those of pzstd do.
    frozenset({b"\x28\xb5\x2f\xfd", *(bytes((n,)) + b"\x2a\x4d\x18" for n in range(0x50, 0x60))}),
    lambda stream: cast(IO[bytes], zstd.ZstdFile(stream)),
    _zstd_compressor,
    None if zstd is not None else _ZSTD_REMEDY,
)
COMPRESSIONS = (GZIP, ZSTD)

_DAMAGE: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
if zstd is not None:
    _DAMAGE += (zstd.ZstdError,)


def compression_of(head: bytes) -> Compression | None:
    """Return the format of a file that begins with these bytes; None if it is not compressed."""
    for compression in COMPRESSIONS:
        if any(head.startswith(magic) for magic in compression.magic):
            return compression
    return None


def compression_for(name: str) -> Compression | None:
    """Return the format that the suffix of a file name stands for, if any."""
    return next((one for one in COMPRESSIONS if name.endswith(one.suffix)), None)


def uncompressed_name(name: str) -> str:
    """Return a file name without the suffix of a compression."""
    compression = compression_for(name)
    return name if compression is None else name.removesuffix(compression.suffix)


def decompressed(stream: IO[bytes], name: str) -> tuple[bytes, IO[bytes]]:
    """Recognize a compressed stream, and decompress it while it is read.

    Of a pipe, only as much is read as recognition needs, because the rest may come later, and
    decompressed bytes are returned as soon as they have arrived. Read inside of
    `reading_compressed`, which converts errors.

    Args:
        stream: Binary stream, at its beginning.
        name: Name of the input, for messages.

    Returns:
        Bytes of uncompressed content that have been read already, and the stream of the others. At
        the end of the input, an empty stream takes the place of a terminal, which would prompt.

    Raises:
        InputError: The content does not have the format of the file name's suffix, or the library
            for the format is missing.
    """
    head = _magic(stream)
    compression = compression_of(head)
    if compression is None:
        if (named := compression_for(name)) is not None:
            raise InputError(
                f"{name} has the name of a {named.name} file but is not one; it is damaged. Get it "
                "again, or rename it if it is plain text."
            )
        return head, stream if head else io.BytesIO()
    if compression.missing is not None:
        raise InputError(
            f"{name} is compressed with {compression.name}; to read it, {compression.missing}, or "
            "decompress it."
        )
    return b"", compression.reader(cast(BinaryIO, _Rejoined(head, stream)))


def _magic(stream: IO[bytes]) -> bytes:
    """Read bytes as long as they are the beginning of a compressed file."""
    magics = [magic for compression in COMPRESSIONS for magic in compression.magic]
    head = b""
    while more := stream.read(1):
        head += more
        if not any(len(head) < len(magic) and magic.startswith(head) for magic in magics):
            break
    return head


class _Rejoined:
    """Stream whose first bytes have already been read."""

    def __init__(self, head: bytes, stream: IO[bytes]) -> None:
        self._head = head
        # read1 returns what is available; read would block until its buffer is full.
        self._read = getattr(stream, "read1", stream.read)

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes."""
        if not self._head:
            return bytes(self._read(size))
        found, self._head = self._head[:size], self._head[size:]
        return found


@contextlib.contextmanager
def reading_compressed(name: str) -> Iterator[None]:
    """Convert errors of a damaged compressed stream to InputError."""
    try:
        yield
    except _DAMAGE as error:
        if "too much memory" in str(error):  # more than 128 MiB, the limit of the program zstd
            raise InputError(
                f"{name} was compressed with a larger window than zstd reads by default; "
                "decompress it: zstd -d --long=31"
            ) from error
        reason = "it ends too early" if isinstance(error, EOFError) else str(error)
        raise InputError(f"{name} is damaged or incomplete ({reason}); get it again.") from error


def compressor_for(name: str) -> Compressor | None:
    """Create the compressor for an output whose name has a suffix of compressed files.

    Raises:
        OutputError: The library for the format is missing.
    """
    compression = compression_for(name)
    if compression is None:
        return None
    if compression.missing is not None:
        raise OutputError(
            f"cannot write {name}: to compress with {compression.name}, {compression.missing}, or "
            f"choose a name without {compression.suffix}."
        )
    return compression.compressor()


def beginning(content: bytes, size: int) -> bytes | None:
    """Decompress at most `size` bytes of a compressed file.

    Args:
        content: The file, or more of it than `size` bytes need.
        size: Maximum number of bytes.

    Returns:
        The bytes; None if the file is damaged, or the library for the format is missing.
    """
    with contextlib.suppress(InputError), reading_compressed(""):
        stream = decompressed(io.BytesIO(content), "")[1]
        return stream.read(size)
    return None
