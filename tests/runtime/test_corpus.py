"""Corpora without a cluster: inputs, plans, records, and shards."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.bad_bundles import edit
from support.corpus import OPTIONS, SEARCH, Upper, translate, write, write_parquet

from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import read_lines
from translate_trt.runtime.json_lines import read_json_lines
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.corpus import run
from translate_trt.runtime.serve.corpus.job import Job, make_settings
from translate_trt.runtime.serve.corpus.plan import Input, find_inputs, plan
from translate_trt.runtime.serve.corpus.records import BadRecord, check_first_line, read_records
from translate_trt.runtime.serve.corpus.run_options import CorpusOptions, WorkerOptions

pytestmark = pytest.mark.slow

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow, of the extra `corpus`, is not installed")
parquet = pytest.importorskip("pyarrow.parquet")
ZSTD = pyarrow.Codec("zstd")


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "out", {"corpus": {"shard_lines": 3}})


def bad_records(job: Job, source: Input) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.output / source.bad_name).open()]


def records(source: Input, options: CorpusOptions = OPTIONS, size: int = 2) -> list[Any]:
    """Return the texts and the bad records of all shards of an input."""
    return [
        record if isinstance(record, BadRecord) else record.texts[0]
        for shard in plan(source, options)
        for chunk in read_records(shard, options, size)
        for record in chunk.records
    ]


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
    assert write(tmp_path / "a[1].txt", b"x\n").name == "a[1].txt"  # which is a pattern
    assert found[0].path == str(tmp_path / "a.txt")
    assert (found[0].size, found[0].mtime_ns) == (2, (tmp_path / "a.txt").stat().st_mtime_ns)


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
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="regular file"):
        find_inputs([str(tmp_path / "pipe")], "text")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"words": ["a"]}, "'text'"),
        ({"text": [1]}, "int64"),
        ({"text": ["a"], "translation": ["b"]}, "'translation'"),
        (pyarrow.Table.from_arrays([["a"], ["b"]], names=["text", "text"]), "'text'"),
    ],
    ids=["no text", "numbers", "translated", "twice"],
)
def test_parquet_that_cannot_be(tmp_path: Path, columns: Any, message: str) -> None:
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
def test_json_lines(tmp_path: Path, job: Job, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("translate_trt.runtime.serve.corpus.records._MOST_BYTES_OF_FIELDS", 250)
    objects = OBJECTS + b'\n{"x": "' + b"x" * 250 + b'"}'  # much too long to be kept
    content = gzip.compress(objects) if suffix else objects
    source = write(tmp_path / f"a.jsonl{suffix}", content)
    upper = Upper()
    found = translate(job, source, upper, JSONL)
    assert sum(record.records for record in found) == 11
    assert (len(found) == 1) == bool(suffix)
    assert upper.lines == ["a b", "c", "", "d"]
    given = OBJECTS[3:].replace(b"\r\n", b"\n").split(b"\n")
    lines = (job.output / "a.jsonl").read_bytes().split(b"\n")
    assert lines[0] == b'{"id": 1e400, "en": "a b", "translation": "A B"}'
    assert lines[1] == b""
    assert [json.loads(line)["translation"] for line in lines[2:4]] == [None, ["C", None, ""]]
    assert lines[4:9] == given[4:9]  # bad records stay as they are
    assert json.loads(lines[9]) == {**json.loads(given[9]), "translation": "D"}
    assert lines[10] == b""
    bad = bad_records(job, source)
    assert [one["line"] for one in bad] == [5, 6, 7, 8, 9, 11]
    reasons = ["no JSON object with this text"] * 3 + ["not valid UTF-8", "too long", "too long"]
    assert [one["reason"] for one in bad] == reasons


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
    no_text, constrained = "no JSON object with this text", "constraints that the model cannot meet"
    assert [(one["line"], one["reason"]) for one in bad_records(job, source)] == [
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
    assert bad_records(job, source) == [
        {"line": 4 + first, "reason": "another number of columns"},
        {"line": 5 + first, "reason": "not valid UTF-8"},
        {"line": 6 + first, "reason": "too long"},
    ]


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
    translate(job, write(tmp_path / "in.txt", b"\xff\n"))
    assert (job.output / "in.txt.bad.jsonl").exists()
    translate(job, write(tmp_path / "in.txt", b"good\n"))
    assert not (job.output / "in.txt.bad.jsonl").exists()
    lines = [b"a b", b"", b"\xff", b"c" * 40, b"x" * 41, b"d" * 40, b"\xfe", b"e"]
    source = write(tmp_path / "in.txt", b"\n".join(lines) + b"\n")
    found = translate(job, source)
    assert len(found) == 2
    assert (job.output / "in.txt").read_text() == f"A B\n\n\n{'C' * 40}\n\n{'D' * 40}\n\nE\n"
    assert bad_records(job, source) == [
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
    assert bad_records(job, source) == [
        {"row": 1, "reason": "null"},
        {"row": 2, "reason": "empty"},
    ]


def test_json_lines_of_text(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "t", b"a \xe2\x80\xa8 b\n\xff\nc\n" + b"x" * 50 + b"\nd\n")
    translate(job, source, options=dataclasses.replace(OPTIONS, json=True, words=True))
    read = list(read_json_lines(job.result(source)))
    first = json.loads(job.result(source).read_text().partition("\n")[0])
    assert first["hypotheses"][0]["words"][0] == {"text": "A", "confidence": 0.25}
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
        (
            {"document": True, "unwrap": True},
            {"document": True, "unwrap": True, "split_sentences": True},
        ),
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
    (bad,) = bad_records(job, source)
    assert bad["reason"] == "constraints that the model cannot meet"


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


@pytest.mark.parametrize(
    ("named", "options"),
    [
        ("shard_lines", {"shard_lines": 0}), ("max_characters", {"max_characters": -1}),
        ("input_format", {"input_format": "csv"}),
        ("alignments", {"document": True, "alignments": True}),
        ("words", {"markup": "html", "words": True}), ("document", {"unwrap": True}),
        ("unwrap", {"document": True, "unwrap": True, "markup": "html"}),
        ("constraints_field", {"constraints_field": "x"}), ("field", {"field": "x"}),
        ("document", {**dataclasses.asdict(CONSTRAINED), "document": True}),
        ("input_format", {"header": True}), ("--header", {"input_format": "tsv"}),
        ("column", {"input_format": "tsv", "column": "0"}),
    ],
)  # fmt: skip
def test_options_out_of_range(named: str, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=named):
        CorpusOptions(**options)
    for name in ("workers", "attempts"):
        with pytest.raises(OptionError, match=f"{name} is 0"):
            WorkerOptions(**{name: 0})
