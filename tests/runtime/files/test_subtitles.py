"""Subtitles: cues, their tags, and sentences over several cues."""

from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from support.file_texts import capitals, rendered, texts

from translate_trt.runtime.errors import InputError

SRT = """\ufeff1
00:00:02,830 --> 00:00:05,560
The old man and
his dog

2
00:00:05,700 --> 00:00:08,360
<i>run to the other side.</i>

3
00:00:09,000 --> 00:00:10,000 X1:1
- Hello!
- My <b>good
friend</b>.

4
00:00:10,500 --> 00:00:11,000
12:30

5
00:00:12,000 --> 00:00:13,000
{\\an8}A line

after a blank one
"""
VTT = """WEBVTT - title

STYLE
::cue {color: red}

NOTE 00:01 --> none

name
00:01.000 --> 00:02.000 align:start
<v Ann>Rock &amp; <c.x>roll</c>

00:02.000 --> 00:03.000 align:start
is not <00:02.500>dead.
"""
ASS = """[Script Info]
Title: of the file
[Events]
Format: Layer, Start, End, Style, Name, Text
Comment: 0,0:00:01.00,0:00:02.00,Default,,a comment
Dialogue: 0,0:00:00.00,0:00:02.00,Default,,{\\i1}Two men, who{\\i0} work\\Nin the
Dialogue: 0,0:00:02.00,0:00:04.00,Default,,{\\pos(1,2)}garden, now.
Dialogue: 0,0:00:02.00,0:00:04.00,Default,,{\\p1}m 0 0 l 1 1{\\p0}
"""


def test_srt() -> None:
    content = SRT.encode()
    assert rendered(content, "a.srt") == content
    assert texts(content, "a.srt") == [
        "The old man and his dog run to the other side.", "Hello!",
        'My <g id="0">good friend</g>.', "12:30", "A line after a blank one",
    ]  # fmt: skip
    found = rendered(content, "a.srt", capitals).decode()
    assert found.startswith(SRT[:33])
    assert "\nTHE OLD MAN AND HIS DOG\n\n2\n" in found
    assert "\n<i>RUN TO THE OTHER SIDE.</i>\n\n3\n" in found
    assert "- HELLO!\n- MY <b>GOOD FRIEND</b>.\n" in found
    assert found.endswith("\n{\\an8}A LINE AFTER A BLANK ONE\n")
    blank = content.replace(b"\n\n", b"\n" * 2_000)  # in linear time
    assert rendered(blank, "a.srt") == blank


def test_vtt() -> None:
    assert rendered(VTT.encode(), "a.vtt") == VTT.encode()
    found = rendered(VTT.encode(), "a.vtt", capitals).decode()
    head, _ = VTT.split("<v Ann>")
    assert found.startswith(f"{head}<v Ann>ROCK &amp; <c.x>ROLL</c>\n\n")
    assert found.endswith("\nIS NOT <00:02.500>DEAD.\n")


@pytest.mark.parametrize(("name", "content"), [("a.srt", SRT), ("a.vtt", VTT)])
def test_line_ends_of_windows(name: str, content: str) -> None:
    found = rendered(content.replace("\n", "\r\n").encode(), name, capitals)
    assert found == rendered(content.encode(), name, capitals).replace(b"\n", b"\r\n")


def test_speakers_share_no_sentence() -> None:
    cues = "".join(f"\n\n00:0{n}.000 --> 00:0{n + 1}.000\n<v {'ABB'[n]}>and so" for n in range(3))
    assert texts(f"WEBVTT{cues}".encode(), "a.vtt") == ["and so", "and so and so"]


def test_cues_without_a_blank_line_between_them() -> None:
    cues = "00:01.000 --> 00:02.000\nHello.\n00:03.000 --> 00:04\nMy friend\n42\n\n"
    for name, head in ("a.vtt", "WEBVTT\n\n"), ("a.srt", ""):
        found = rendered((head + cues).encode(), name, capitals).decode()
        assert found == head + cues.replace("Hello", "HELLO").replace("My friend\n", "MY FRIEND ")


def test_ass() -> None:
    assert rendered(ASS.encode(), "a.ass") == ASS.encode()
    found = rendered(ASS.encode(), "a.ass", capitals).decode().splitlines()
    assert found[:5] == ASS.splitlines()[:5]
    assert found[5].endswith("Default,,{\\i1}TWO MEN, WHO{\\i0} WORK IN THE")
    assert found[6].endswith("Default,,{\\pos(1,2)}GARDEN, NOW.")
    assert found[7] == ASS.splitlines()[7]


def test_long_lines_and_fast_cues_are_divided_again() -> None:
    cues = "1\n00:00:01,000 --> 00:00:02,000\nIt is so\n\n2\n00:00:02,000 --> 00:00:09,000\nbig.\n"
    long = "word " * 20 + "end."
    found = rendered(cues.encode(), "a.srt", lambda _: long).decode().split("\n\n")
    first, second = (cue.split("\n", 2)[2] for cue in found)
    assert " ".join(f"{first} {second}".split()) == long
    assert len(first) < len(second)  # the second is longer on the screen
    assert all(len(line) <= 42 for line in second.splitlines())
    narrow = rendered(cues.encode(), "a.srt", lambda _: long, line_length=20).decode()
    assert max(map(len, narrow.split("\n\n")[1].splitlines()[2:])) <= 20
    # A transcript in one cue took minutes.
    lines = rendered(cues.encode(), "a.srt", lambda _: "word " * 1_000).decode().splitlines()
    assert " ".join(lines).count("word") == 1_000
    assert max(map(len, lines)) <= 44


def test_tags_over_two_cues_end_and_begin_again() -> None:
    cues = (
        "1\n00:00:01,000 --> 00:00:02,000\nThe <i>big old\n\n"
        "2\n00:00:02,000 --> 00:00:03,000\ngrey</i> house\n"
    )
    found = rendered(cues.encode(), "a.srt", capitals).decode()
    assert "THE <i>BIG OLD</i>\n" in found
    assert "\n<i>GREY</i> HOUSE\n" in found


def test_a_translation_without_spaces() -> None:
    cues = "1\n00:00:01,000 --> 00:00:03,000\nA test of\n\n2\n00:00:03,000 --> 00:00:05,000\nit.\n"
    text = "\u8fd9\u662f\u4e00\u4e2a\u6d4b\u8bd5\uff0c\u5f88\u597d\u3002"
    found = rendered(cues.encode(), "a.srt", lambda _: text).decode().split("\n\n")
    first, second = ("".join(cue.split("\n")[2:]) for cue in found)
    assert first + second == text
    assert first.endswith("\uff0c")


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.srt", "1\n0:0x --> 00:00:01,000\nText"), ("a.vtt", "00:01.000 --> 00:02.000\nText"),
     ("a.srt", "00:00:01,000 --> 00:00:02,000\nText\n\n00:00:-3,000 --> 00:00:04,000\nText"),
     ("a.ass", "[Events]\nDialogue: 0,text"),
     ("a.ass", "[Events]\nFormat: Start, End, Text\nDialogue: 1,2,text"),
     ("a.srt", "\0")],
)  # fmt: skip
def test_damaged_files(name: str, content: str) -> None:
    with pytest.raises(InputError):
        texts(content.encode(), name)


PIECES = (
    "word", " ", "\n", "<i>", "</i>", "<b>", "{\\an8}", "- ", ".", ", ", "&amp;", "<", "\u266a ",
    "{\\i1}", "{\\i0}", "\\N", "<v A>", "<c.x>", "</c>", "12", "\u6f22", "\n\n",
)  # fmt: skip


@pytest.mark.parametrize("name", ["a.srt", "a.vtt", "a.ass"])
def test_random_cues(name: str) -> None:
    """Timing stays, unchanged text is byte-identical, and every tag is written once."""
    rng = random.Random(3)
    for _ in range(500):
        bodies = [
            "".join(rng.choices(PIECES, k=rng.randint(0, 12))) for _ in range(rng.randint(1, 4))
        ]
        if name == "a.ass":
            head = "[Events]\nFormat: Start, End, Text\n"
            bodies = [re.sub(r"[\n,]", "", body) for body in bodies]
            cues = [
                f"Dialogue: 0:00:0{n}.00,0:00:0{n + 1}.00,{one}\n" for n, one in enumerate(bodies)
            ]
        else:
            head = "WEBVTT\n\n" if name == "a.vtt" else ""
            cues = [f"{n}\n00:0{n}.000 --> 00:0{n}.900\n{one}\n\n" for n, one in enumerate(bodies)]
        content = (head + "".join(cues)).encode()
        assert rendered(content, name) == content
        found = rendered(content, name, lambda one: capitals(one).replace("WORD", "A LONGER WORD"))
        timing = re.compile(r"^(?:Dialogue: .*?,.*?,|.* --> .*$)", re.MULTILINE)
        assert timing.findall(found.decode()) == timing.findall(content.decode())
        tags = re.compile(rb"\{\\an8\}" if name == "a.ass" else rb"\{\\an8\}|<v A>")
        assert Counter(tags.findall(found)) == Counter(tags.findall(content))
