"""`translate-trt distill`: flags of the glossary."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.train.data.terminology import TerminologyOptions

pytest.importorskip("ray", reason="Ray, of the extra `distill`, is not installed")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Options of the distillations, none of which runs."""
    made: list[Any] = []

    class Distillation:
        def __init__(self, options: Any, *_: object) -> None:
            made.append(options)

        def run(self) -> list[Any]:
            return []

    monkeypatch.setattr("translate_trt.export.distillation.stages.Distillation", Distillation)
    monkeypatch.setattr("translate_trt.export.distillation.pareto.table", lambda rows: rows)
    return made


@pytest.fixture
def distill(make_bundle: Callable[..., Path]) -> Callable[..., Result]:
    given = ["distill", "--teacher", make_bundle(), "--source", "a", "--valid", "b", "c",
             "--output", "out"]  # fmt: skip

    def run(*flags: str) -> Result:
        return CliRunner().invoke(main, list(map(str, [*given, *flags])))

    return run


def test_flags_of_a_glossary(distill: Callable[..., Result], made: list[Any]) -> None:
    glossary = ("--terminology", "terms.tsv")
    for flags in (
        (), glossary, (*glossary, "--terminology-ignore-case"),
        (*glossary, "--terminology-form", "replace", "--terminology-share", "0.3"),
    ):  # fmt: skip
        result = distill(*flags)
        assert result.exit_code == 0, result.output
    path = Path("terms.tsv")
    assert [(one.terminology, one.annotated) for one in made] == [
        (None, False),
        (TerminologyOptions(path), False),
        (TerminologyOptions(path, terminology_ignore_case=True), False),
        (TerminologyOptions(path, "replace", 0.3), True),
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--terminology-ignore-case"], "--terminology-ignore-case"),
        (["--terminology-form", "append"], "--terminology-form"),
        (["--terminology-share", "0.5"], "--terminology-share"),
        (["--terminology", "t", "--terminology-share", "0.5"], "add --terminology-form"),
        (
            ["--terminology", "t", "--terminology-form", "append", "--terminology-share", "2"],
            "--terminology-share is 2.0",
        ),
    ],
)
def test_flags_that_do_not_go_together(
    distill: Callable[..., Result], made: list[Any], flags: list[str], message: str
) -> None:
    result = distill(*flags)
    assert result.exit_code != 0
    assert message in result.output
    assert made == []
