"""Pages for users of other toolkits have every option of the toolkits that are installed here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import click
import ctranslate2
import pytest
from click.testing import CliRunner
from support.marian_peer import needs_marian
from support.paths import ROOT

from translate_trt.runtime.cli import foreign_options, main

PAGE = ROOT / "docs/coming-from.md"


def tables() -> dict[str, list[tuple[str, str]]]:
    """Rows (options, answer) of each table, by the head of its first column."""
    found: dict[str, list[tuple[str, str]]] = {}
    rows: list[tuple[str, str]] | None = None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if not line.startswith("|"):
            rows = None
            continue
        options, answer = (cell.strip() for cell in line.strip("|").split("|", 1))
        if rows is None:
            rows = found[options] = []
        elif not options.startswith("---"):
            rows.append((options, answer))
    return found


def listed(*heads: str) -> list[str]:
    """Names in the first columns of tables, in order, without their values."""
    rows = [row for head in heads for row in tables()[head]]
    return [span.split()[0] for options, _ in rows for span in re.findall(r"`([^`]+)`", options)]


def arguments(function: Callable[..., object]) -> list[str]:
    """Names of the arguments of a function of CTranslate2, whose signature is in its text."""
    assert function.__doc__ is not None
    signature = function.__doc__.split(") ->", 1)[0]
    return re.findall(r"(?:[(,] )(\w+): ", signature.replace("(self", "( self", 1))[1:]


def marian_options() -> list[str]:
    needs_marian()
    done = subprocess.run(
        [sys.executable, "-m", "pymarian", "decode", "--help"],
        capture_output=True, encoding="utf-8", check=False,
    )  # fmt: skip
    return re.findall(r"^  (?:-\w,)?(--[\w-]+)", done.stdout + done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("head", "function"),
    [
        ("`Translator(...)`", ctranslate2.Translator.__init__),
        ("`translate_batch(...)`", ctranslate2.Translator.translate_batch),
        ("`score_batch(...)`", ctranslate2.Translator.score_batch),
    ],
)
def test_ctranslate2(head: str, function: Callable[..., object]) -> None:
    expected = arguments(function)
    assert len(expected) > 5
    assert sorted(listed(head)) == sorted(expected)


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_transformers() -> None:
    import inspect

    from transformers import GenerationConfig, GenerationMixin

    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert len(fields) > 50
    assert sorted(listed("`GenerationConfig(...)`")) == sorted(fields)
    taken = set(inspect.signature(GenerationMixin.generate).parameters) - {"self", "kwargs"}
    assert taken <= set(listed("`generate(...)`"))


def test_marian() -> None:
    options = marian_options()
    assert len(options) > 100
    found = listed("`marian-decoder`: translator options", "general and model options")
    assert sorted(found) == sorted(options)


def our_flags(command: click.Command) -> Iterator[str]:
    yield from (name for parameter in command.params for name in parameter.opts)
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from our_flags(found)


def test_answers_are_complete_and_name_flags_that_exist() -> None:
    flags = {*our_flags(main), "--help", "--version"}
    for head, rows in tables().items():
        names = listed(head)
        assert len(names) == len(set(names)), head
        for options, answer in rows:
            assert answer, options
            reasonless = re.search(
                r"(?i)\*\*not wanted\*\*(?!:| as an option:| is |, since )", answer
            )
            assert reasonless is None, options
            unknown = {*re.findall(r"(?<![\w-])--[a-z][\w-]*", answer)} - flags
            assert not unknown, options


def test_names_of_other_toolkits_are_answered_on_the_command_line() -> None:
    run = CliRunner().invoke
    for arguments, message in (
        (["translate", "--seed", "3"], "--sampling-seed"),
        (["translate", "--num_beams=4"], "--beam-size"),
        (["corpus", "--nbest", "4"], "--n-best"),
        (["info", "--seed", "3"], "'--seed'"),
        (["translate", "--marcup", "html"], "mean '--markup'?"),
    ):
        result = run(main, arguments)
        assert result.exit_code == 2
        assert message in result.output
        assert (" use " in message) == (" use " in result.output)


def test_those_names_and_flags_are_the_pages() -> None:
    rows = {
        span.split()[0].lstrip("-").replace("_", "-"): answer
        for table in tables().values()
        for options, answer in table
        for span in re.findall(r"`([^`]+)`", options)
    }
    flags = {*our_flags(main)}
    for name, flag in foreign_options.FLAGS.items():
        assert flag in flags
        field = flag.removeprefix("--").replace("-", "_")
        in_python = {"--n-best": "num_hypotheses", "--sampling-seed": "seed"}.get(flag, field)
        assert {flag, field, in_python} & set(re.findall(r"[\w-]+", rows[name])), name
        assert f"--{name}" != flag
