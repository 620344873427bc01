"""Compressed text, compared with Python's gzip module and with pyarrow's zstd."""

from __future__ import annotations

import dataclasses
import gzip
import io
import os
import random
import subprocess
import sys
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pytest

from translate_trt.runtime.errors import InputError, OutputError
from translate_trt.runtime.io import compression
from translate_trt.runtime.io.compression import (
    COMPRESSIONS,
    GZIP,
    ZSTD,
    beginning,
    compression_for,
    compression_of,
    compressor_for,
    uncompressed_name,
)
from translate_trt.runtime.io.lines import count_lines, read_lines, read_parallel
from translate_trt.runtime.io.outputs import is_text

pytestmark = pytest.mark.skipif(compression.zstd is None, reason="zstd is not installed")
zstd: Any = compression.zstd
NAMES = [one.name for one in COMPRESSIONS]
TEXT = "".join(f"{random.Random(n).randbytes(30).hex()}\n" for n in range(999)).encode()
#: Frames that readers skip, as pzstd and the seekable format write them.
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\0\0\0abcd"


def pack(name: str, content: bytes) -> bytes:
    if name == "gzip":
        return gzip.compress(content)
    packed: bytes = pyarrow.Codec("zstd").compress(content, asbytes=True)
    return packed


def unpack(name: str, content: bytes) -> bytes:
    if name == "gzip":
        return gzip.decompress(content)
    with pyarrow.CompressedInputStream(pyarrow.BufferReader(content), "zstd") as stream:
        unpacked: bytes = stream.read()
    return unpacked


def compress(suffix: str, content: bytes, step: int) -> bytes:
    compressor = compressor_for(f"a{suffix}")
    assert compressor is not None
    parts = (content[at : at + step] for at in range(0, len(content), step))
    return b"".join(map(compressor.compress, parts)) + compressor.flush()


def lines_of(content: bytes, name: str = "in.txt") -> list[str]:
    return list(read_lines(io.BytesIO(content), name))


class Dribble(io.RawIOBase):
    """Pipe that delivers single bytes."""

    def __init__(self, content: bytes) -> None:
        self._left = content

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), 1, len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count


# ---- names and first bytes ----


def test_suffixes() -> None:
    assert compression_for("a.txt.gz") is GZIP
    assert compression_for("dir.gz/a.zst") is ZSTD
    assert compression_for("dir.gz/a.txt") is compression_for("gz") is None
    assert compressor_for("a.txt") is None
    assert [uncompressed_name(f"a.en{end}") for end in (".gz", ".zst", "")] == ["a.en"] * 3


def test_first_bytes() -> None:
    for name, expected in (("gzip", GZIP), ("zstd", ZSTD)):
        assert compression_of(pack(name, b"")) is expected
    assert compression_of(SKIPPABLE) is ZSTD
    for text in (b"", b"(", b"P", b"P*M", b"\x1f", b"(\xc2\xb5/"):
        assert compression_of(text) is None


@pytest.mark.parametrize("text", ["(", "(a", "P", "P*M", "_*", "\x1f", "(\n(", "P\n", ""])
def test_text_that_begins_like_an_archive(text: str) -> None:
    assert lines_of(text.encode()) == text.splitlines()
    reading, writing = os.pipe()
    with open(reading, "rb") as stream:
        os.write(writing, f"{text}\n".encode())
        assert next(read_lines(stream, "pipe")) == (text.splitlines() or [""])[0]
        os.close(writing)


@pytest.mark.parametrize("name", ["in.gz", "in.zst"])
def test_a_name_that_promises_compression(name: str) -> None:
    with pytest.raises(InputError, match=rf"{name} has the name of a \w+ file but is not one"):
        lines_of(b"text\n", name)
    with pytest.raises(InputError, match=f"{name} .* is damaged"):  # a download that failed
        lines_of(b"", name)
    assert lines_of(b"", "in") == []
    assert lines_of(pack("zstd", b"a\n"), name) == lines_of(pack("gzip", b"a\n"), name) == ["a"]


# ---- reading ----


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"a", b"\xef\xbb\xbfa\r\nb", TEXT],
    ids=["empty", "empty line", "no final newline", "mark", "text"],
)
def test_lines_of_a_compressed_file(name: str, content: bytes, tmp_path: Path) -> None:
    expected = lines_of(content)
    assert lines_of(pack(name, content)) == expected
    half = len(content) // 2
    frames = [content[:half], b"", content[half:]]  # as `cat a.gz b.gz` makes
    packed = b"".join(pack(name, part) for part in frames)
    assert lines_of(packed) == expected
    pipe = io.BufferedReader(Dribble(packed))
    assert list(read_lines(pipe, "standard input")) == expected
    (tmp_path / "a").write_bytes(pack(name, content))
    assert count_lines(str(tmp_path / "a")) is None


def test_frames_that_are_skipped() -> None:
    content = SKIPPABLE + pack("zstd", b"a\n") + SKIPPABLE * 2 + pack("zstd", b"b\n") + SKIPPABLE
    assert lines_of(content) == ["a", "b"]


@pytest.mark.parametrize("name", NAMES)
def test_lines_of_a_compressed_pipe_are_not_held_back(name: str) -> None:
    reading, writing = os.pipe()
    packer: Any = zlib.compressobj(wbits=31) if name == "gzip" else zstd.ZstdCompressor()
    flushed = zlib.Z_SYNC_FLUSH if name == "gzip" else packer.FLUSH_BLOCK
    with open(reading, "rb") as source, open(writing, "wb", buffering=0) as sink:
        sink.write(packer.compress(b"one\n") + packer.flush(flushed))
        lines = read_lines(source, "standard input")
        assert next(lines) == "one"
        sink.write(packer.compress(b"two\n") + packer.flush())
        assert next(lines) == "two"


WHOLE = compress(".zst", TEXT, 9999) if zstd else b""
DAMAGED = {
    f"{name} {damage}": content
    for name, whole, end in (("gzip", gzip.compress(TEXT), 8), ("zstd", WHOLE, 4))
    for damage, content in {
        "truncated": whole[:-1],
        "header alone": whole[:5],
        "changed": whole[:500] + b"\0\0" + whole[502:],
        "garbage after": whole + b"garbage",
        "wrong checksum": whole[:-end] + bytes(end),
    }.items()
} | {
    "zstd magic alone": WHOLE[:4],
    "second zstd frame truncated": WHOLE + WHOLE[:-9],
    "skippable frame truncated": SKIPPABLE[:-1],
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_damaged_archives(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"in\.txt"):
        lines_of(content)
    path = tmp_path / "in"
    path.write_bytes(content)
    with pytest.raises(InputError, match=str(path)):
        list(read_parallel(path, path))


@pytest.mark.parametrize("name", NAMES)
def test_memory_does_not_depend_on_the_size(name: str) -> None:
    count = 16 << 10
    packed = pack(name, (b"a" * 1023 + b"\n") * count)  # 16 MiB
    assert len(packed) < 1 << 17
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_lines(io.BytesIO(packed), "in")) == count
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_window_that_takes_too_much_memory() -> None:
    options: dict[int, int] = {zstd.CompressionParameter.window_log: 28}
    packer = zstd.ZstdCompressor(options=options)
    content = packer.compress(b"a\n") + packer.flush()
    with pytest.raises(InputError, match=r"in\.txt.*--long=31"):
        lines_of(content)


# ---- writing ----


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "content", [b"", b"a\n", TEXT, bytes(1 << 20)], ids=["empty", "line", "text", "zeros"]
)
def test_compressed_content_is_read_by_others(name: str, content: bytes) -> None:
    suffix = next(one.suffix for one in COMPRESSIONS if one.name == name)
    packed = compress(suffix, content, 1 << 16)
    assert unpack(name, packed) == content
    # The same bytes, however the content arrives.
    assert all(compress(suffix, content, step) == packed for step in (999, 1 << 21))
    if name == "gzip":
        assert packed[:8] == b"\x1f\x8b\x08\0\0\0\0\0"  # no name and no time
    else:
        assert zstd.get_frame_info(packed).dictionary_id == 0
        assert packed[4] & 0b100  # has a checksum


# ---- without the library ----


@pytest.fixture
def no_zstd(monkeypatch: pytest.MonkeyPatch) -> None:
    without = dataclasses.replace(ZSTD, missing="run: pip install backports.zstd")
    monkeypatch.setattr(compression, "COMPRESSIONS", (GZIP, without))


def test_a_missing_library_is_named(no_zstd: Any) -> None:
    remedy = "run: pip install backports.zstd"
    with pytest.raises(InputError, match=f"in is compressed with zstd; to read it, {remedy}"):
        lines_of(pack("zstd", b"a\n"), "in")
    with pytest.raises(OutputError, match=rf"cannot write a\.zst: to compress .*, {remedy}"):
        compressor_for("a.zst")
    assert not is_text(pack("zstd", b"a\n"))
    assert lines_of(pack("gzip", b"a\n")) == ["a"]


def test_the_remedy_is_of_this_python() -> None:
    code = "import sys; sys.modules['backports'] = sys.modules['compression'] = None\n"
    code += "from translate_trt.runtime.io.compression import ZSTD; print(ZSTD.missing)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ("pip install backports.zstd" in run.stdout) == (sys.version_info < (3, 14))


# ---- outputs that may be replaced ----


@pytest.mark.parametrize("name", NAMES)
def test_compressed_text_is_text(name: str) -> None:
    assert is_text(pack(name, "ü\n".encode()))
    assert is_text(pack(name, "ü".encode() * (1 << 20)))  # cut within a character or not
    assert is_text(pack(name, b"a" + "ü".encode() * (1 << 20)))
    assert not is_text(pack(name, b"a\0b"))
    assert not is_text(pack(name, b"\xff\n"))
    assert not is_text(pack(name, TEXT)[:100])
    assert beginning(pack(name, TEXT), 10) == TEXT[:10]
