"""`translate-trt get firefox:en-de` against a local server of Remote Settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.marian_files import save_student_folder
from support.server import Site, serve

from translate_trt.export.hub.firefox import VARIABLE, FirefoxModel
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import DownloadError, OptionError
from translate_trt.runtime.io.compression import zstd

RECORDS = "/v1/buckets/main/collections/translations-models-v2/records"
PAIR = {"sourceLanguage": "en", "targetLanguage": "de", "version": "2.1", "architecture": "tiny"}


class Mozilla:
    """Records of files, and the server of the records and attachments."""

    def __init__(self, site: Site) -> None:
        self.site, self.records = site, list[dict[str, Any]]()
        about = {"capabilities": {"attachments": {"base_url": f"{site.url}/cdn/"}}}
        site.files["/v1/"] = json.dumps(about).encode()
        self.publish()

    def add(self, kind: str, name: str, content: bytes, packed: bool = True, **more: Any) -> None:
        """Add a file; `more` are fields of its record."""
        attachment = zstd.compress(content) if packed else content
        location = f"main-workspace/translations-models-v2/{len(self.records)}.bin"
        self.site.files[f"/cdn/{location}"] = attachment
        record = {
            **PAIR, "name": name, "fileType": kind,
            "attachment": {
                "hash": hashlib.sha256(attachment).hexdigest(), "size": len(attachment),
                "filename": f"{name}.zst" if packed else name, "location": location,
            },
        }  # fmt: skip
        if packed:
            record["decompressedHash"] = hashlib.sha256(content).hexdigest()
            record["decompressedSize"] = len(content)
        self.records.append(record | more)
        self.publish()

    def publish(self) -> None:
        self.site.files[RECORDS] = json.dumps({"data": self.records}).encode()


@pytest.fixture
def mozilla(monkeypatch: pytest.MonkeyPatch, store: Path) -> Iterator[Mozilla]:
    with serve({}) as site:
        monkeypatch.setenv(VARIABLE, f"{site.url}/v1/")
        yield Mozilla(site)


def open_model(store: Path, pair: str = "en-de", **arguments: Any) -> FirefoxModel:
    arguments = {"version": None, "offline": False} | arguments
    return FirefoxModel.open(pair, downloads=store / "firefox", **arguments)


def test_the_newest_complete_version_is_taken(mozilla: Mozilla, store: Path) -> None:
    for version, architecture in (("2.9", "tiny"), ("2.10", "tiny"), ("2.10", "base-memory")):
        more = {"version": version, "architecture": architecture}
        mozilla.add("model", "model.ende.bin", f"{version} {architecture}".encode(), **more)
        mozilla.add("vocab", "vocab.ende.spm", b"vocabulary", packed=False, **more)
        mozilla.add("quality", "quality.bin", b"", **more)
    mozilla.add("lex", "lex.ende.bin", b"lex", version="2.10", architecture="base-memory")
    for more in ({"version": "3.0a1"}, {"version": "3.0", "variant": "test"}, {"version": "2.11"}):
        mozilla.add("model", "model.ende.bin", b"test", **more)
    mozilla.add("vocab", "vocab.deen.spm", b"", sourceLanguage="de", targetLanguage="en")
    found = open_model(store)
    assert (found.revision, found.repository, found.license) == ("2.10", "en-de", "MPL-2.0")
    assert set(found.files) == {"model.ende.bin", "vocab.ende.spm", "lex.ende.bin"}
    paths = found.fetch(found.files)
    assert paths["model.ende.bin"].read_bytes() == b"2.10 base-memory"
    assert paths["vocab.ende.spm"].read_bytes() == b"vocabulary"

    requests = len(mozilla.site.requests)
    again = open_model(store, offline=True)
    assert again.fetch(again.files) == paths
    assert len(mozilla.site.requests) == requests
    older = open_model(store, version="2.9")
    assert older.fetch(["model.ende.bin"])["model.ende.bin"].read_bytes() == b"2.9 tiny"
    with pytest.raises(DownloadError, match=r"version.*2\.9, 2\.10"):
        open_model(store, version="7")
    with pytest.raises(DownloadError, match="model"):
        open_model(store, "de-fr")


def test_vocabularies_of_each_language(mozilla: Mozilla, store: Path) -> None:
    for kind in ("model", "srcvocab", "trgvocab"):
        mozilla.add(kind, f"{kind}.bin", b"", targetLanguage="zh-Hans")
    found = open_model(store, "en-zh-Hans")
    assert set(found.files) == {"model.bin", "srcvocab.bin", "trgvocab.bin"}
    assert found.languages == ("en", "zh-Hans")


def test_damage_is_refused(mozilla: Mozilla, store: Path) -> None:
    mozilla.add("model", "model.bin", b"model", decompressedHash="0" * 64)
    mozilla.add("vocab", "vocab.spm", b"vocabulary")
    with pytest.raises(DownloadError, match="Firefox"):
        open_model(store, offline=True)
    found = open_model(store)
    with pytest.raises(DownloadError, match=r"model\.bin has SHA-256"):
        found.fetch(["model.bin"])
    mozilla.records[1]["attachment"]["hash"] = "0" * 64
    mozilla.publish()
    with pytest.raises(DownloadError, match="another file"):
        open_model(store).fetch(["vocab.spm"])
    assert not list(store.rglob("*.spm"))


@pytest.mark.parametrize(
    "change", [{"name": "../model.bin"}, {"attachment": {}}, {"attachment": None}], ids=str
)
def test_records_are_checked(change: dict[str, Any], mozilla: Mozilla, store: Path) -> None:
    mozilla.add("model", "model.bin", b"model")
    mozilla.records[0].update(change)
    mozilla.publish()
    with pytest.raises(DownloadError, match="a record of Firefox's models is damaged"):
        open_model(store)


def test_other_servers(mozilla: Mozilla, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content, message in ((b"{}", "did not answer as Remote Settings do"), (b"<html>", "JSON")):
        mozilla.site.files[RECORDS] = content
        with pytest.raises(DownloadError, match=message):
            open_model(store)
    del mozilla.site.files[RECORDS]
    with pytest.raises(DownloadError, match="Found"):
        open_model(store)
    monkeypatch.setenv(VARIABLE, "file:///etc")
    with pytest.raises(OptionError, match="URL"):
        open_model(store)


def test_a_student_is_imported_with_its_shortlist(
    mozilla: Mozilla, store: Path, tokenizer_model: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    student = save_student_folder(tmp_path / "student", tokenizer_model)
    for path in student.iterdir():
        kind = path.name.partition(".")[0]
        mozilla.add(kind, path.name, path.read_bytes())
    seen = []

    def compile_bundle(checkpoint: Any, out: Path, options: Any) -> None:
        seen.append((checkpoint.source_language, checkpoint.shortlist is not None, options.targets))
        raise DownloadError("seen")  # compiling takes seconds

    monkeypatch.setattr("translate_trt.export.compile.compile_bundle", compile_bundle)
    done = CliRunner().invoke(main, ["get", "firefox:en-de"])
    assert "seen" in done.stderr, done.output
    assert "license: MPL-2.0" in done.stderr
    assert "Bergamot" in done.stderr
    assert seen == [("en", True, ("onnx-int8-shortlist",))]
    assert [path.name for path in store.iterdir()] == [".downloads"]
