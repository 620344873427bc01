"""The bundle of commands that name none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from translate_trt.runtime.cli import main
from translate_trt.runtime.cli.bundle_flags import VARIABLE


def _translate(*flags: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["translate", *flags], input="one two\n")
    return done.exit_code, done.stdout


def test_the_variable_comes_before_the_configuration(
    bundle: Path, fake_translator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click, "get_app_dir", lambda _: str(tmp_path))
    assert _translate() == (2, "")
    config = tmp_path / "config.toml"
    config.write_text("bundle = 3")
    assert _translate() == (2, "")
    assert _translate("--bundle", str(bundle)) == (0, "two one\n")
    monkeypatch.setenv(VARIABLE, str(bundle))
    assert _translate() == (0, "two one\n")
    monkeypatch.delenv(VARIABLE)
    config.write_text(f"bundle = {str(bundle)!r}")
    assert _translate() == (0, "two one\n")
