"""Corpora without a cluster: plans, records, shards, state on disk, joining."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.bad_bundles import edit

from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.confidence import Word
from translate_trt.runtime.errors import BackendError, InputError, OptionError, OutputError
from translate_trt.runtime.io.lines import read_lines
from translate_trt.runtime.json_lines import read_json_lines
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.serve.corpus import cluster, driver, run
from translate_trt.runtime.serve.corpus.job import Job, ShardRecord, make_settings, open_job
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import Input, Shard, find_inputs, plan
from translate_trt.runtime.serve.corpus.records import BadRecord, check_first_line, read_records
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions
from translate_trt.runtime.serve.corpus.shard import translate_shard

pytestmark = pytest.mark.slow

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra `corpus`, is not installed")
parquet = pytest.importorskip("pyarrow.parquet")

ZSTD = pyarrow.Codec("zstd")

OPTIONS = CorpusOptions(shard_lines=3, max_characters=40)
SEARCH = SearchOptions()


class Upper:
    """Translator to capitals that fails on lines with "crash", and excludes some terms.

    Attributes:
        asked: Arguments of the last request.
        lines: All lines that were translated.
        constraints: Their constraints.
    """

    def __init__(self) -> None:
        self.asked: dict[str, Any] = {}
        self.lines: list[str] = []
        self.constraints: list[Any] = []

    def request(self, lines: Sequence[str], options: SearchOptions, **asked: Any) -> LineRequest:
        self.asked = asked
        return LineRequest(lines, options, terminology=asked["terminology"])

    def translate_request(self, request: LineRequest) -> list[Translation]:
        own = request.constraints or [()] * len(request.lines)
        for line, phrases in zip(request.lines, own, strict=True):
            if line == "long" and (phrases or request.terminology):
                raise InputError("a line too long for the model")
            if len(phrases) > 2:
                raise OptionError("no room")
        if any("crash" in line for line in request.lines):
            raise BackendError("out of memory")
        self.constraints += own if request.constraints else ()
        self.lines += request.lines
        return [self._one(line) for line in request.lines]

    def words(self, hypothesis: TextHypothesis) -> list[Word]:
        return [Word(text, -0.5, 0.25) for text in hypothesis.text.split()]

    def _one(self, line: str) -> Translation:
        tokens = tuple(range(len(line.split())))
        segment = Hypothesis(tokens, 0.0, (0.0,) * (len(tokens) + 1))
        return Translation((TextHypothesis(line.upper(), 0.0, (segment,) if tokens else ()),))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "out", {"corpus": {"shard_lines": 3}})


def write(path: Path, content: bytes) -> Input:
    path.write_bytes(content)
    (source,) = find_inputs([str(path)], "text")
    return source


def write_parquet(path: Path, columns: dict[str, Any], **options: Any) -> Input:
    parquet.write_table(pyarrow.table(columns), path, **options)
    (source,) = find_inputs([str(path)], "text")
    return source


def records(source: Input, options: CorpusOptions = OPTIONS, size: int = 2) -> list[Any]:
    """Return the texts and the bad records of all shards of an input."""
    return [
        record if isinstance(record, BadRecord) else record.texts[0]
        for shard in plan(source, options)
        for chunk in read_records(shard, options, size)
        for record in chunk.records
    ]


def translate(
    job: Job, source: Input, translator: Any = None, options: CorpusOptions = OPTIONS
) -> list[ShardRecord]:
    """Translate all shards of an input and join its output."""
    translator = translator or Upper()
    shards = plan(source, options)
    found = [translate_shard(shard, job, translator, SEARCH, options) for shard in shards]
    join_parts(job, source, shards, found)
    return found


@pytest.fixture
def prepare(make_bundle: Callable[..., Path], tmp_path: Path) -> Callable[..., CorpusOptions]:
    """Check all of a run that is checked before it starts, and return its options."""
    bundle = make_bundle()
    (tmp_path / "t").write_text("a\n")

    def prepare(
        search: SearchOptions = SEARCH, options: CorpusOptions = OPTIONS, name: str = "t"
    ) -> CorpusOptions:
        inputs, workers = [str(tmp_path / name)], WorkerOptions()
        work, _ = run.prepare_work(
            bundle, None, False, inputs, tmp_path / "out", search, options, workers
        )
        return work.options

    return prepare


# ---- inputs and plans ----


def test_inputs_are_found_in_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", "d.de"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    patterns = [
        f"{tmp_path}/*.txt",
        f"{tmp_path}/d.de",
        f"{tmp_path}/**/c.txt",
        f"{tmp_path}/a.txt",
    ]
    found = find_inputs(patterns, "text")
    assert [source.name for source in found] == ["a.txt", "b.txt", "d.de", "c.txt"]
    assert found[0].path == str(tmp_path / "a.txt")
    assert (found[0].size, found[0].mtime_ns) == (2, (tmp_path / "a.txt").stat().st_mtime_ns)


def test_a_file_whose_name_is_a_pattern(tmp_path: Path) -> None:
    assert write(tmp_path / "a[1].txt", b"x\n").name == "a[1].txt"


@pytest.mark.parametrize(
    ("names", "patterns", "message"),
    [
        ([], ["*.txt"], "no file matches"),
        ([], ["a.txt"], "there is no file"),
        (["a/x.txt", "b/x.txt"], ["*/x.txt"], "would both become x.txt"),
        (["x.txt", "x.txt.gz"], ["x.txt*"], "would both become x.txt"),
        (["x.txt", "x.txt.bad.jsonl"], ["x.txt*"], "is reserved for results"),
        (["_corpus"], ["_corpus"], "is reserved for results"),
        (["\u4e2d" * 75 + ".txt"], ["*.txt"], "its name is too long, since the names"),
        (["x/a"], ["x"], "is a directory"),
        (["x.parquet"], ["x.parquet"], "as Parquet"),
        (["x.xz"], ["x.xz"], "unpack it, or use gzip or zstd"),
    ],
)
def test_inputs_that_cannot_be(
    tmp_path: Path, names: list[str], patterns: list[str], message: str
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x\n")
    with pytest.raises(InputError, match=message.replace("*", r"\*")):
        find_inputs([f"{tmp_path}/{pattern}" for pattern in patterns], "text")


def test_a_pipe_is_no_corpus(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular file"):
        find_inputs([str(tmp_path / "pipe")], "text")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"words": ["a"]}, "'text'"),
        ({"text": [1]}, "int64"),
        ({"text": ["a"], "translation": ["b"]}, "'translation'"),
    ],
)
def test_parquet_that_cannot_be(tmp_path: Path, columns: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        write_parquet(tmp_path / "x.parquet", columns)


@pytest.mark.parametrize("lines", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("end", [b"\n", b""], ids=["ended", "unended"])
def test_every_line_is_in_one_shard(tmp_path: Path, lines: int, end: bytes) -> None:
    content = b"\n".join(b"w" * (7 * number % 23) for number in range(50)) + b"x" + end
    source = write(tmp_path / "a", content)
    shards = plan(source, CorpusOptions(shard_lines=lines))
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert [shard.begin for shard in shards[1:]] == [shard.end for shard in shards[:-1]]
    assert (shards[0].begin, shards[-1].end) == (0, len(content))
    assert all(content[shard.begin - 1 : shard.begin] == b"\n" for shard in shards[1:])
    assert all(shard.begin < shard.end for shard in shards)
    if lines < 10:
        assert 25 / lines <= len(shards) <= 50 / lines + 1


def test_a_shard_reaches_over_a_line_longer_than_it(tmp_path: Path) -> None:
    content = b"a\n" * 10 + b"x" * 300_000 + b"\n" + b"b\n" * 10
    shards = plan(write(tmp_path / "a", content), CorpusOptions(shard_lines=1))
    assert [(shard.begin, shard.end) for shard in shards] == [(0, 300_021), (300_021, 300_041)]


def test_an_empty_input_has_a_shard(tmp_path: Path, job: Job) -> None:
    for source in (
        write(tmp_path / "a", b""),
        write(tmp_path / "b", b"\xef\xbb\xbf"),
        write(tmp_path / "c.gz", gzip.compress(b"")),
        write(tmp_path / "e.zst", ZSTD.compress(b"", asbytes=True)),
        write_parquet(tmp_path / "d.parquet", {"text": pyarrow.array([], "string")}),
    ):
        assert [record.records for record in translate(job, source)] == [0]
    assert (job.output / "a").read_bytes() == (job.output / "b").read_bytes() == b""
    assert parquet.read_table(job.output / "d.parquet").column_names == ["text", "translation"]


# ---- JSON lines ----

JSONL = CorpusOptions(shard_lines=2, max_characters=9, input_format="jsonl", field="en")
OBJECTS = (
    b'\xef\xbb\xbf{"id": 1e400, "en": "a b"}\n\n{"en": null}\r\n{"en": ["c", null, ""], "x": {}}\n'
    b'{"en": "a"\n{"de": "a"}\n{"en": "a", "translation": "b"}\n{"en": "a \xff"}\n'
    b'{"en": "aaaaaaaaaa"}\n{"x": "' + b"x" * 200 + b'", "en": "d"}'
)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_json_lines(tmp_path: Path, job: Job, suffix: str) -> None:
    content = gzip.compress(OBJECTS) if suffix else OBJECTS
    source = write(tmp_path / f"a.jsonl{suffix}", content)
    upper = Upper()
    found = translate(job, source, upper, JSONL)
    assert sum(record.records for record in found) == 10
    assert (len(found) == 1) == bool(suffix)
    assert upper.lines == ["a b", "c", "", "d"]
    given = OBJECTS[3:].replace(b"\r\n", b"\n").split(b"\n")
    lines = (job.output / "a.jsonl").read_bytes().split(b"\n")
    assert lines[0] == b'{"id": 1e400, "en": "a b", "translation": "A B"}'
    assert lines[1] == b""
    assert [json.loads(line)["translation"] for line in lines[2:4]] == [None, ["C", None, ""]]
    assert lines[4:9] == given[4:9]  # bad records stay as they are
    assert json.loads(lines[9]) == {**json.loads(given[9]), "translation": "D"}
    bad = [json.loads(line) for line in (job.output / "a.jsonl.bad.jsonl").open()]
    assert [one["line"] for one in bad] == [5, 6, 7, 8, 9]
    reasons = ["no JSON object with this text"] * 3 + ["not valid UTF-8", "too long"]
    assert [one["reason"] for one in bad] == reasons


def test_lines_of_json_that_are_much_too_long(
    tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("translate_trt.runtime.serve.corpus.records._MOST_BYTES_OF_FIELDS", 99)
    source = write(tmp_path / "a", b'{"x": "' + b"x" * 99 + b'"}\n{"en": "a"}\n')
    translate(job, source, options=dataclasses.replace(JSONL, json=True))
    first, second = (job.output / "a").read_text().splitlines()
    assert (first, json.loads(second)["translation"]) == ("", "A")


CONSTRAINED = dataclasses.replace(JSONL, constraints_field="must")


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_constraints_of_json_lines(tmp_path: Path, job: Job, suffix: str) -> None:
    lines = [
        {"en": "a", "must": ["A", "B"]},
        {"en": ["c", None, "d"], "must": [None, ["x"], ["D"]]},
        {"en": "e"},
        {"en": "f", "must": "F"},
        {"en": "long", "must": ["F"]},
        {"en": ["long", "g"], "must": [[], ["G"] * 3]},
        {"en": "long", "must": []},
    ]
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    source = write(tmp_path / f"a{suffix}", gzip.compress(content) if suffix else content)
    upper = Upper()
    translate(job, source, upper, CONSTRAINED)
    assert upper.lines == ["a", "c", "d", "long"]
    assert upper.constraints == [["A", "B"], [], ["D"], []]
    found = [json.loads(line) for line in (job.output / "a").open()]
    texts = {0: "A", 1: ["C", None, "D"], 6: "LONG"}
    assert found == [
        {**line, "translation": texts[index]} if index in texts else line
        for index, line in enumerate(lines)
    ]
    bad = [json.loads(line) for line in (job.output / "a.bad.jsonl").open()]
    no_text, constrained = "no JSON object with this text", "constraints that the model cannot meet"
    assert [(one["line"], one["reason"]) for one in bad] == [
        (3, no_text), (4, no_text), (5, constrained), (6, constrained),
    ]  # fmt: skip


def test_constraints_of_a_corpus_are_checked_early(
    tmp_path: Path, prepare: Callable[..., CorpusOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "b.jsonl").write_text('{"en": "a", "must": ["A"]}\n')
    write_parquet(tmp_path / "c.parquet", {"text": ["a"]})
    prepare(SEARCH, CONSTRAINED, "b.jsonl")
    with pytest.raises(OptionError, match=r"beam_size is 1.*constraints_field"):
        prepare(dataclasses.replace(SEARCH, beam_size=1), CONSTRAINED, "b.jsonl")
    with pytest.raises(OptionError, match="Parquet"):
        prepare(SEARCH, CONSTRAINED, "c.parquet")
    monkeypatch.setattr(Contract, "marks", property(lambda _: False))
    with pytest.raises(OptionError, match="constraints_field"):
        prepare(SEARCH, CONSTRAINED, "b.jsonl")


# ---- TSV ----

COLUMNS = CorpusOptions(shard_lines=2, max_characters=9, input_format="tsv", column="2")
NAMED = dataclasses.replace(COLUMNS, header=True, column="en")
ROWS = (
    b'1\ta b\t"x\r\n\n2\t\ty\n3\tc\n4\ta \xff\tz\n5\taaaaaaaaaa\tz\n6\td\t'
    + b"x" * 200
    + b"\n7\te\t"
)


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("header", [b"", b"\xef\xbb\xbfid\ten\tnote\n"], ids=["rows", "header"])
def test_tsv(tmp_path: Path, job: Job, suffix: str, header: bytes) -> None:
    content = header + ROWS
    source = write(tmp_path / f"a.tsv{suffix}", gzip.compress(content) if suffix else content)
    upper = Upper()
    found = translate(job, source, upper, NAMED if header else COLUMNS)
    assert (len(found) == 1) == bool(suffix)
    assert upper.lines == ["a b", "", "d", "e"]
    lines = (job.output / "a.tsv").read_bytes().removesuffix(b"\n").split(b"\n")
    first = 1 if header else 0
    assert lines[:first] == [b"id\ten\tnote\ttranslation"] * first
    assert lines[first:] == [
        b'1\ta b\t"x\tA B', b"", b"2\t\ty\t", b"3\tc", b"4\ta \xff\tz\t",
        b"5\taaaaaaaaaa\tz\t", b"6\td\t" + b"x" * 200 + b"\tD", b"7\te\t\tE",
    ]  # fmt: skip
    bad = [json.loads(line) for line in (job.output / "a.tsv.bad.jsonl").open()]
    assert bad == [
        {"line": 4 + first, "reason": "another number of columns"},
        {"line": 5 + first, "reason": "not valid UTF-8"},
        {"line": 6 + first, "reason": "too long"},
    ]


def test_added_columns(tmp_path: Path, job: Job) -> None:
    options = dataclasses.replace(NAMED, alignments=True, shard_lines=1)
    source = write(tmp_path / "a", b"en\na b\nc\n")
    shards = plan(source, options)
    assert len(shards) > 1
    search = SearchOptions(num_hypotheses=2)
    join_parts(job, source, shards, [
        translate_shard(shard, job, Upper(), search, options) for shard in shards
    ])  # fmt: skip
    names = ["translation", "translation_alignments"]
    names += [name.replace("translation", "translation_2") for name in names]
    rows = [line.split("\t") for line in (job.output / "a").read_text().splitlines()]
    assert rows == [["en", *names], ["a b", "A B", "", "", ""], ["c", "C", "", "", ""]]


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ('{"de": "a"}', JSONL, r"field 'en'.*--field"),
        ('{"en": "a", "translation": 1}', JSONL, r"line 1.*'translation'"),
        ('{"en": "a"}', CONSTRAINED, r"line 1.*'must'"),
        ("id\tde", NAMED, r"column 'en'.*'id', 'de'"),
        ("en\ttranslation", NAMED, r"line 1.*'translation'"),
        ("\nen", NAMED, r"line 1.*header"),
        ("\na", COLUMNS, r"line 2.*missing"),
    ],
)
def test_the_first_line_is_checked_early(
    tmp_path: Path, content: str, options: CorpusOptions, message: str
) -> None:
    for suffix, packed in (("", content.encode()), (".gz", gzip.compress(content.encode()))):
        with pytest.raises(InputError, match=message):
            check_first_line(write(tmp_path / f"a{suffix}", packed), options)
    check_first_line(write(tmp_path / "empty", b""), options)


# ---- documents ----


def test_documents(tmp_path: Path, job: Job) -> None:
    documents = dataclasses.replace(JSONL, document=True)
    source = write(tmp_path / "a", b'{"en": "a b\\n\\nc"}\n{"en": ["d\\n", null]}\n')
    upper = Upper()
    translate(job, source, upper, documents)
    assert upper.lines == ["a b\n\nc", "d\n"]
    assert [upper.asked[name] for name in ("document", "split_sentences", "unwrap")] == [
        True, True, False,
    ]  # fmt: skip
    lines = (job.output / "a").read_text().splitlines()
    assert [json.loads(line)["translation"] for line in lines] == ["A B\n\nC", ["D\n", None]]
    rows = write_parquet(tmp_path / "b.parquet", {"text": ["e\nf"]})
    translate(job, rows, upper, dataclasses.replace(OPTIONS, document=True))
    assert parquet.read_table(job.output / "b.parquet")["translation"].to_pylist() == ["E\nF"]


# ---- records ----


@pytest.mark.parametrize(
    "content",
    [
        b"a\nb\r\n\nc d\n",
        b"\xef\xbb\xbfa\nb",
        b"\xef\xbb\xbf\nb",
        b"a\r\r\n\x0b\xe2\x80\xa8b\x85\n".replace(b"\x85", b""),
        "ü\n😀\n".encode(),
        b"\n\n\n",
    ],
    ids=["plain", "mark", "mark-and-empty-line", "other-line-ends", "utf-8", "empty-lines"],
)
def test_lines_are_those_of_translate(tmp_path: Path, content: bytes) -> None:
    expected = list(read_lines(io.BytesIO(content), "x"))
    assert records(write(tmp_path / "a", content)) == expected
    assert records(write(tmp_path / "b.txt.gz", gzip.compress(content))) == expected
    assert records(write(tmp_path / "c.txt.zst", ZSTD.compress(content, asbytes=True))) == expected


def test_bad_lines(tmp_path: Path) -> None:
    long = b"x" * 41
    content = [b"a", b"\xff", long, "ü".encode() * 40, b"y" * 1_000_000, b"b", b"z" * 170]
    bad, too_long = BadRecord("not valid UTF-8"), BadRecord("too long")
    expected = ["a", bad, too_long, "ü" * 40, too_long, "b", too_long]
    assert records(write(tmp_path / "a", b"\n".join(content))) == expected
    assert records(write(tmp_path / "b", b"\r\n".join(content) + b"\r\n")) == expected


@pytest.mark.parametrize("kind", ["string", "large_string", "dictionary", "binary"])
def test_cells(tmp_path: Path, kind: str) -> None:
    values = ["a", None, "", "  ", "x" * 41, "ü", "b", "a"]
    array = pyarrow.array(values, "string")
    array = array.dictionary_encode() if kind == "dictionary" else array.cast(kind)
    null, empty = BadRecord("null"), BadRecord("empty")
    for groups in (1, 2, 5, 100):
        path = tmp_path / f"{groups}.parquet"
        source = write_parquet(path, {"text": array}, row_group_size=groups)
        assert records(source) == ["a", null, empty, empty, BadRecord("too long"), "ü", "b", "a"]


def test_cells_that_are_no_utf8(tmp_path: Path) -> None:
    # Other writers do not check what they call text.
    array = pyarrow.Array.from_buffers(
        pyarrow.string(), 2, pyarrow.array([b"a", b"\xff"], "binary").buffers()
    )
    source = write_parquet(tmp_path / "a.parquet", {"text": array})
    assert records(source) == ["a", BadRecord("not valid UTF-8")]


def test_damaged_archives(tmp_path: Path) -> None:
    # Recognized by its content, whatever its name.
    assert records(write(tmp_path / "b.txt", gzip.compress(b"a\nb\n"))) == ["a", "b"]
    with pytest.raises(InputError, match="damaged"):
        records(write(tmp_path / "a.gz", gzip.compress(b"a\n" * 99)[:-9]))


def test_utf16_is_refused(tmp_path: Path) -> None:
    content = "a house\n".encode("utf-16")
    with pytest.raises(InputError, match=r"UTF-16.*UTF-8"):
        write(tmp_path / "a", content)
    with pytest.raises(InputError, match=r"UTF-16.*UTF-8"):
        records(write(tmp_path / "a.gz", gzip.compress(content)))


def test_an_input_that_changes_meanwhile(tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"a\nb\n")
    (shard,) = plan(source, OPTIONS)
    reading = read_records(shard, OPTIONS, 1)
    next(reading)
    os.utime(tmp_path / "a", ns=(1, 1))
    with pytest.raises(InputError, match="changed since"):
        list(reading)
    (tmp_path / "a").unlink()
    with pytest.raises(InputError, match="every machine"):
        list(read_records(shard, OPTIONS, 1))


# ---- shards ----


def test_a_text_and_its_bad_lines(tmp_path: Path, job: Job) -> None:
    lines = [b"a b", b"", b"\xff", b"c" * 40, b"x" * 41, b"d" * 40, b"\xfe", b"e"]
    source = write(tmp_path / "in.txt", b"\n".join(lines) + b"\n")
    found = translate(job, source)
    assert len(found) == 2
    assert (job.output / "in.txt").read_text() == f"A B\n\n\n{'C' * 40}\n\n{'D' * 40}\n\nE\n"
    bad = (job.output / "in.txt.bad.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in bad] == [
        {"line": 3, "reason": "not valid UTF-8"},
        {"line": 5, "reason": "too long"},
        {"line": 7, "reason": "not valid UTF-8"},
    ]
    complete = job.complete(source)
    assert complete is not None
    assert (complete.records, complete.shards) == (8, len(found))
    assert complete.bad == {"not valid UTF-8": 2, "too long": 1}
    assert complete.target_tokens == 3 + 3 * 2  # "a b" and four words, with their ends
    assert not job.parts(source).exists()


def test_a_table_keeps_its_columns(tmp_path: Path, job: Job) -> None:
    columns = {
        "id": [1, 2, 3, 4, 5],
        "text": pyarrow.array(["a", None, "", "b", "a"]).dictionary_encode(),
        "more": [["x"], [], None, ["y"], ["z"]],
    }
    source = write_parquet(tmp_path / "in.parquet", columns, row_group_size=2)
    translate(job, source)
    table = parquet.read_table(job.output / "in.parquet")
    assert table.to_pydict() == {
        "id": [1, 2, 3, 4, 5],
        "text": ["a", None, "", "b", "a"],
        "more": [["x"], [], None, ["y"], ["z"]],
        "translation": ["A", None, None, "B", "A"],
    }
    bad = (job.output / "in.parquet.bad.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in bad] == [
        {"row": 1, "reason": "null"},
        {"row": 2, "reason": "empty"},
    ]


def test_json_lines_of_text(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "t", b"a \xe2\x80\xa8 b\n\xff\nc\n" + b"x" * 50 + b"\nd\n")
    translate(job, source, options=dataclasses.replace(OPTIONS, json=True))
    read = list(read_json_lines(job.result(source)))
    assert [source for source, _ in read] == ["a \u2028 b", None, "c", None, "d"]
    texts = [["A \u2028 B"], [], ["C"], [], ["D"]]
    assert [[one.text for one in found] for _, found in read] == texts


@pytest.mark.parametrize(
    ("changes", "asked"),
    [
        ({}, {"split_sentences": False, "document": False, "terminology": None}),
        ({"split_sentences": True}, {"split_sentences": True}),
        ({"split_language": "de"}, {"split_sentences": "de"}),
        ({"translate_all": True}, {"translate_all": True}),
        ({"alignments": True, "json": True}, {"alignments": True}),
        ({"markup": "html"}, {"markup": "html"}),
        ({"document": True, "unwrap": True}, {"document": True, "unwrap": True}),
        ({"terminology": (("cat", "Kater"),), "terminology_ignore_case": True}, {}),
    ],
)
def test_options_go_to_the_translator(
    tmp_path: Path, job: Job, changes: dict[str, Any], asked: dict[str, Any]
) -> None:
    upper = Upper()
    source = write(tmp_path / "a.txt", b"a. b.\n")
    translate(job, source, upper, dataclasses.replace(OPTIONS, **changes))
    assert upper.asked.items() >= asked.items()
    if (glossary := upper.asked["terminology"]) is not None:
        assert [(one.source, one.targets) for one in glossary.entries] == [("cat", ("Kater",))]
        assert glossary.ignore_case


@pytest.mark.parametrize(
    ("changes", "row", "expected"),
    [
        ({}, "{}\n", ["A", "", "B"]),
        ({"input_format": "tsv", "column": "1"}, "{}\n", ["a\tA", "long\t", "b\tB"]),
        ({}, "", ["A", None, "B"]),
    ],
    ids=["text", "tsv", "parquet"],
)
def test_terms_that_a_line_cannot_have(
    tmp_path: Path, job: Job, changes: dict[str, Any], row: str, expected: list[str | None]
) -> None:
    texts = ["a", "long", "b"]
    options = dataclasses.replace(OPTIONS, terminology=(("cat", "Katze"),), **changes)
    if row:
        source = write(tmp_path / "a", "".join(map(row.format, texts)).encode())
        translate(job, source, Upper(), options)
        assert job.result(source).read_text().splitlines() == expected
    else:
        source = write_parquet(tmp_path / "a.parquet", {"text": texts})
        translate(job, source, Upper(), options)
        assert parquet.read_table(job.result(source))["translation"].to_pylist() == expected
    (bad,) = (json.loads(line) for line in (job.output / source.bad_name).open())
    assert bad["reason"] == "constraints that the model cannot meet"


@pytest.mark.parametrize(
    ("changes", "content", "field"),
    [
        ({}, b"a cat\n", "hypotheses"),
        ({"input_format": "jsonl"}, b'{"text": "a cat"}\n', "translation_hypotheses"),
    ],
    ids=["text", "jsonl"],
)
def test_words(
    job: Job, tmp_path: Path, changes: dict[str, Any], content: bytes, field: str
) -> None:
    source = write(tmp_path / "a", content)
    translate(job, source, options=dataclasses.replace(OPTIONS, json=True, words=True, **changes))
    (hypothesis,) = json.loads(job.result(source).read_text())[field]
    assert hypothesis["words"] == [
        {"text": "A", "confidence": 0.25}, {"text": "CAT", "confidence": 0.25},
    ]  # fmt: skip


def test_markup(job: Job, tmp_path: Path) -> None:
    options = dataclasses.replace(OPTIONS, shard_lines=9, markup="xml")
    upper, source = Upper(), write(tmp_path / "a.txt", b"a <b>cat</b>\n<b>\nb\n")
    (record,) = translate(job, source, upper, options)
    assert upper.lines == ["a <b>cat</b>", "b"]
    assert record.bad == {"not well-formed XML": 1}
    assert job.result(source).read_text().splitlines() == ["A <B>CAT</B>", "", "B"]


@pytest.mark.parametrize(
    "changes",
    [
        {"json": True}, {"alignments": True}, {"words": True}, {"markup": "html"},
        {"terminology": (("cat", "Katze"),), "terminology_ignore_case": True},
        {"shard_lines": 4}, {"column": "en"},
        {"split_sentences": True}, {"split_language": "de"}, {"document": True},
        {"input_format": "jsonl", "field": "en"}, {"input_format": "tsv", "column": "2"},
    ],
    ids=lambda changes: "-".join(changes),
)  # fmt: skip
def test_what_changes_the_output_is_a_setting_of_the_run(
    make_bundle: Callable[..., Path], changes: dict[str, Any]
) -> None:
    manifest = read_manifest(make_bundle())
    target = next(iter(manifest.targets))
    plain, own = (
        make_settings(manifest, target, SEARCH, dataclasses.replace(OPTIONS, **one))["corpus"]
        for one in ({}, changes)
    )
    assert {name for name in own if own[name] != plain.get(name)} == changes.keys()


@pytest.mark.parametrize(
    ("search", "changes", "message"),
    [
        ({"max_length": 5000}, {}, "max_length 5000"),
        ({"return_attention": True}, {}, "--attention"),
        ({"alternatives": 2}, {"split_sentences": True}, "alternatives"),
        ({}, {"split_language": "english"}, "'english'"),
    ],
)
def test_options_are_checked_before_the_run(
    prepare: Callable[..., CorpusOptions],
    search: dict[str, Any],
    changes: dict[str, Any],
    message: str,
) -> None:
    pytest.importorskip("langcodes")
    with pytest.raises(OptionError, match=message):
        prepare(dataclasses.replace(SEARCH, **search), dataclasses.replace(OPTIONS, **changes))


def test_alignments_imply_json_and_need_attention(
    prepare: Callable[..., CorpusOptions], tmp_path: Path
) -> None:
    options = dataclasses.replace(OPTIONS, alignments=True)
    assert prepare(SEARCH, options).json

    def without_attention(manifest: Any) -> None:
        for target in manifest["targets"].values():
            del target["contract"]["results"]["attention"]

    edit(tmp_path / "bundle", without_attention)
    for needs in (options, dataclasses.replace(OPTIONS, markup="html")):
        with pytest.raises(OptionError, match="--attention"):
            prepare(SEARCH, needs)


@pytest.mark.parametrize("what", ["part", "size", "record", "settings", "input"])
def test_what_does_not_count_as_finished(tmp_path: Path, job: Job, what: str) -> None:
    source = write(tmp_path / "a", b"a\nb\n")
    (shard,) = plan(source, OPTIONS)
    translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
    assert job.finished(shard) is not None
    if what == "part":
        job.part(shard).unlink()
    elif what == "size":
        job.part(shard).write_text("A\n")
    elif what == "record":
        job.record(shard).write_text('{"records": 2}')
    elif what == "settings":
        job = Job(job.output, {"corpus": {"shard_lines": 4}})
    else:
        (shard,) = plan(write(tmp_path / "a", b"a\nb\nc"), OPTIONS)
    assert job.finished(shard) is None
    translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
    assert job.finished(shard) is not None


def test_bad_records_of_before_go(tmp_path: Path, job: Job) -> None:
    translate(job, write(tmp_path / "a", b"\xff\n"))
    assert (job.output / "a.bad.jsonl").exists()
    translate(job, write(tmp_path / "a", b"good\n"))
    assert not (job.output / "a.bad.jsonl").exists()


def test_a_part_that_the_disk_has_changed(tmp_path: Path, job: Job) -> None:
    for source in (
        write(tmp_path / "a", b"a\nb\n"),
        write_parquet(tmp_path / "b.parquet", {"text": ["a"]}),
    ):
        (shard,) = plan(source, OPTIONS)
        record = translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
        content = bytearray(job.part(shard).read_bytes())
        content[0] ^= 1
        job.part(shard).write_bytes(content)
        with pytest.raises(OutputError, match="changed since"):
            join_parts(job, source, [shard], [record])
        assert not job.result(source).exists()
        assert job.finished(shard) is None


# ---- what is kept on disk ----


def test_other_settings_are_refused(
    tmp_path: Path, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"search": {"beam_size": 4}, "bundle": {"files": {"step": "0"}, "target": "t"}}
    job = Job(tmp_path / "out", settings)
    source = write(tmp_path / "a", b"a\n")
    with open_job(job, [source], force=False):
        translate(job, source)
    other = {"search": {"beam_size": 5}, "bundle": {"files": {"step": "1"}, "target": "t"}}
    with (
        pytest.raises(OutputError, match="beam_size 4"),
        open_job(Job(job.output, other), [source], force=False),
    ):
        pass
    assert job.complete(source) is not None
    with open_job(Job(job.output, other), [source], force=True):
        assert Job(job.output, other).complete(source) is None
        assert (job.output / "a").read_text() == "A\n"  # until there is a new one
        (job.output / "notes").write_text("mine")
    assert not (job.output / "a").exists()  # it is of no input of the run that is complete
    assert (job.output / "notes").read_text() == "mine"
    assert "translated again" in caplog.text


def test_one_run_at_a_time(tmp_path: Path, job: Job) -> None:
    refused = pytest.raises(OutputError, match="is writing to")
    with open_job(job, [], force=False), refused, open_job(job, [], force=True):
        pass
    with open_job(job, [], force=False):
        pass


def test_files_of_others_stay(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "a", b"a\n")
    job.output.mkdir()
    (job.output / "a").write_text("mine")
    with pytest.raises(OutputError, match="written"), open_job(job, [source], False):
        pass
    with pytest.raises(OutputError, match="would replace"):
        open_job(Job(tmp_path, {}), [source], True).__enter__()
    with pytest.raises(OutputError, match="written"), open_job(job, [source], force=True):
        pass
    assert (job.output / "a").read_text() == "mine"
    (job.output / "a").unlink()
    with open_job(job, [source], force=False):
        translate(job, source)
    (job.output / "a").write_text("A, and what I think of it\n")
    with pytest.raises(OutputError, match="has been changed"), open_job(job, [source], False):
        pass
    with open_job(job, [source], force=True):
        translate(job, source)
    assert (job.output / "a").read_text() == "A\n"


def test_a_run_that_is_killed_loses_no_output(tmp_path: Path, job: Job) -> None:
    """With other settings: the old output stays until it is replaced by the new one."""
    source, other = write(tmp_path / "a", b"a\n"), write(tmp_path / "b", b"b\n")
    with open_job(job, [source, other], force=False):
        translate(job, source)
        translate(job, other)
    anew = Job(job.output, {"search": {"beam_size": 5}})

    def killed() -> None:
        with open_job(anew, [source, other], force=True):
            translate(anew, source)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert anew.complete(source) is not None
    assert anew.complete(other) is None
    assert (job.output / "b").read_text() == "B\n"


def test_what_an_ended_run_left_goes(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "a", b"a\n")
    job.output.mkdir()
    for name in (".a.0123abcd.partial", ".b.0123abcd.partial"):
        (job.output / name).write_text("A")
    with open_job(job, [source], force=False):
        assert [path.name for path in job.output.glob(".*.partial")] == [".b.0123abcd.partial"]


def test_a_changed_input_is_told(
    tmp_path: Path, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path / "a", b"a\n")
    with open_job(job, [source], force=False):
        translate(job, source)
    source = write(tmp_path / "a", b"b\nc\n")
    with open_job(job, [source], force=False):
        assert job.complete(source) is None
    assert str(tmp_path / "a") in caplog.text


def test_a_machine_that_sees_another_disk(job: Job) -> None:
    with open_job(job, [], force=False):
        job.check_visible()
    (job.home / "job.json").unlink()
    with pytest.raises(OutputError, match="directory"):
        job.check_visible()


def test_a_column_that_parquet_has_twice(tmp_path: Path) -> None:
    table = pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"])
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(InputError, match="'text'"):
        find_inputs([str(tmp_path / "x.parquet")], "text")


def test_a_round_is_compared_with_the_attempts_of_the_same_shards() -> None:
    attempts = {"a": 3, "b": 1}
    fake: Any = SimpleNamespace(
        workers=SimpleNamespace(attempts=3), run="", job=SimpleNamespace(
            attempts=lambda shard, run: attempts[shard.source.name]
        ),
    )  # fmt: skip
    first, second = (Shard(Input(f"/{name}", name, "text", 0, 0), 0, 0, 0) for name in "ab")
    failures = cluster._Failures(fake)
    assert failures.after_round({first: None, second: "too busy"}, False, None) == [second]
    attempts["b"] = 2
    assert failures.after_round({second: "too busy"}, False, None) == [second]
    with pytest.raises(BackendError, match="worker could"):
        failures.after_round({second: "too busy"}, False, None)


def test_attempts_are_of_a_run(tmp_path: Path, job: Job) -> None:
    (shard,) = plan(write(tmp_path / "a", b"a\n"), OPTIONS)
    assert job.attempts(shard, "one") == 0
    assert [job.begin(shard, "one"), job.begin(shard, "one"), job.begin(shard, "two")] == [1, 2, 1]
    assert (job.attempts(shard, "one"), job.attempts(shard, "two")) == (0, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (lambda: CorpusOptions(shard_lines=0), "shard_lines is 0"),
        (lambda: CorpusOptions(max_characters=-1), "max_characters is -1"),
        (
            lambda: CorpusOptions(input_format="csv"),
            "input_format is csv; it must be text or jsonl or tsv",
        ),
        (lambda: CorpusOptions(document=True, alignments=True), "document and alignments"),
        (lambda: CorpusOptions(markup="html", words=True), "markup and words"),
        (lambda: CorpusOptions(unwrap=True), "unwrap needs document"),
        (lambda: CorpusOptions(document=True, unwrap=True, markup="html"), "markup and unwrap"),
        (lambda: CorpusOptions(constraints_field="x"), r"constraints_field.*input_format"),
        (
            lambda: dataclasses.replace(CONSTRAINED, document=True),
            r"constraints_field and document",
        ),
        (lambda: CorpusOptions(field="x"), "field is x, but input_format is text"),
        (lambda: CorpusOptions(header=True), r"True.*input_format"),
        (lambda: CorpusOptions(input_format="tsv"), "--header"),
        (lambda: CorpusOptions(input_format="tsv", column="0"), "number of a TSV column"),
        (lambda: WorkerOptions(workers=0), "workers is 0"),
        (lambda: WorkerOptions(attempts=0), "attempts is 0"),
    ],
)
def test_options_out_of_range(options: Callable[[], object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        options()


# ---- a run, with shards translated here ----


@pytest.fixture
def work(job: Job) -> cluster.Work:
    return cluster.Work("bundle", "t", SEARCH, OPTIONS, WorkerOptions(attempts=2), job, "run")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, work: cluster.Work) -> SimpleNamespace:
    """Run rounds in this process; `lost` has the number of lost workers per shard."""
    state = SimpleNamespace(translator=Upper(), lost={}, rounds=[], after=None)
    worker = cluster.ShardWorker.__new__(cluster.ShardWorker)
    worker._work, worker._translator = work, state.translator

    def one_round(shards: list[str], work: cluster.Work, workers: int) -> Any:
        state.rounds.append(len(shards))
        for text in shards:
            index = json.loads(text)["index"]
            if state.lost.get(index, 0):
                state.lost[index] -= 1
                work.job.begin(Shard.from_json(text), work.run)
                continue
            rows = worker({"shard": [text]})
            yield {name: values[0] for name, values in rows.items()}
            if state.after is not None:
                state.after()

    monkeypatch.setattr(cluster, "_round", one_round)
    monkeypatch.setattr(cluster, "_connected", lambda *_: contextlib.nullcontext(1))
    monkeypatch.setattr(run, "translate_shards", cluster.translate_shards)
    return state


def lines_of(count: int) -> bytes:
    return b"".join(b"line %02d\n" % number for number in range(count))


def run_here(work: cluster.Work, *sources: Input) -> tuple[dict[str, Any], list[Any]]:
    told: list[Any] = []
    found = run.translate_inputs(sources, work, lambda *counts: told.append(counts), told.append)
    return found, told


def test_a_run(tmp_path: Path, work: cluster.Work, here: SimpleNamespace) -> None:
    a, b = write(tmp_path / "a", lines_of(9)), write(tmp_path / "b", b"x\n")
    found, told = run_here(work, a, b)
    assert list(found) == ["a", "b"]
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()
    assert told[0] == (4, 0)
    assert len(told) == 5
    assert run_here(work, a, b) == (found, [(0, 0)])
    assert len(here.translator.lines) == 10


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source, finished = write(tmp_path / "a", lines_of(9)), []

    def stop() -> None:
        finished.append(1)
        if len(finished) == 2:
            raise KeyboardInterrupt

    here.after = stop
    with pytest.raises(KeyboardInterrupt):
        run_here(work, source)
    assert not (work.job.output / "a").exists()
    here.after = None
    assert run_here(work, source)[1][0] == (3, 2)
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()
    assert len(here.translator.lines) == 9


def test_a_lost_shard_is_handed_out_again(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    here.lost = {1: 1}
    _, told = run_here(work, write(tmp_path / "a", lines_of(9)))
    assert (here.rounds, len(told)) == ([3, 1], 4)
    assert "attempt" in caplog.text
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()


def test_a_shard_that_fails_always_is_given_up(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source = write(tmp_path / "a", lines_of(3) + b"crash\n" + lines_of(5))
    message = (
        "1 of 3 shards failed 2 times: a, shard 1: out of memory. 2 of 3 shards are finished; run "
        "the same command again to continue."
    )
    with pytest.raises(BackendError, match=message):
        run_here(work, source)
    assert here.rounds == [3, 1]
    assert [work.job.finished(shard) is not None for shard in plan(source, OPTIONS)] == [
        True, False, True,
    ]  # fmt: skip
    assert not (work.job.output / "a").exists()


def test_a_shard_that_ray_repeats_is_refused_in_the_end(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source = write(tmp_path / "a", b"a\n")
    (shard,) = plan(source, OPTIONS)
    for _ in range(2):
        work.job.begin(shard, work.run)  # and its worker dies
    with pytest.raises(BackendError, match="worker was lost"):
        run_here(work, source)
    assert here.translator.lines == []


def test_a_cluster_that_does_nothing(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise OSError("ray.exceptions.ActorDiedError\n  OutputError: host does not see out.")
        yield

    monkeypatch.setattr(cluster, "_round", fail)
    message = (
        "no worker could start a shard: OutputError: host does not see out. 0 of 1 shards are "
        "finished; run the same command again to continue."
    )
    with pytest.raises(BackendError, match=message):
        run_here(work, write(tmp_path / "a", b"a\n"))


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:", ":1", "http://h:1"])
def test_addresses_of_another_form(work: cluster.Work, address: str) -> None:
    shard = Shard(Input("/a", "a", "text", 1, 1), 0, 0, 1)
    with pytest.raises(OptionError, match="form host:port"):
        cluster.translate_shards([shard], work, lambda *_: None, address)


def test_an_address_where_nothing_is(work: cluster.Work) -> None:
    with pytest.raises(BackendError, match="Ray"):
        cluster.translate_shards([], work, lambda *_: None, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("resources", "wanted", "cores", "expected"),
    [({"CPU": 8.0}, None, 1, 8), ({"CPU": 8.0}, None, 3, 2), ({"CPU": 8.0}, 3, 1, 3),
     ({"CPU": 1.0}, 3, 1, 3)],
)  # fmt: skip
def test_number_of_workers(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    resources: dict[str, float], wanted: int | None, cores: int, expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster.Work, "needs_gpu", False)
    workers = WorkerOptions(workers=wanted, cores=cores)
    work = cluster.Work("bundle", "t", SEARCH, OPTIONS, workers, job)
    assert cluster._worker_count(work, resources) == expected
    assert ("resources" in caplog.text) == (resources["CPU"] == 1)
    monkeypatch.setattr(cluster.Work, "needs_gpu", True)
    with pytest.raises(OptionError, match="GPU"):
        cluster._worker_count(work, resources)
    assert cluster._worker_count(work, {**resources, "GPU": 1.0}) == (wanted or 1)


# ---- the driver's process ----


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the code of Ray's driver; it may use `answer` and `request`."""

    def play(code: str) -> None:
        program = (
            "import json, os, signal, sys, time\n"
            "from translate_trt.runtime.serve.corpus import driver\n"
            "requests, answers = driver._take_streams()\n"
            "request = json.loads(requests.readline())\n"
            "def answer(**message):\n"
            "    answers.write(json.dumps(message).encode() + b'\\n')\n"
            "    answers.flush()\n"
        )
        monkeypatch.setattr(driver, "_PROGRAM", f"exec({program + code!r})")

    return play


def fail(work: cluster.Work, source: Input) -> str:
    """Return the error message of a failing run."""
    with pytest.raises(BackendError) as caught:
        run_here(work, source)
    return str(caught.value)


RUN_AGAIN = "0 of 3 shards are finished; run the same command again to continue."


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os._exit(1)", "status 1)"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("answers.write(b'{\"fin'); answers.flush(); os._exit(3)", "(exit status 3)"),
    ],
    ids=["without a word", "killed", "in mid-sentence"],
)
def test_a_driver_that_ends(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None], code: str, message: str
) -> None:
    play(f"print('noise', flush=True); os.system('echo of a child')\n{code}")
    found = fail(work, write(tmp_path / "a", lines_of(9)))
    path = work.job.home / "ray.log"
    assert message in found
    assert found.endswith(f" Ray's own messages are in {path}. {RUN_AGAIN}")
    assert path.read_text().startswith("noise\nof a child\n")


def test_an_error_of_the_driver_and_its_log(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    play("answer(level=30, text='50% slow'); answer(error='OptionError', text='no room')")
    with pytest.raises(OptionError, match=r"^no room$"):
        run_here(work, write(tmp_path / "a", lines_of(9)))
    assert "50% slow" in caplog.text
    play("answer(error='BackendError', text='shards failed.')")
    assert fail(work, write(tmp_path / "a", lines_of(9))).startswith("shards failed. Ray's own")


def test_what_workers_finished_unheard_counts(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None]
) -> None:
    source = write(tmp_path / "a", lines_of(9))

    def finish(*numbers: int) -> None:
        for number in numbers:
            shard = plan(source, OPTIONS)[number]
            translate_shard(shard, work.job, Upper(), SEARCH, OPTIONS)

    class Dies:
        """Process that exits at the start of a run, as do its workers later."""

        def __init__(self, *numbers: int) -> None:
            self.numbers = numbers

        def __call__(self, stream: Any) -> Any:
            finish(*self.numbers)
            return iter(())

    with pytest.MonkeyPatch.context() as patch:
        play("os._exit(1)")
        patch.setattr(driver, "_messages", Dies(0, 2))
        assert "2 of 3 shards are finished" in fail(work, source)
        patch.setattr(driver, "_messages", Dies(1))
        assert run_here(work, source)[1][0] == (3, 2)  # all are there, so that nothing failed
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()


def test_a_driver_that_cannot_disconnect(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(driver, "_SECONDS_TO_END", 0.2)
    play("answer(error='BackendError', text='no cluster.'); time.sleep(1000)")
    assert fail(work, write(tmp_path / "a", lines_of(9))).startswith("no cluster. Ray's own")


def test_what_a_driver_started_ends_with_it(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None]
) -> None:
    """Simulate a driver whose child keeps the other end of the pipe open."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    play(f"os.system('sleep 1000 > {tmp_path / 'pipe'} &'); os._exit(1)")
    fail(work, write(tmp_path / "a", lines_of(9)))
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_stopped_run_ends_its_driver(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Stop the driver, and kill it if it does not exit."""
    started: list[Any] = []
    end = driver._end
    monkeypatch.setattr(driver, "_end", lambda process: (started.append(process), end(process)))
    monkeypatch.setattr(driver, "_SECONDS_TO_END", 0.2)

    def interrupt(stream: Any) -> Any:
        assert json.loads(stream.readline())
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "_messages", interrupt)
    for code in ("requests.read()", "time.sleep(1000)"):
        play(f"answer(level=10, text='ready'); {code}")
        with pytest.raises(KeyboardInterrupt):
            run_here(work, write(tmp_path / "a", lines_of(9)))
        assert started.pop().returncode is not None


def test_a_log_that_cannot_be_written(tmp_path: Path, work: cluster.Work) -> None:
    work.job.output.mkdir()
    (work.job.output / "_corpus").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        driver.translate_shards([], work, lambda *_: None)


def test_work_survives_json(job: Job) -> None:
    options = CorpusOptions(shard_lines=7), WorkerOptions(workers=2, device="cuda")
    work = cluster.Work("b", "t", SearchOptions(beam_size=2), *options, job)
    assert cluster.Work.from_json(json.loads(json.dumps(work.to_json()))) == work


@pytest.mark.parametrize(
    ("address", "error", "attempts"),
    [
        ("local", "the current node timed out during startup", 3),
        ("local", "no space left on device", 1),
        ("127.0.0.1:6379", "timed out", 1),
    ],
)
def test_ray_is_started_again_if_this_machine_was_too_slow(
    address: str, error: str, attempts: int
) -> None:
    calls: list[str] = []

    def init(**settings: Any) -> None:
        calls.append(settings["address"])
        raise RuntimeError(error)

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    with pytest.raises(RuntimeError, match=error):
        cluster._start(ray, {"address": address})
    assert calls == [address] * attempts
    ray.init = lambda **settings: calls.append("started")
    cluster._start(ray, {"address": address})
    assert calls[-1] == "started"
