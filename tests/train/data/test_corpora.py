"""Named corpora from a local server, in the layout of the official archives."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import random
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest
from click.testing import CliRunner, Result
from support.server import Site, serve

from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.train.data.corpora import CORPORA, Archive, ArchivePair
from translate_trt.train.data.text_sources import TextSource
from translate_trt.train.data.token_files import open_prepared

WORDS = {
    "en": ["one", "two", "three", "four", "five", "six", "seven", "eight"],
    "de": ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht"],
    "fr": ["un", "deux", "trois", "quatre", "cinq", "six", "sept", "huit"],
}


def text(language: str, seed: int, count: int = 25) -> bytes:
    """Lines of the same numbers in a language."""
    rng = random.Random(seed)
    rows = [rng.choices(range(8), k=rng.randint(3, 9)) for _ in range(count)]
    return "".join(
        " ".join(WORDS[language][i] for i in row) + f" {seed} {n}\n" for n, row in enumerate(rows)
    ).encode()


def segments(lines: bytes) -> bytes:
    body = "".join(
        f'<seg id="{number}">{line} &amp; &quot;x&quot;</seg>\n'
        for number, line in enumerate(lines.decode().splitlines(), start=1)
    )
    return f'<refset setid="a">\n<doc docid="b">\n<p>\n{body}</p>\n</doc>\n</refset>\n'.encode()


def pack(name: str, members: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for member, data in members.items():
            entry = tarfile.TarInfo(member)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    packed = content.getvalue()
    # A fixed time gives the same bytes in every run.
    return gzip.compress(packed, mtime=0) if name.endswith(".tgz") else packed


def member(name: str, seed: int) -> bytes:
    language = name.removesuffix(".gz").removesuffix(".sgm")[-2:]
    content = text(language, seed)
    if name.endswith(".sgm"):
        return segments(content)
    return gzip.compress(content, mtime=0) if name.endswith(".gz") else content


@pytest.fixture(scope="module")
def archives() -> dict[str, bytes]:
    """Small archives with every member of both corpora, and some more."""
    members: dict[str, dict[str, bytes]] = {}
    for corpus in CORPORA.values():
        for pair in (*corpus.train, corpus.valid, corpus.test):
            found = members.setdefault(pair.archive.path, {"README": b"\xff", "../out.en": b"no\n"})
            for name in (pair.source, pair.target):
                found[name] = member(name, seed=crc32(pair.archive.path.encode()))
    return {path: pack(path, found) for path, found in members.items()}


@pytest.fixture
def site(archives: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Local server of the archives, with their checksums in the table of corpora."""

    def summed(pair: ArchivePair) -> ArchivePair:
        content = archives[pair.archive.path]
        sums = {
            "sha256": pair.archive.sha256 and hashlib.sha256(content).hexdigest(),
            "md5": pair.archive.md5 and hashlib.md5(content).hexdigest(),
        }
        size = pair.archive.bytes and len(content)
        return dataclasses.replace(pair, archive=Archive(pair.archive.path, size, **sums))

    for name, corpus in CORPORA.items():
        changed = dataclasses.replace(
            corpus,
            train=tuple(map(summed, corpus.train)),
            valid=summed(corpus.valid),
            test=summed(corpus.test),
        )
        monkeypatch.setitem(CORPORA, name, changed)
    with serve({f"/wmt/{path}": content for path, content in archives.items()}) as found:
        yield found


@pytest.fixture
def prepare(site: Site, tmp_path: Path) -> Callable[..., Result]:
    def run(*arguments: str, vocabulary: str = "330") -> Result:
        command = ["data", "prepare", *arguments, "-o", str(tmp_path / "out"), "--workers", "1"]
        flags = ["--mirror", f"{site.url}/wmt/", "--vocabulary-size", vocabulary]
        return CliRunner().invoke(main, [*command, *flags])

    return run


@pytest.mark.parametrize(("name", "parts"), [("wmt14-en-de", 3), ("wmt14-en-fr", 5)])
def test_from_the_server_to_token_files(
    prepare: Callable[..., Result], site: Site, tmp_path: Path, name: str, parts: int
) -> None:
    result = prepare(name)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{tmp_path / 'out'}\n"
    assert f"kept {25 * parts} of {25 * parts} pairs" in result.stderr
    prepared = open_prepared(tmp_path / "out")
    language = name[-2:]
    assert (prepared.name, prepared.target_language) == (name, language)
    assert len(prepared.split("train")) == 25 * parts
    valid = [text(code, crc32(b"wmt14/dev.tgz")).decode() for code in ("en", language)]
    assert prepared.text("valid") == (valid[0].splitlines(), valid[1].splitlines())
    test = [text(code, crc32(b"wmt14/test-full.tgz")).decode() for code in ("en", language)]
    assert prepared.text("test") == tuple(
        [f'{line} & "x"' for line in lines.splitlines()] for lines in test
    )
    corpus = CORPORA[name]
    assert [entry["bytes"] for entry in prepared.index["origin"]] == [
        len(site.files[f"/wmt/{archive.path}"]) for archive in corpus.archives
    ]
    assert not (tmp_path.parent / "out.en").exists()


def test_a_rerun_keeps_the_downloads(prepare: Callable[..., Result], site: Site) -> None:
    content = site.files.pop("/wmt/wmt14/test-full.tgz")
    result = prepare("wmt14-en-de")
    assert result.exit_code == 1
    assert re.search(r"error: http\S+/wmt14/test-full\.tgz: the server answered 404", result.stderr)
    assert len(site.requests) == 5
    site.files["/wmt/wmt14/test-full.tgz"] = content
    assert prepare("wmt14-en-de").exit_code == 0
    assert [path for path, _ in site.requests[5:]] == ["/wmt/wmt14/test-full.tgz"]
    assert "is complete" in prepare("wmt14-en-de").stderr
    assert prepare("wmt14-en-de", "--force").exit_code == 0
    assert len(site.requests) == 6


def test_archives_can_be_shared(prepare: Callable[..., Result], site: Site, tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    assert prepare("wmt14-en-de", "--downloads", shared).exit_code == 0
    before = len(site.requests)
    assert prepare("wmt14-en-fr", "--downloads", shared, "--force").exit_code == 0
    assert sorted(path for path, _ in site.requests[before:]) == [
        "/wmt/wmt10/training-giga-fren.tar",
        "/wmt/wmt13/training-parallel-un.tgz",
    ]
    assert not (tmp_path / "out" / "downloads").exists()


def lines_of(path: Path, name: str | None = None) -> list[bytes]:
    with TextSource(path, name).open() as lines:
        return list(lines)


def test_a_missing_member_names_those_there(tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(pack("a.tgz", {"./x/a.en": b"one\n", "x/b.en": b"two\n"}))
    assert lines_of(path, "x/a.en") == [b"one\n"]
    with pytest.raises(InputError, match=r"x/c\.en.*x/a\.en"):
        lines_of(path, "x/c.en")


@pytest.mark.parametrize(
    "content",
    [b"", b"not an archive", pack("a.tgz", {"b": b"c" * 999})[:-30]],
    ids=["empty", "text", "cut"],
)
def test_a_damaged_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"a\.tgz: b is damaged|has no file b"):
        lines_of(path, "b")


def test_segments_however_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "a.sgm"
    path.write_text(
        '\ufeff<srcset>\n<SEG ID=1> a <hl>\n b\tc </SEG><seg id="2">d&lt;br&gt; &amp;lt;</seg >\n'
        '<seg id="3"></seg>\n<seg id="4">\u00a0e\u2028f\x85g</seg></srcset>',
        encoding="utf-8",
    )
    assert [line.decode() for line in lines_of(path)] == [
        "a <hl> b c\n", "d<br> &lt;\n", "\n", "\u00a0e\u2028f\x85g\n"
    ]  # fmt: skip
    path.write_text("<srcset></srcset>")
    with pytest.raises(InputError, match="no <seg> element"):
        lines_of(path)
    path.write_bytes(b"<seg>\xff</seg>")
    with pytest.raises(InputError, match="not UTF-8"):
        lines_of(path)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.en"
    for content, lines in (
        (b"\xef\xbb\xbfa\nb", [b"a\n", b"b"]), (b"\xef\xbb\xbf", []), (b"", [])
    ):  # fmt: skip
        path.write_bytes(content)
        assert lines_of(path) == lines
