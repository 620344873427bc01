"""`translate-trt get argos:en-de` against a local server of the index, and packages of a disk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.argos_packages import pack, save_package
from support.server import Site, serve

from translate_trt.export.hub.argos import VARIABLE, ArgosOrigin
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import DownloadError


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, store: Path) -> Iterator[Site]:
    with serve({}) as site:
        monkeypatch.setenv(VARIABLE, f"{site.url}/index.json")
        yield site


def publish(site: Site, *entries: tuple[str, str, str], **more: Any) -> None:
    """Publish packages of versions and languages, whose contents are their names."""
    index: list[Any] = ["damaged"]
    for version, source, target in entries:
        name = f"translate-{source}_{target}-{version.replace('.', '_')}.argosmodel"
        site.files[f"/v1/{name}"] = name.encode()
        links = ["ipfs://x", "https://127.0.0.1:1/x", f"{site.url}/v1/{name}"]
        codes = {"from_code": source, "to_code": target, "package_version": version}
        index.append({**codes, "links": links, **more})
    site.files["/index.json"] = json.dumps(index).encode()


def open_package(store: Path, pair: str = "en-de", **arguments: Any) -> ArgosOrigin:
    arguments = {"version": None, "offline": False} | arguments
    return ArgosOrigin.open(pair, downloads=store / "argos", **arguments)


def test_the_newest_version_is_taken(site: Site, store: Path) -> None:
    publish(site, ("1.9", "en", "de"), ("1.10", "en", "de"), ("1.1", "de", "en"), ("2", "en", "zt"))
    found = open_package(store)
    [name] = found.files
    assert (found.revision, name) == ("1.10", "translate-en_de-1_10.argosmodel")
    paths = found.fetch([name])
    assert paths[name].read_text() == name
    requests = len(site.requests)
    assert open_package(store, offline=True).fetch([name]) == paths
    assert len(site.requests) == requests
    for pair in ("en-zh-Hant", "en-zt"):
        assert open_package(store, pair).revision == "2"
    with pytest.raises(DownloadError, match="not downloaded before"):
        open_package(store, version="1.9", offline=True)
    with pytest.raises(DownloadError, match=r"1\.9, 1\.10"):
        open_package(store, version="7")
    paths[name].write_text("other")
    with pytest.raises(DownloadError, match="another file"):
        open_package(store).fetch([name])


@pytest.mark.parametrize(
    "more", [{"links": ["file:///x.argosmodel"]}, {"links": None}, {"links": ["http://x/../y"]}],
    ids=str,
)  # fmt: skip
def test_other_links_are_not_followed(more: dict[str, Any], site: Site, store: Path) -> None:
    publish(site, ("1.9", "en", "de"), **more)
    with pytest.raises(DownloadError, match="en-de"):
        open_package(store)


def test_packages_of_a_disk(
    store: Path, tokenizer_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = save_package(tmp_path / "translate-en_de-1_0", tokenizer_model)
    seen = []

    def compile_bundle(checkpoint: Any, out: Path, options: Any) -> None:
        seen.append((checkpoint.source_language, checkpoint.target_language))
        raise DownloadError("seen")  # compiling takes seconds

    monkeypatch.setattr("translate_trt.export.compile.compile_bundle", compile_bundle)
    for path in (package, pack(package)):
        done = CliRunner().invoke(main, ["get", f"argos:{path}", "--as", "mine"])
        assert "seen" in done.stderr, done.output
    assert seen == [("en", "de")] * 2
    assert CliRunner().invoke(main, ["get", f"argos:{package}"]).exit_code == 2
