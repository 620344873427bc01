from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import cli
from translate_trt.runtime.cli import SUBCOMMANDS, Subcommand, main
from translate_trt.runtime.cli.command import Command, Group
from translate_trt.runtime.errors import InputError, OptionError

HEAVY = ("torch", "onnx", "onnxscript", "translate_trt.train", "translate_trt.export")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_help_lists_every_command_without_importing_any(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} was imported")

    monkeypatch.setattr(cli.importlib, "import_module", refuse)
    result = run("--help")
    assert result.exit_code == 0
    for name, entry in SUBCOMMANDS.items():
        assert name in result.output
        assert entry.short_help in result.output


@pytest.mark.parametrize(
    ("command", "heavy"),
    [([], HEAVY), (["translate"], HEAVY), (["data", "prepare"], ("torch", "numpy"))],
)
def test_help_imports_nothing_heavy(command: list[str], heavy: tuple[str, ...]) -> None:
    if "data" in command:
        pytest.importorskip("torch", reason="the training packages are needed")
    code = (
        "import sys\n"
        "from translate_trt.runtime.cli import main\n"
        f"main({[*command, '--help']!r}, standalone_mode=False)\n"
        f"print('HEAVY', [name for name in {heavy!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "Usage:" in done.stdout
    assert "HEAVY []" in done.stdout


#: Command lines by command, each with its exit status and a part of its last line of errors.
WRONG_USAGE = {
    "evaluate": [("run --reference a --source b --beam-size 0", 2, "--beam-size is 0")],
    "attention": [("hello --checkpoint run --min-length -1", 2, "--min-length is -1")],
    "verify": [
        ("bundle --checkpoint run --source a", 2, "--reference is missing"),
        ("bundle --checkpoint run --source a --reference b", 1, "bundle"),
    ],
    "train": [("--train a b --valid a b --output run --batch-tokens 0", 2, "--batch-tokens is 0")],
    "export": [
        ("run --output bundle --profiles nonsense", 2, "nonsense"),
        ("run --output bundle --target onnx-int4", 2, "no target 'onnx-int4'"),
        ("run --output bundle --beam-size 0", 2, "--beam-size is 0"),
        ("run --output bundle --max-source-length 1", 2, "--max-source-length is 1"),
        ("run --output bundle --disable-pass search", 2, "no pass to leave out 'search'"),
    ],
    "data": [("prepare --from a b --valid a b --output d --max-length-ratio 0", 2, "-ratio is 0")],
}

#: Runs the command lines of its arguments in a process without torch; prints the exit status and
#: the errors of each.
WITHOUT_TORCH = """
import contextlib, io, json, sys
sys.modules["torch"] = None
from translate_trt.runtime.cli import main
results = []
for line in sys.argv[1:]:
    with contextlib.redirect_stderr(io.StringIO()) as errors:
        try:
            status = main(line.split())
        except SystemExit as exit:
            status = exit.code
    results.append((status, errors.getvalue()))
print(json.dumps(results))
"""


@pytest.mark.parametrize("command", WRONG_USAGE)
def test_wrong_usage_is_told_before_torch_is_imported(command: str, tmp_path: Path) -> None:
    """One process per command: after its first error, a command has imported all it may."""
    lines = [f"{command} {arguments}" for arguments, _, _ in WRONG_USAGE[command]]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *lines],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    expected = WRONG_USAGE[command]
    for (arguments, status, message), (found, errors) in zip(expected, results, strict=True):
        assert found == status, (arguments, errors)
        assert message in errors.splitlines()[-1], arguments
        assert "No module named" not in errors, arguments
    assert list(tmp_path.iterdir()) == []


def options_of(command: click.Command) -> Iterator[tuple[str, list[click.Parameter]]]:
    """Iterate over a command and its subcommands, with their parameters."""
    yield command.name or "", command.params
    for subcommand in command.commands.values() if isinstance(command, click.Group) else ():
        yield from options_of(subcommand)


@pytest.mark.parametrize(
    "given",
    ["score --device a --device a", "data prepare -o a --output b",
     "data prepare --seed 1 --seed 2", "train --train a b --train c d"],
)  # fmt: skip
def test_an_option_with_one_value_is_given_once(given: str) -> None:
    if not given.startswith("score"):
        pytest.importorskip("torch", reason="the training packages are needed")
    assert "given 2 times" in run(*given.split()).stderr


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_every_command_has_help_and_no_two_options_of_a_name(name: str) -> None:
    entry = SUBCOMMANDS[name]
    pytest.importorskip("torch", reason="the training packages are needed") if entry.extra else None
    assert run(name, "--help").exit_code == 0
    top = entry.load(name)
    assert isinstance(top, Command | Group)
    for command, params in options_of(top):
        names = [param.name for param in params]
        flags = [
            flag
            for param in params
            for flag in (*param.opts, *param.secondary_opts)
            if isinstance(param, click.Option)
        ]
        for one in (names, flags):
            assert sorted(one) == sorted(set(one)), command


def test_suggestions_are_what_the_help_shows() -> None:
    flags = {
        "translate --model x": "--bundle",  # of another toolkit
        "info --model x": "BUNDLE",
        "export --outpt x": "--output",
        "translate --bundel x": "--bundle",
        "data info --verbos": "--verbose",
    }
    for given, expected in flags.items():
        if given.startswith(("export", "data")):
            pytest.importorskip("torch", reason="the training packages are needed")
        message = run(*given.split()).stderr.splitlines()[-1]
        assert expected in message, given


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from translate_trt.__main__ import run
run()
"""


def test_ctrl_c_while_modules_load_prints_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, timeout=60, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (-signal.SIGINT, b"")


def test_version() -> None:
    assert run("--version").output == f"translate-trt, version {version('translate-trt')}\n"


def install(monkeypatch: pytest.MonkeyPatch, body: object, extra: str | None = None) -> None:
    """Make `translate-trt probe` call `body`."""
    module = types.ModuleType("probe_command")
    module.probe = click.command(cls=Command)(body)  # type: ignore[attr-defined,call-overload]
    monkeypatch.setitem(sys.modules, "probe_command.probe", module)
    entry = Subcommand("probe_command", "Probe.", extra)
    monkeypatch.setitem(SUBCOMMANDS, "probe", entry)


def raising(error: BaseException) -> object:
    def body() -> None:
        raise error

    return body


def test_our_errors_are_one_message_and_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, raising(InputError("there is no file x; check the path.")))
    result = run("probe")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr == "translate-trt: error: there is no file x; check the path.\n"


def test_wrong_options_are_usage_errors_in_the_words_of_the_command_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @click.option("--n-best", "num_hypotheses", type=int)
    @click.option("-b", "--beam-size", type=int)
    @click.option("--device")
    def body(num_hypotheses: int | None, beam_size: int | None, device: str | None) -> None:
        if device:
            raise OptionError("device is 'x'; no device is one.")
        raise OptionError("num_hypotheses is 5; at most beam_size (4), unlike other_name.")

    install(monkeypatch, body)
    result = run("probe")
    assert result.exit_code == 2
    for part in ("--n-best is 5", "--beam-size (4)", "other_name"):
        assert part in result.stderr
    assert "--device is 'x'" in run("probe", "--device", "x").stderr


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ([], [], ["a warning"]),
        (["-v"], [], ["a warning", "a step"]),
        ([], ["-v"], ["a warning", "a step"]),
        (["-v"], ["-v"], ["a warning", "a step", "a detail"]),
        (["-q"], [], []),
        (["-vv"], ["-q"], []),
    ],
)
def test_verbosity_stands_before_or_after_the_subcommand(
    monkeypatch: pytest.MonkeyPatch, before: list[str], after: list[str], shown: list[str]
) -> None:
    log = logging.getLogger("translate_trt")

    def body() -> None:
        log.warning("a warning")
        log.info("a step")
        log.debug("a detail")

    taken_down = (log.level, list(log.handlers))
    install(monkeypatch, body)
    for _ in range(2):  # the flags are added once
        result = run(*before, "probe", *after)
        assert result.exit_code == 0
        assert [line.split(": ")[-1] for line in result.stderr.splitlines()] == shown
    assert (log.level, list(log.handlers)) == taken_down


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 141)])
def test_an_end_from_outside_is_quiet(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    install(monkeypatch, raising(error))
    result = run("probe")
    assert (result.exit_code, result.output) == (code, "")


def test_the_interpreter_does_not_complain_of_a_closed_pipe() -> None:
    code = (
        "import click, sys, types\n"
        "from translate_trt.runtime.cli import SUBCOMMANDS, Subcommand, main\n"
        "command = click.command()(lambda: click.echo('never shown'))\n"
        "sys.modules['probe.probe'] = types.SimpleNamespace(probe=command)\n"
        "SUBCOMMANDS['probe'] = Subcommand('probe', '')\n"
        "main(['probe'])\n"
    )
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=writer, stderr=subprocess.PIPE, env=environment, timeout=60, check=False,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_missing_packages_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli.importlib, "import_module", without_torch)
    result = run("verify", "--help")
    assert result.exit_code == 1
    for part in ("export packages", "'translate-trt[export]'", "torch"):
        assert part in result.stderr


def test_missing_package_found_while_running(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("No module named 'onnx.helper'", name="onnx.helper")
    install(monkeypatch, raising(missing), extra="export")
    assert "'translate-trt[export]'" in run("probe").stderr


def test_missing_module_of_our_own_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = ModuleNotFoundError("no", name="translate_trt.train.modle")
    install(monkeypatch, raising(missing), extra="train")
    assert run("probe").exception is missing


def test_completion_works_without_the_training_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_torch(name: str) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr(cli.importlib, "import_module", without_torch)
    environment = {
        "_TRANSLATE_TRT_COMPLETE": "bash_complete",
        "COMP_WORDS": "translate-trt tra",
        "COMP_CWORD": "1",
    }
    result = CliRunner().invoke(main, [], prog_name="translate-trt", env=environment)
    names = ["train", "translate", "translate-file"]
    assert result.output.split() == [f"plain,{name}" for name in names]
