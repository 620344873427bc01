"""Command line of `translate-trt verify`; tests/export covers the comparisons."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.export.verify.layers import Drift, LayerReport
from translate_trt.runtime.cli import main
from translate_trt.train.checkpoint import Checkpoint

Verify = Callable[..., Result]


@pytest.fixture
def verify(make_bundle: Callable[..., Path], checkpoint: Checkpoint, tmp_path: Path) -> Verify:
    (tmp_path / "source.en").write_text("the cat runs.\na big dog\n\n")

    def run(*flags: str) -> Result:
        arguments = [make_bundle(), "--checkpoint", checkpoint.path]
        arguments += ["--source", tmp_path / "source.en", "--threads", "1", *flags]
        return CliRunner().invoke(main, ["verify", *map(str, arguments)])

    return run


@pytest.mark.parametrize("first", [None, "decoder.embedding"])
def test_layers_are_compared_and_a_drift_fails(
    verify: Verify, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, first: str | None
) -> None:
    asked: list[Any] = []
    drifts = (Drift("decoder.embedding", 0.5, 0.5),)
    reports = [
        LayerReport("onnx-fp32", "fp32", drifts, first, False),
        LayerReport("onnx-int8", "int8", drifts, None, False),
    ]

    def compare(*arguments: Any) -> list[LayerReport]:
        asked.extend(arguments[1:])
        return reports

    monkeypatch.setattr("translate_trt.export.verify.layers.compare_layers", compare)
    done = verify("--layers", "--layers-lines", "2", "--target", "onnx-fp32")
    opened, *others = asked
    assert opened.path == checkpoint.path
    assert others == [["the cat runs.", "a big dog"], ("onnx-fp32",), 1, []]
    assert done.exit_code == (0 if first is None else 1)
    assert f"{first or 'none'}\n" in done.stdout
    assert ("onnx-fp32 (from decoder.embedding) differs" in done.stderr) == (first is not None)


def test_translations_need_a_reference(verify: Verify) -> None:
    done = verify()
    assert done.exit_code == 2
    assert "--reference is missing" in done.stderr
