"""Properties of Java."""

import random

import pytest
from support.file_damage import read_damaged
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

FILE = """\
# Comment = x
! and another
title = The title
 key\\:1:two \\
    lines
escaped=caf\\u00e9 \\t\\\\ \\=\\n\\
        \\ next
empty =
message It''s {0}
"""


def load(content: bytes) -> dict[str, str]:
    """Read properties independently, line by line."""
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError:
        text = content.decode("latin-1")
    lines: list[str] = []
    is_continued = False
    for line in text.replace("\r\n", "\n").split("\n"):
        line = line.lstrip(" \t\f")
        if is_continued:
            lines[-1] += line
        elif line and line[0] not in "#!":
            lines.append(line)
        else:
            continue
        is_continued = (len(lines[-1]) - len(lines[-1].rstrip("\\"))) % 2 == 1
        lines[-1] = lines[-1][:-1] if is_continued else lines[-1]
    found = {}
    for line in lines:
        at = 0
        while at < len(line) and line[at] not in " \t\f:=":
            at += 2 if line[at] == "\\" else 1
        value = line[at:].lstrip(" \t\f")
        value = value[1:].lstrip(" \t\f") if value[:1] in ("=", ":") else value
        found[unescape(line[:at])] = unescape(value)
    return found


def unescape(text: str) -> str:
    units, at = b"", 0
    while at < len(text):
        if text[at] != "\\":
            units += text[at].encode("utf-16-be")
            at += 1
        elif text[at + 1] == "u":
            units += bytes.fromhex(text[at + 2 : at + 6])
            at += 6
        else:
            letter = text[at + 1]
            units += {"n": "\n", "t": "\t"}.get(letter, letter).encode("utf-16-be")
            at += 2
    return units.decode("utf-16-be")


def test_values_are_written_as_the_file_does() -> None:
    content = FILE.encode()
    assert texts(content, "a.properties") == [
        "The title", "two lines", "café \t\\ =\n next", "It's {0}",
    ]  # fmt: skip
    assert texts(content, "a.properties", keys=("key:*", "title")) == ["The title", "two lines"]
    found = rendered(content, "a.properties", lambda segment: segment.text.upper()).decode()
    assert found == FILE.replace("The title", "THE TITLE").replace(
        "two \\\n    lines", "TWO LINES").replace("caf\\u00e9", "CAF\\u00c9").replace(
        " \\=", " =").replace("next", "NEXT").replace("It", "IT").replace("s {", "S {")  # fmt: skip


@pytest.mark.parametrize(
    ("content", "written"),
    [
        (b"a=b", b"a=\\u0142\\ud83d\\ude00"),
        ("a=b # é".encode(), "a=ł😀".encode()),
        ("# é\na=b".encode("latin-1"), "# é\na=\\u0142\\ud83d\\ude00".encode("latin-1")),
        ("a=b".encode("utf-16"), "a=ł😀".encode("utf-16")),
    ],
    ids=["ascii", "utf-8", "latin-1", "utf-16"],
)
def test_encodings(content: bytes, written: bytes) -> None:
    assert rendered(content, "a.properties", lambda _: "ł😀") == written
    if not content.isascii() and "é".encode("latin-1") in content:
        named = rendered(content, "a.properties", lambda _: "ł😀", encoding="iso-8859-1")
        assert named == written


def random_file(source: random.Random) -> str:
    lines = []
    for number in range(source.randrange(6)):
        words = [
            "one",
            "It''s",
            "{0}",
            "\\\n   more",
            "\\n",
            "\\t",
            "\\u00e9",
            "\\\\",
            "=",
            "é",
            "#",
        ]
        value = source.choice(" x") + " ".join(source.choices(words, k=source.randrange(1, 6)))
        lines.append(source.choice(("", "# comment\\", "  ")))
        lines.append(f"k{number}{source.choice('=: ')}{value}")
    return "\n".join(lines)


def test_random_files() -> None:
    source = random.Random(0)
    for _ in range(500):
        text = random_file(source)
        content = text.replace("\n", source.choice(("\n", "\r\n"))).encode(
            source.choice(("utf-8", "latin-1"))
        )
        assert rendered(content, "a.properties") == content
        expected = {key: value.upper() for key, value in load(content).items()}
        assert load(rendered(content, "a.properties", capitals)) == expected


def test_damaged_files_are_refused() -> None:
    read_damaged(FILE.encode(), "a.properties")
    with pytest.raises(InputError, match="line 2"):
        texts(b"a=b\nc=\\u12", "a.properties")
