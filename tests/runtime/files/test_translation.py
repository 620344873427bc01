"""Segments of many files in one stream."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.errors import BackendError, InputError, OptionError
from translate_trt.runtime.files import (
    FileTranslator,
    ReadOptions,
    Segment,
    SegmentTranslator,
    format_of,
)
from translate_trt.runtime.files.formats import FileFormat
from translate_trt.runtime.files.translation import (
    FileTask,
    Memory,
    Origin,
    SegmentPlan,
    Translated,
)


class OneText(Memory):
    def find(self, text: str, kind: str) -> Translated | None:
        return Translated("<known>", Origin("fuzzy", 0.5)) if text == "known" else None


def plan(segments: Sequence[Segment]) -> SegmentPlan:
    return SegmentPlan(segments, [f"segment {n}" for n in range(len(segments))], OneText())


def test_what_the_model_sees() -> None:
    """Outer white space and tags stay, equal texts are translated once, and references decoded."""
    segments = [
        Segment(" a\n cat &amp; "), Segment('<x id="1"/> <g id="2"> a\n cat &amp; dog</g>', "xml"),
        Segment("a cat & dog"), Segment("<b>a</b> <i>b</i>", "xml"), Segment("12 <", "text"),
        Segment("known", "xml"), Segment('<x/><mrk id="1" translate="no">ACME</mrk>', "xml"),
    ]  # fmt: skip
    planned = plan(segments)
    assert planned.texts == {
        "text": {"a\n cat &amp;": "segment 0", "a cat & dog": "segment 1"},
        "xml": {"<b>a</b> <i>b</i>": "segment 3"},
    }
    found = planned.finish({"text": ["A<", "B<"], "xml": ["<i>b</i> <b>a</b>"]})
    assert [one.text for one in found] == [
        " A< ", '<x id="1"/> <g id="2"> B&lt;</g>', "B<", "<i>b</i> <b>a</b>", "12 <",
        "&lt;known&gt;", segments[6].text,
    ]  # fmt: skip
    names = ["model", "model", "repeated", "model", "none", "fuzzy", "none"]
    assert [one.origin.name for one in found] == names
    # The segments' own texts are written as they were.
    found = planned.finish({kind: [*texts] for kind, texts in planned.texts.items()})
    assert [one.text for one in found][:5] == [one.text for one in segments][:5]


def words(text: str) -> list[Segment]:
    return [Segment(word) for word in text.split()]


class Upper:
    """Translation into capitals that refuses a word, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def __call__(self, segments: Sequence[Segment], names: Sequence[str]) -> list[Translated]:
        self.calls.append([segment.text for segment in segments])
        for segment, name in zip(segments, names, strict=True):
            if segment.text.strip() == "bad":
                raise InputError(f"{name}: is bad.")
        return [Translated(one.text.upper(), Origin("model")) for one in segments]


def task(name: str, content: bytes, written: dict[str, bytes]) -> FileTask:
    def write(translated: bytes) -> None:
        written[name] = translated

    return FileTask(name, lambda: content, format_of("a.txt"), write)


def test_files_are_batched_and_fail_alone() -> None:
    written: dict[str, bytes] = {}
    contents = {
        "1": b"one\n\ntwo\n", "2": b"\xff", "3": b"bad\n", "4": b"three\n\nfour\n\nfive\n",
        "5": b"",
    }  # fmt: skip
    upper = Upper()
    tasks = (task(name, content, written) for name, content in contents.items())
    outcomes = list(FileTranslator(upper, chunk_segments=3).translate_files(tasks))
    assert [outcome.name for outcome in outcomes] == list(contents)
    assert [outcome.error is None for outcome in outcomes] == [True, False, False, True, True]
    assert written == {"1": b"ONE\n\nTWO\n", "4": b"THREE\n\nFOUR\n\nFIVE\n", "5": b""}
    assert all(len(call) <= 3 for call in upper.calls)


def test_a_file_of_many_segments_is_translated_in_even_chunks() -> None:
    upper = Upper()
    content = "\n\n".join(map(str, range(10))).encode()
    FileTranslator(upper, chunk_segments=4).translate_content(content, "a.txt")
    assert [len(call) for call in upper.calls] == [3, 3, 4]


def test_with_a_bundle(translator: Translator) -> None:
    files = FileTranslator(SegmentTranslator(translator, split_sentences=False).translate)
    page = b"<h1>The <i>cat</i></h1>\n<p>12</p>"
    expected = translator.translate_document(page.decode(), markup="html", split_sentences=False)
    assert files.translate_content(page, "a.html").decode() == expected.text
    text = b"The cat\nruns.\n"
    expected = translator.translate_document("The cat\nruns.", split_sentences=False)
    assert files.translate_content(text, "a.txt").decode() == f"{expected.text}\n"
    options = SearchOptions(beam_size=10_000)
    with pytest.raises(OptionError):
        SegmentTranslator(translator, options).translate([Segment("a")], ["a"])


def test_tags_need_the_library(without_library: None, translator: Translator) -> None:
    with (
        Translator(translator._path, threads=1) as plain,
        pytest.raises(BackendError),
    ):
        SegmentTranslator(plain).translate([Segment("<b>a</b> c", "xml")], ["a"])


@pytest.mark.parametrize("name", ["a.doc", "a.docm", "a", "a.jsonl"])
def test_unknown_formats(name: str) -> None:
    with pytest.raises(InputError):
        format_of(name)


def test_a_missing_package_is_named() -> None:
    packages = ("translate_trt.runtime.files.none",)
    missing = FileFormat("a format", (".x",), "none", packages=packages)
    with pytest.raises(InputError):
        missing.read(b"", ReadOptions())
