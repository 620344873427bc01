from __future__ import annotations

import bz2
import errno
import gzip
import io
import logging
import lzma
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.lines import (
    available_chunks,
    check_input,
    chunks,
    count_lines,
    open_input,
    read_chunks,
    read_lines,
    read_parallel,
    read_text,
)


def lines_of(content: bytes) -> list[str]:
    return list(read_lines(io.BytesIO(content), "in.txt"))


CASES = {
    "empty": (b"", []),
    "newline": (b"\n", [""]),
    "two-newlines": (b"\n\n", ["", ""]),
    "unended-line": (b"a", ["a"]),
    "line": (b"a\n", ["a"]),
    "unended-second-line": (b"a\nb", ["a", "b"]),
    "crlf": (b"a\r\nb\r\n", ["a", "b"]),
    "two-returns": (b"a\r\r\n", ["a\r"]),
    "return-inside": (b"a\rb\n", ["a\rb"]),
    "blanks": (b" \t \n", [" \t "]),
    "marks": (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    "unit-separator": (b"\x1f", ["\x1f"]),
    "first-byte-of-gzip": (b"\x1f\nb\n", ["\x1f", "b"]),
    "mark-alone": (b"\xef\xbb\xbf", []),
    "mark-and-newline": (b"\xef\xbb\xbf\n", [""]),
    "controls": (b"a\0b\x0bc\x0cd\x1ce\n", ["a\0b\x0bc\x0cd\x1ce"]),
    "unicode-line-ends": ("a\x85b\u2028c\u2029d\n".encode(), ["a\x85b\u2028c\u2029d"]),
    "utf-8": ("😀\n猫\n".encode(), ["😀", "猫"]),
}


@pytest.mark.parametrize(("content", "expected"), CASES.values(), ids=CASES)
def test_only_newlines_end_lines(content: bytes, expected: list[str]) -> None:
    assert lines_of(content) == expected


@pytest.mark.parametrize(("content", "expected"), CASES.values(), ids=CASES)
def test_lines_are_counted_by_the_same_rule(
    content: bytes, expected: list[str], tmp_path: Path
) -> None:
    (tmp_path / "f").write_bytes(content)
    assert count_lines(str(tmp_path / "f")) == len(expected)


def test_a_pipe_cannot_be_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert count_lines(str(tmp_path / "pipe")) is None
    assert count_lines("-") is None


def test_invalid_utf8_is_replaced_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "translate_trt")
    assert lines_of(b"a\nb\xffc\nd\n\xc3\n\xed\xa0\x80\n") == [
        "a", "b\ufffdc", "d", "\ufffd", "\ufffd\ufffd\ufffd",
    ]  # fmt: skip
    first, count = (record.getMessage() for record in caplog.records)
    assert "in.txt, line 2:" in first
    assert "3 lines" in count
    caplog.clear()
    assert lines_of("\ufffd\n".encode() + b"\xff\n") == ["\ufffd", "\ufffd"]
    assert len(caplog.records) == 1  # one line needs no count


def test_a_pipe_gives_each_line_as_it_comes() -> None:
    receiver, sender = os.pipe()
    with open(receiver, "rb") as stream:
        lines = read_lines(stream, "pipe")
        os.write(sender, b"first\nsec")
        assert next(lines) == "first"
        os.write(sender, b"ond\n")
        assert next(lines) == "second"
        os.close(sender)
        assert list(lines) == []


class Failing(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        raise OSError(errno.EIO, "Input/output error")


def test_a_read_that_fails_names_the_file() -> None:
    with pytest.raises(InputError, match=r"in\.txt"):
        list(read_lines(io.BufferedReader(Failing()), "in.txt"))


TEXT = "Ein Haus.\nÜber uns\n"


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (TEXT.encode("utf-16"), "UTF-16"),
        (b"\xfe\xff" + TEXT.encode("utf-16-be"), "UTF-16"),
        (TEXT.encode("utf-32"), "UTF-32"),
        (TEXT.encode("utf-16-le"), "UTF-16LE"),
        (TEXT.encode("utf-16-be"), "UTF-16BE"),
        (("\n" + TEXT).encode("utf-16-le"), "UTF-16LE"),
        (b"text\n" + bytes(100), "UTF-16LE"),
    ],
    ids=["LE marked", "BE marked", "UTF-32", "LE", "BE", "LE, empty line first", "NUL bytes"],
)
def test_utf16_is_refused(content: bytes, encoding: str) -> None:
    message = rf"in\.txt is not text in UTF-8; .* iconv -f {encoding} -t UTF-8 OLD > NEW"
    for stored in (content, gzip.compress(content)):
        with pytest.raises(InputError, match=message):
            lines_of(stored)


@pytest.mark.parametrize(
    ("content", "program"),
    [
        (bz2.compress(b"text\n"), "bzip2"),
        (lzma.compress(b"text\n"), "xz"),
        (b"PK\x03\x04\x14\x00", "zip"),
    ],
    ids=["bzip2", "xz", "zip"],
)
def test_other_archives_are_refused(content: bytes, program: str) -> None:
    with pytest.raises(
        InputError, match=f"is compressed with {program}; unpack it, or use gzip or zstd"
    ):
        lines_of(content)


def test_inputs_that_cannot_be_opened(tmp_path: Path) -> None:
    for check in (check_input, open_input):
        with pytest.raises(InputError, match="file"):
            check(str(tmp_path / "no"))
        with pytest.raises(InputError, match="is a directory"):
            check(str(tmp_path))


def test_checking_a_named_pipe_does_not_open_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    check_input(str(tmp_path / "pipe"))  # would wait for a writer for ever


@pytest.mark.parametrize("split", [chunks, available_chunks])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 25])
def test_chunks_keep_every_line_in_order(split: object, count: int) -> None:
    parts = list(split(iter(range(count)), 3))  # type: ignore[operator]
    assert [line for part in parts for line in part] == list(range(count))
    assert all(1 <= len(part) <= 3 for part in parts)
    assert split is available_chunks or all(len(part) == 3 for part in parts[:-1])


def test_available_lines_come_before_the_last_is_written() -> None:
    receiver, sender = os.pipe()
    with open(receiver, "rb") as stream:
        parts = available_chunks(read_lines(stream, "pipe"), 100)
        os.write(sender, b"a\n")
        assert next(parts) == ["a"]
        os.write(sender, b"b\nc\nhalf")
        received = next(parts)
        while len(received) < 2:
            received += next(parts)
        assert received == ["b", "c"]
        os.close(sender)
        assert list(parts) == [["half"]]


def test_reading_ahead_is_bounded() -> None:
    asked: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            asked.append(len(asked))
            yield asked[-1]

    parts = available_chunks(endless(), 2)
    assert next(parts)[0] == 0
    reader = next(thread for thread in threading.enumerate() if thread.name == "read-lines")
    parts.close()  # type: ignore[attr-defined]
    reader.join(60)
    assert not reader.is_alive()
    assert len(asked) <= 2 + 4 + 1 + 1  # taken, waiting, in hand, after the queue was emptied


def test_an_error_comes_after_the_lines_before_it() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise InputError("broken")

    parts = available_chunks(lines(), 10)
    assert next(parts) == ["a"]
    with pytest.raises(InputError, match="broken"):
        next(parts)


def numbered(lines: Iterator[str], name: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        yield f"{Path(name).name} {number} {line}"


def test_read_chunks_of_a_file_and_of_a_named_pipe(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"a\nb\nc")
    assert list(read_chunks(str(tmp_path / "f"), 2, numbered)) == [["f 1 a", "f 2 b"], ["f 3 c"]]
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"a\nb\nc",))
    writer.start()
    parts = list(read_chunks(str(tmp_path / "pipe"), 2, numbered))
    writer.join(60)
    assert [line for part in parts for line in part] == ["pipe 1 a", "pipe 2 b", "pipe 3 c"]


def test_parallel_lines(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"\xef\xbb\xbfa\r\n\nc\x0b\n")
    (tmp_path / "t").write_bytes("A\n\u2028\nC".encode())
    assert list(read_parallel(tmp_path / "s", tmp_path / "t")) == [
        ("a", "A"),
        ("", "\u2028"),
        ("c\x0b", "C"),
    ]


@pytest.mark.parametrize(("source", "target"), [(2, 5), (5, 2), (0, 1), (3, 0)])
def test_unequal_files_are_named_with_both_counts(tmp_path: Path, source: int, target: int) -> None:
    (tmp_path / "s.txt").write_text("x\n" * source)
    (tmp_path / "t.txt").write_text("y\n" * target)
    message = rf"s\.txt has {source} lines and .*t\.txt has {target};"
    with pytest.raises(InputError, match=message):
        list(read_parallel(tmp_path / "s.txt", tmp_path / "t.txt"))


def test_a_whole_text_keeps_its_line_ends(tmp_path: Path) -> None:
    content = "\ufeffa\r\n\n\x0cb\u2028c\rd"
    for name, packed in (("t", content.encode()), ("t.gz", gzip.compress(content.encode()))):
        (tmp_path / name).write_bytes(packed)
        assert read_text(str(tmp_path / name)) == content[1:]
    (tmp_path / "cut.gz").write_bytes(gzip.compress(content.encode())[:-4])
    with pytest.raises(InputError, match="damaged or incomplete"):
        read_text(str(tmp_path / "cut.gz"))
    (tmp_path / "wide").write_text("text", encoding="utf-16")
    with pytest.raises(InputError, match="UTF-16"):
        read_text(str(tmp_path / "wide"))
