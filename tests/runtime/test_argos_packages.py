"""Directories of Argos's packages, and a server that converts and serves them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from translate_trt.runtime import argos_packages
from translate_trt.runtime.argos_packages import (
    ArgosPackage,
    bundles_of_packages,
    default_directory,
    installed_packages,
)
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import OptionError, TranslateTrtError
from translate_trt.runtime.model_store import VARIABLE
from translate_trt.runtime.text.languages import match_code


def save(directory: Path, pair: str, version: str) -> Path:
    source, target = pair.split("_")
    directory.mkdir(parents=True)
    values = {"from_code": source, "to_code": target, "package_version": version}
    (directory / "metadata.json").write_text(json.dumps(values))
    return directory


def test_the_newest_package_of_a_pair_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, pair, version in (
        ("a", "en_de", "1.9"), ("b", "en_de", "1.10"), ("c", "en_de", "1.2"), ("d", "zt_en", "1"),
    ):  # fmt: skip
        save(tmp_path / name, pair, version)
    (tmp_path / "e").mkdir()
    found = installed_packages(tmp_path)
    assert [(one.directory.name, one.languages) for one in found] == [
        ("b", ("en", "de")), ("d", ("zh-Hant", "en")),
    ]  # fmt: skip
    assert "e is left out" in caplog.text
    with pytest.raises(OptionError):
        installed_packages(tmp_path / "none")


def test_the_key_changes_with_files_and_target(tmp_path: Path) -> None:
    package = ArgosPackage.read(save(tmp_path / "a", "en_de", "1.0"))
    before = {package.key(None), package.key("onnx-fp32")}
    (tmp_path / "a" / "model").mkdir()
    (tmp_path / "a" / "model" / "model.bin").write_bytes(b"x")
    assert len(before | {package.key(None), package.key("onnx-fp32")}) == 4


def test_the_default_is_the_directory_of_argos(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ARGOS_PACKAGES_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/a")
    found = [default_directory()]
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    found.append(default_directory())
    monkeypatch.setenv("ARGOS_PACKAGES_DIR", "/packages")
    found.append(default_directory())
    assert [*map(str, found)] == [
        "/home/a/.local/share/argos-translate/packages", "/data/argos-translate/packages",
        "/packages",
    ]  # fmt: skip


def test_conversions_that_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "models"))
    save(tmp_path / "packages" / "a", "en_de", "1.0")
    failed = subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(argos_packages.subprocess, "run", lambda *_, **__: failed)
    told: list[str] = []
    with pytest.raises(OptionError, match="no package"):
        bundles_of_packages(tmp_path / "packages", None, told.append)
    assert told == ["converting a, package 1 of 1"]
    assert "a is left out" in caplog.text
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TranslateTrtError, match="translate-trt\\[export\\]"):
        bundles_of_packages(tmp_path / "packages", None, told.append)


def test_clients_may_send_codes_of_argos() -> None:
    pytest.importorskip("langcodes", reason="the extra serve is not installed")
    assert match_code("zt", ("zh", "zh-Hant", "pt-BR")) == "zh-Hant"
    assert match_code("pb", ("zh", "zh-Hant", "pt-BR")) == "pt-BR"


def test_serve_needs_a_bundle_or_packages() -> None:
    done = CliRunner().invoke(main, ["serve"])
    assert done.exit_code == 2
    assert "--argos" in done.stderr


@pytest.mark.nightly
def test_packages_are_converted_once_and_joined_by_a_pivot(
    tokenizer_model: Path, tmp_path: Path
) -> None:
    """Two conversions and two starts of a server take most of a minute."""
    httpx = pytest.importorskip("httpx")
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    pytest.importorskip("ctranslate2", reason="the extra bench is not installed")
    from support.argos_packages import save_package

    packages = tmp_path / "packages"
    for pair in ("es_en", "en_de"):
        save_package(packages / f"translate-{pair}-1_0", tokenizer_model, pair)
    (packages / "damaged").mkdir()
    command = [
        sys.executable, "-m", "translate_trt", "serve", "--argos", "--target", "onnx-fp32",
        "--port", "0", "--workers", "1",
    ]  # fmt: skip
    environment = {
        **os.environ, VARIABLE: str(tmp_path / "models"), "ARGOS_PACKAGES_DIR": str(packages),
    }  # fmt: skip
    answers = []
    for start in range(2):
        log = tmp_path / f"log{start}"
        with (
            log.open("w") as errors,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as process,
        ):
            try:
                assert process.stdout is not None
                url = process.stdout.readline().removeprefix("listening on ").strip()
                assert url, log.read_text()
                query = {"q": "the cat", "source": "es", "target": "de"}
                answers.append(httpx.post(f"{url}/translate", json=query, timeout=120).json())
            finally:
                process.kill()
        assert log.read_text().count("converting") == (0 if start else 2)
        assert "damaged is left out" in log.read_text()
    assert answers[0]["translatedText"]
    assert answers[0] == answers[1]
