"""`translate --resume` continues the output of an interrupted run, or refuses with the reason."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime import native
from translate_trt.runtime.cli import main, shutdown
from translate_trt.runtime.cli.output import LineOutput, open_output
from translate_trt.runtime.cli.partial_files import PartialFile, Position
from translate_trt.runtime.cli.shutdown import deferred_signals, exit_on_signals
from translate_trt.runtime.io.lines import read_text

COUNT = 11  # of the lines, in chunks of 2

Run = Callable[..., Result]


@pytest.fixture
def run(translate: Run, tmp_path: Path) -> Run:
    def run(*arguments: object, out: str = "out", stdin: bytes = b"") -> Result:
        return translate("--output", tmp_path / out, "--chunk-lines", 2, *arguments, stdin=stdin)

    return run


@pytest.fixture
def interrupt(
    run: Run, fake_translator: Any, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Result]:
    """Run the command until the third chunk is to be translated."""

    def interrupt(*arguments: object, **more: Any) -> Result:
        fake_translator.calls.clear()
        translate = fake_translator.translate

        def interrupted(self: Any, *given: Any, **named: Any) -> Any:
            if len(self.calls) == 2:
                signal.raise_signal(signal.SIGTERM)
            return translate(self, *given, **named)

        with monkeypatch.context() as patch:
            patch.setattr(fake_translator, "translate", interrupted)
            result = run(*arguments, **more)
        assert result.exit_code == 128 + signal.SIGTERM
        fake_translator.calls.clear()
        return result

    return interrupt


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text"
    path.write_text("".join(f"a b {number}\n" for number in range(COUNT)))
    return path


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


FORMATS: dict[str, tuple[str, ...]] = {
    "lines": (),
    "gzip": (),
    "zstd": (),
    "jsonl": ("--input-format", "jsonl"),
    "tsv": ("--input-format", "tsv", "--column", "a", "--header"),
    "prefixes": ("--target-prefix", "{text}"),
    "constraints": ("--constraints", "{text}"),
}


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_resumed_output_is_that_of_an_undisturbed_run(
    run: Run, interrupt: Run, fake_translator: Any, text: Path, tmp_path: Path, name: str
) -> None:
    out = {"gzip": "out.gz", "zstd": "out.zst"}.get(name, "out")
    given = text.with_name("given")
    lines = text.read_text().splitlines()
    if name == "jsonl":
        lines = ['{"text": null}', *(f'{{"text": "{line}"}}' for line in lines)]
    elif name == "tsv":
        lines = ["a\tb", *(f"{line}\tx" for line in lines)]
    given.write_text("".join(f"{line}\n" for line in lines))
    flags = [given, *(flag.format(text=text) for flag in FORMATS[name])]
    assert run(*flags, out="whole").exit_code == 0
    interrupt(*flags, out=out)
    result = run(*flags, "--resume", out=out)
    assert result.exit_code == 0, result.stderr
    translated = sum(len(call["lines"]) for call in fake_translator.calls)
    assert 0 < translated <= COUNT - 3
    assert read_text(str(tmp_path / out)) == (tmp_path / "whole").read_text()
    assert names(tmp_path) == ["bundle", "given", out, "text", "whole"]


def test_documents_are_continued_whole(
    run: Run, fake_translator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, content in (("a", "one two"), ("b", "three four\n\nfive")):
        (tmp_path / name).write_text(content)
    flags = ("--document", tmp_path / "a", tmp_path / "b")
    assert run(*flags, out="whole").exit_code == 0
    document = fake_translator.translate_document

    def interrupted(self: Any, texts: Any, *given: Any, **named: Any) -> Any:
        if len(texts[0]) > 10:
            signal.raise_signal(signal.SIGHUP)
        return document(self, texts, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(fake_translator, "translate_document", interrupted)
        assert run(*flags).exit_code == 128 + signal.SIGHUP
    assert run(*flags, "--resume").exit_code == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_pipe_and_half_a_chunk_are_continued(run: Run, interrupt: Run, tmp_path: Path) -> None:
    content = b"".join(b"a b %d\n" % number for number in range(COUNT))
    assert run(stdin=content, out="whole").exit_code == 0
    interrupt(stdin=content)
    (partial,) = tmp_path.glob("out.*.partial")
    with partial.open("a") as file:  # SIGKILL after a line, before its position was noted
        file.write("a line\nhalf of a li")
    assert run("--resume", stdin=content).exit_code == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("out", ["out", "out.gz", "out.zst"])
def test_what_sigkill_or_a_power_failure_has_cut_is_translated_again(
    run: Run, interrupt: Run, text: Path, tmp_path: Path, out: str
) -> None:
    assert run(text, out="whole").exit_code == 0
    interrupt(text, out=out)
    (partial,) = tmp_path.glob("out*.partial")
    os.truncate(partial, partial.stat().st_size // 2)
    (record,) = tmp_path.glob("out*.record")
    record.write_bytes(record.read_bytes() + b'{"records": 6, "si')
    result = run(text, "--resume", out=out)
    assert result.exit_code == 0, result.stderr
    assert read_text(str(tmp_path / out)) == (tmp_path / "whole").read_text()
    assert names(tmp_path) == ["bundle", out, "text", "whole"]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_nothing_is_written_after_compressed_bytes_that_a_signal_has_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """Of a text that compresses badly: the compressor passes on a part of each chunk."""
    rng = random.Random(1)
    chunks = [[f"{rng.getrandbits(1 << 20):x}", str(number)] for number in range(5)]
    path, whole = tmp_path / f"out{suffix}", tmp_path / f"whole{suffix}"
    with open_output(whole, False) as output:
        for lines in chunks:
            output.write(lines)
    write = LineOutput._write

    def interrupted(output: LineOutput, content: bytes) -> None:
        monkeypatch.setattr(LineOutput, "_write", write)
        raise SystemExit

    with contextlib.suppress(SystemExit), open_output(path, False, settings={}) as output:
        for number in range(5):
            if number == 3:
                monkeypatch.setattr(LineOutput, "_write", interrupted)
            output.write(chunks[number])
            output.note(number + 1, "")
    (partial,) = tmp_path.glob("out*.partial")
    assert whole.read_bytes().startswith(partial.read_bytes())
    with open_output(path, False, settings={}, resume=True) as output:
        assert output.done.records == 2  # the compressor had the end of the third chunk
        for lines in chunks[2:]:
            output.write(lines)
    assert read_text(str(path)) == read_text(str(whole))


def test_positions_that_a_continued_run_went_back_are_not_used(tmp_path: Path) -> None:
    partial = PartialFile(tmp_path / "out.0123abcd.partial")
    partial.begin({})
    for records, size in ((1, 10), (2, 20), (1, 10)):
        partial.note(Position(records, size))
    partial.path.write_text(f"{'a' * 9}\n{'b' * 14}\n")  # killed before it noted 25 bytes
    partial.reopen({})
    assert partial.position == Position(1, 10)


def other_inputs(text: Path) -> list[object]:
    text.write_text(text.read_text().replace("a b 1", "a c 1"))
    return [text]


def fewer_inputs(text: Path) -> list[object]:
    text.write_text("a b 0\n")
    return [text]


OTHERS: dict[str, Callable[[Path], list[object]]] = {
    "option": lambda text: [text, "--beam-size", 3],
    "target": lambda text: [text, "--target", "onnx-int8"],
    "format": lambda text: [text, "--scores"],
    "input": other_inputs,
    "shorter": fewer_inputs,
}


@pytest.mark.parametrize("name", list(OTHERS))
def test_another_command_is_refused_and_loses_nothing(
    run: Run, interrupt: Run, text: Path, tmp_path: Path, name: str
) -> None:
    interrupt(text)
    before = text.read_text()
    (partial,) = tmp_path.glob("out.*.partial")
    lines = partial.read_text()
    result = run(*OTHERS[name](text), "--resume")
    assert result.exit_code in (1, 2)
    if name == "option":
        assert "--beam-size" in result.stderr
    assert partial.read_text() == lines
    text.write_text(before)
    assert run(text, "--resume").exit_code == 0


def test_force_discards_and_says_how_much(
    run: Run, interrupt: Run, text: Path, tmp_path: Path
) -> None:
    interrupt(text)
    (tmp_path / "out.mine.partial").write_text("of another program\n")
    refused = run(text)
    assert refused.exit_code == 1
    assert "4 lines" in refused.stderr
    assert "--resume" in refused.stderr
    result = run(text, "--force")
    assert result.exit_code == 0
    assert "4 lines" in result.stderr
    assert len((tmp_path / "out").read_text().splitlines()) == COUNT
    assert names(tmp_path) == ["bundle", "out", "out.mine.partial", "text"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
@pytest.mark.parametrize("flags", [(), ("--resume",), ("--force",)])
def test_links_and_pipes_are_no_partial_files(
    run: Run, text: Path, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    mine = tmp_path / "mine"
    mine.write_text("a line of another file\n")
    left = tmp_path / "out.0123abcd.partial", tmp_path / "out.89ab0123.partial"
    left[0].symlink_to(mine)
    os.mkfifo(left[1])
    for path in left:
        path.with_suffix(".record").write_text("{}\n")
    assert run(text, *flags).exit_code == 0
    assert mine.read_text() == "a line of another file\n"
    assert left[0].is_symlink()
    assert left[1].is_fifo()


def test_several_partial_files_are_named(
    run: Run, interrupt: Run, text: Path, tmp_path: Path
) -> None:
    interrupt(text)
    other = tmp_path / "out.0123abcd.partial"
    other.write_text("of another run\n")
    result = run(text, "--resume")
    assert result.exit_code == 1
    assert "several" in result.stderr
    assert all(str(path) in result.stderr for path in tmp_path.glob("out.*.partial"))
    other.unlink()
    result = run(text, "--resume", "-v")
    assert result.exit_code == 0
    assert "after 4 lines" in result.stderr


def test_resume_without_a_partial_output_begins(run: Run, text: Path, tmp_path: Path) -> None:
    assert run(text, "--resume").exit_code == 0
    assert run(text, "--resume").exit_code == 1  # the output is complete
    left = tmp_path / "new.0123abcd.partial"
    left.write_text("of another program\n")
    refused = run(text, "--resume", out="new")
    assert refused.exit_code == 1
    assert f"move {left} away" in refused.stderr
    assert left.exists()


def test_signals_raise_once_and_handlers_are_restored() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    tidied = []

    @exit_on_signals()
    def work() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)  # a scheduler may repeat it
            signal.raise_signal(signal.SIGHUP)
            tidied.append(True)

    with pytest.raises(SystemExit) as raised:
        work()
    assert raised.value.code == 143
    assert tidied == [True]
    assert [signal.getsignal(number) for number in numbers] == before


def test_later_signals_raise_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something, as ctypes in a callback, may have dropped the exception of the first."""
    monkeypatch.setattr(shutdown, "_SECONDS_OF_REPEATS", -1.0)

    @exit_on_signals()
    def work() -> None:
        with contextlib.suppress(SystemExit):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit):
        work()


@pytest.mark.parametrize(("seconds", "lines"), [(60.0, 3), (-1.0, 1)])
def test_deferred_signals_raise_at_the_end_or_when_repeated_later(
    monkeypatch: pytest.MonkeyPatch, seconds: float, lines: int
) -> None:
    monkeypatch.setattr(shutdown, "_SECONDS_OF_REPEATS", seconds)
    before = signal.getsignal(signal.SIGINT)
    done = []

    @deferred_signals()
    def work() -> None:
        signal.raise_signal(signal.SIGINT)
        done.append(1)
        signal.raise_signal(signal.SIGINT)
        done.extend((2, 3))

    with pytest.raises(KeyboardInterrupt):
        work()
    assert len(done) == lines
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_in_a_message_of_a_loading_library_ends_the_command(
    compiled_bundle: Path, text: Path
) -> None:
    """Without a deferral, ctypes drops the exception that the handler raises in the callback."""
    if native.library() is None:
        pytest.skip(native.status())

    class Terminating(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.module == "core":
                signal.raise_signal(signal.SIGTERM)

    handler, log = Terminating(), logging.getLogger("translate_trt")
    log.addHandler(handler)
    try:
        arguments = ["translate", "-v", "--bundle", str(compiled_bundle), str(text)]
        result = CliRunner().invoke(main, arguments)
    finally:
        log.removeHandler(handler)
    assert result.exit_code == 128 + signal.SIGTERM, result.output


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup
    try:
        with exit_on_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
