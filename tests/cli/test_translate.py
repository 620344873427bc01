from __future__ import annotations

import dataclasses
import fcntl
import gzip
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.options import SearchOptions

Run = Callable[..., Result]
Start = Callable[..., subprocess.Popen[bytes]]

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
UNBUFFERED = {**BUFFERED, "PYTHONUNBUFFERED": "1"}
WAIT = 60  # seconds; only so that a failing test ends


@pytest.fixture
def start(bundle: Path, fake_program: Path) -> Iterator[Start]:
    """Start the command as a process with pipes, and kill it after the test."""
    started = []

    def start(*arguments: object, **pipes: Any) -> subprocess.Popen[bytes]:
        flags = [sys.executable, str(fake_program), "translate", "--bundle", str(bundle)]
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        pipes.setdefault("env", BUFFERED)
        # A shell starts what runs in the background with Ctrl-C ignored, and that is inherited.
        pipes.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        process = subprocess.Popen([*flags, *map(str, arguments)], **{**streams, **pipes})
        # Ends a process that does not answer, so that the test's reading ends too.
        watchdog = threading.Timer(WAIT, process.kill)
        watchdog.start()
        started.append((process, watchdog))
        return process

    yield start
    for process, watchdog in started:
        watchdog.cancel()
        process.kill()
        process.communicate()


# ---- one line out for one line in ----

LINES = b"\xef\xbb\xbfa b\r\n\n  \t \nc \xff d\n\0 e\n" + "\U0001f600 f\x85\x0b\u2028g".encode()
REVERSED = "b a\n\n\t\nd \ufffd c\ne \0\ng f \U0001f600\n".encode()


@pytest.mark.parametrize(
    ("given", "expected"),
    [(b"", b""), (b"\n", b"\n"), (LINES, REVERSED), (gzip.compress(LINES), REVERSED)],
    ids=["empty file", "empty line", "lines", "gzip"],
)
def test_one_line_out_for_every_line_in(
    translate: Run, tmp_path: Path, given: bytes, expected: bytes
) -> None:
    (tmp_path / "in").write_bytes(given)
    assert translate(stdin=given).stdout_bytes == expected
    assert translate(tmp_path / "in", "--output", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out").read_bytes() == expected
    as_json = translate("--json", stdin=given).stdout_bytes.split(b"\n")[:-1]
    assert len([json.loads(line) for line in as_json]) == expected.count(b"\n")


def test_several_inputs_in_order(translate: Run, tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"a b")
    (tmp_path / "2").write_bytes(b"")
    (tmp_path / "3").write_bytes(b"e f\n")
    result = translate(tmp_path / "1", "-", tmp_path / "2", tmp_path / "3", stdin=b"c d\n")
    assert result.stdout == "b a\nd c\nf e\n"


def test_long_lines_and_sentences_are_told(translate: Run, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("short\n" + "word " * 33 + "\nOne. Two. Three.\n")
    for flags in ((), ("--split-sentences",)):
        (told,) = translate(tmp_path / "in", "--chunk-lines", 1, *flags).stderr.splitlines()
        for part in (f"{tmp_path / 'in'}, line 2", "16 tokens", "3 segments"):
            assert part in told


# ---- options ----

FLAGS: list[tuple[str, dict[str, Any]]] = [
    (
        "--beam-size 3 --n-best 2 --attention --length-penalty 0 --length-penalty-form length "
        "--early-stopping --max-length 7 --min-length 3 --loop-guard --target-language de "
        "--source-language en --repetition-penalty 1.2 --no-repeat-ngram-size 3 --disable-unk",
        {"beam_size": 3, "num_hypotheses": 2, "return_attention": True, "length_penalty": 0.0,
         "length_penalty_form": "length", "early_stopping": True, "max_length": 7, "min_length": 3,
         "loop_guard": True, "target_language": "de", "source_language": "en",
         "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "disable_unk": True},
    ),
    (
        "--alternatives 3 --min-alternative-prob 0.1 --max-extra-length 9",
        {"alternatives": 3, "min_alternative_prob": 0.1, "max_extra_length": 9},
    ),
    (
        "--beam-size 1 --sampling-top-k 9 --sampling-top-p 0.9 --sampling-temperature 0.8 "
        "--sampling-seed 4 --suppress-sequences 12,7",
        {"beam_size": 1, "sampling_top_k": 9, "sampling_top_p": 0.9, "sampling_temperature": 0.8,
         "seed": 4, "suppress_sequences": "12,7"},
    ),
]  # fmt: skip


def test_search_options_reach_the_translator(
    translate: Run, fake_translator: Any, bundle: Path
) -> None:
    defaults = SearchOptions(beam_size=7, length_penalty=0.25)
    manifest = read_manifest(bundle)
    search = {"beam_size": 7, "length_penalty": 0.25}
    write_manifest(bundle, dataclasses.replace(manifest, search=search))
    for flags, changed in FLAGS:
        assert translate(*flags.split(), stdin=b"a\n").exit_code == 0
        expected = dataclasses.replace(defaults, **changed)
        assert fake_translator.calls[-1]["options"] == expected
    tried = {name for _, changed in FLAGS for name in changed}
    assert tried == {field.name for field in dataclasses.fields(SearchOptions)}


def test_flags_of_lines_reach_the_translator(translate: Run, fake_translator: Any) -> None:
    plain = {"split_sentences": False, "markup": None, "terminology": None}
    lines = {**plain, "alignments": False, "translate_all": False, "constraints": None}
    for flags, expected in (
        ((), lines),
        (("--split-sentences", "--translate-all"),
         {**lines, "split_sentences": True, "translate_all": True}),
        (("--split-language", "de", "--alignments"),
         {**lines, "split_sentences": "de", "alignments": True}),
        (("--markup", "xml"), {**lines, "markup": "xml"}),
        (("--document",), {**plain, "split_sentences": True, "unwrap": False}),
        (("--document", "--unwrap", "--split-language", "de"),
         {**plain, "split_sentences": "de", "unwrap": True}),
        (("--document", "--markup", "html"),
         {**plain, "split_sentences": True, "markup": "html", "unwrap": False}),
    ):  # fmt: skip
        assert translate(*flags, stdin=b"a").exit_code == 0
        assert expected.items() <= fake_translator.calls[-1].items()


def test_translator_is_made_as_asked(translate: Run, fake_translator: Any) -> None:
    flags = "--target onnx-int8 --shortlist --threads 3 --workers 4 --batch-tokens 99 --device cpu"
    translate(*flags.split(), "--trust-code")
    translate()
    assert fake_translator.made == [
        {"target": "onnx-int8", "shortlist": True, "threads": 3, "workers": 4, "batch_tokens": 99,
         "device": "cpu", "trust_code": True},
        {"target": None, "workers": 1},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "workers"),
    [("in", 6), ("in --threads 4", 1), ("in --threads 9", 1), ("in --threads 2", 3), ("in -", 1)],
)
def test_a_file_has_a_worker_for_every_core_and_a_pipe_one(
    translate: Run, fake_translator: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    flags: str, workers: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("translate_trt.runtime.cores.available_cores", lambda: 6)
    monkeypatch.chdir(tmp_path)
    Path("in").write_text("a b\n")
    translate(*flags.split(), stdin=b"c d\n")
    assert fake_translator.made[-1]["workers"] == workers


def test_the_batches_of_engines_do_not_follow_the_cores(
    translate: Run, fake_translator: Any, bundle: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(bundle)
    engine = dataclasses.replace(manifest.targets["onnx-fp32"], engine={})
    write_manifest(bundle, dataclasses.replace(manifest, targets={"onnx-fp32": engine}))
    (tmp_path / "in").write_text("a b\n")
    assert translate(tmp_path / "in").exit_code == 0
    assert "workers" not in fake_translator.made[-1]


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (["--beam-size", "0"], 2, "--beam-size is 0"),
        (["--length-penalty-form", "x"], 2, "gnmt"),
        (["--threads", "0"], 2, "--threads"),
        (["--target", "tensorrt"], 1, "onnx-fp32"),
        (["no-such-file"], 1, "file no-such-file"),
        (["--target-prefix", "no-such-file"], 1, "file no-such-file"),
        (["-", "--target-prefix", "-"], 2, "are both -"),
        (["--unwrap"], 2, "--unwrap needs --document"),
        (["-o", "-", "--resume"], 2, "--resume needs --output"),
        (["--terminology-ignore-case"], 2, "--terminology-ignore-case"),
    ],
)
def test_bad_options(
    translate: Run, fake_translator: Any, flags: list[str], exit_code: int, message: str
) -> None:
    result = translate(*flags, stdin=b"a\n")
    assert (result.exit_code, result.stdout) == (exit_code, "")
    assert message in result.stderr
    assert not fake_translator.made


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ("--document --target-prefix {file}", "--target-prefix"),
        ("--document --alignment-threshold 0", "--alignments"),
        ("--document --input-format tsv --column 1", "--input-format tsv"),
        ("--document --scores", "--scores"),
        ("--document --translate-all", "--translate-all"),
        ("--document --constraints {file}", "--constraints"),
        ("--split-language de --constraints {file}", "--split-sentences"),
        ("--document --input-format jsonl --constraints-field must", "--constraints-field"),
        ("--constraints {file} --input-format jsonl --constraints-field x", "--constraints-field"),
        ("--markup html --alignments", "--alignments"),
        ("--markup html --words", "--words"),
        ("--markup html --translate-all", "--translate-all"),
        ("--markup html --target-prefix {file}", "--target-prefix"),
        ("--markup html --constraints {file}", "--constraints"),
        ("--markup html --document --unwrap", "--unwrap"),
    ],
)
def test_flags_that_exclude_each_other_are_named(
    translate: Run, fake_translator: Any, tmp_path: Path, flags: str, named: str
) -> None:
    (tmp_path / "file").write_text("a\n")
    given = flags.format(file=tmp_path / "file").split()
    result = translate(*given, stdin=b"a\n")
    assert result.exit_code == 2
    assert named in result.stderr
    assert given[0].replace("language", "sentences") in result.stderr
    assert not fake_translator.made


# ---- formats ----


def test_json(translate: Run) -> None:
    result = translate("--json", stdin='ü "b"\u2028\n\n'.encode())
    first, second = result.stdout.split("\n")[:-1]
    assert json.loads(first) == {
        "source": 'ü "b"\u2028',
        "hypotheses": [
            {
                "text": '"b" ü',
                "score": 0.0,
                "token_log_probs": [-0.5, -0.5, None],
                "truncated": False,
                "looped": False,
            }
        ],
    }
    assert "ü" in first
    assert json.loads(second)["hypotheses"][0]["text"] == ""


# ---- files with a line for each input line ----


def test_prefixes_go_with_their_lines(translate: Run, tmp_path: Path, fake_translator: Any) -> None:
    (tmp_path / "1").write_text("a\nb\nc\n")
    (tmp_path / "2").write_text("d\n")
    (tmp_path / "prefixes").write_text("A\n\nC\nD\n")
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 2)
    assert translate(tmp_path / "1", tmp_path / "2", *flags).exit_code == 0
    assert [call["prefixes"] for call in fake_translator.calls] == [["A", ""], ["C"], ["D"]]


def test_constraints_go_with_their_lines(
    translate: Run, tmp_path: Path, fake_translator: Any
) -> None:
    (tmp_path / "phrases").write_text("A\tB b\n\n\tC\n")
    flags = ("--constraints", tmp_path / "phrases", "--chunk-lines", 2)
    assert translate(*flags, stdin=b"a\nb\nc\n").exit_code == 0
    assert [call["constraints"] for call in fake_translator.calls] == [[["A", "B b"], []], [["C"]]]


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ("A\n", "prefixes has only 1 lines, none for standard input, line 2"),
        ("A\nB\nC\nD\n", "prefixes has 4 lines, but the input 2"),
    ],
)
def test_as_many_prefixes_as_lines(
    translate: Run, tmp_path: Path, prefixes: str, message: str
) -> None:
    (tmp_path / "prefixes").write_text(prefixes)
    result = translate("--target-prefix", tmp_path / "prefixes", stdin=b"a\nb\n")
    assert result.exit_code == 1
    assert message in result.stderr


# ---- output files ----


def test_existing_output_is_refused_before_anything_is_loaded(
    translate: Run, tmp_path: Path, fake_translator: Any
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    result = translate("--output", out, stdin=b"a\n")
    assert result.exit_code == 1
    assert str(out) in result.stderr
    assert "--force" in result.stderr
    assert not fake_translator.made
    assert out.read_text() == "old"
    assert translate("--output", out, "--force", stdin=b"a b\n").exit_code == 0
    assert out.read_text() == "b a\n"
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]


def test_a_hyphen_is_standard_output(
    translate: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = translate("-o", "-", stdin=b"a b\n")
    assert (result.exit_code, result.stdout) == (0, "b a\n")
    assert sorted(tmp_path.iterdir()) == before


def test_an_error_keeps_the_lines_that_are_done(translate: Run, tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("A\nB\n")
    (tmp_path / "in").write_text("a b\nc d\ne f\n")
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 2)
    result = translate(tmp_path / "in", "--output", tmp_path / "out", *flags)
    assert result.exit_code == 1
    (partial,) = tmp_path.glob("out.*.partial")
    assert str(partial) in result.stderr
    assert partial.read_text() == "b a\nd c\n"
    assert not (tmp_path / "out").exists()


def test_a_line_cut_by_a_full_disk_is_not_kept(tmp_path: Path) -> None:
    def fail_halfway() -> None:
        with open_output(tmp_path / "out", force=False) as output:
            output.write(["first", "second"])
            output.write(["x" * (2 << 20)])
            os.truncate(next(tmp_path.glob("out.*.partial")), 1 << 20)
            raise OutputError("full")

    with pytest.raises(OutputError):
        fail_halfway()
    assert next(tmp_path.glob("out.*.partial")).read_text() == "first\nsecond\n"


@pytest.mark.parametrize("out", ["text", "prefixes"])
def test_an_input_is_not_replaced(translate: Run, tmp_path: Path, out: str) -> None:
    path, prefixes = tmp_path / "text", tmp_path / "prefixes"
    path.write_text("a b\nc d\n")
    prefixes.write_text("\n\n")
    result = translate(path, "--target-prefix", prefixes, "--output", tmp_path / out, "--force")
    assert result.exit_code == 1
    assert "is the input" in result.stderr
    assert (path.read_text(), prefixes.read_text()) == ("a b\nc d\n", "\n\n")


def test_two_at_once(translate: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open_output(out, force=False) as output:
        output.write(["first"])
        second = translate("--output", out, "--force", stdin=b"second\n")
    assert second.exit_code == 1
    assert f"process {os.getpid()} on " in second.stderr
    assert out.read_text() == "first\n"


def test_what_is_no_text_is_not_replaced(translate: Run, tmp_path: Path) -> None:
    for name, content in (("weights", b"a\0b"), ("picture", b"\x89PNG\r\n")):
        (tmp_path / name).write_bytes(content)
        result = translate("--output", tmp_path / name, "--force", stdin=b"a\n")
        assert result.exit_code == 1
        assert "--force" in result.stderr
        assert (tmp_path / name).read_bytes() == content


# ---- streams ----


def test_a_pipe_is_answered_before_it_ends_or_is_interrupted(start: Start) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for line, answer in ((b"a b\n", b"b a\n"), (b"\n", b"\n"), (b"c d e\n", b"e d c\n")):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == answer
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_a_reader_that_has_seen_enough(start: Start, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("a b\n" * 50_000)
    process = start(tmp_path / "in", "--chunk-lines", 100)
    assert process.stdout is not None
    assert process.stdout.readline() == b"b a\n"
    process.stdout.close()
    assert process.wait(WAIT) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("to_file", [False, True])
def test_a_full_disk(start: Start, to_file: bool) -> None:
    with open("/dev/full", "wb") as full:
        flags, stdout = (["--output", "/dev/full"], subprocess.PIPE) if to_file else ([], full)
        process = start(*flags, stdout=stdout)
        _, err = process.communicate(b"a b\n", timeout=WAIT)
    name = b"/dev/full" if to_file else b"standard output"
    assert process.returncode == 1
    assert err == (
        b"translate-trt: error: cannot write " + name + b": No space left on device. "
        b"Free some space or choose a path on another disk.\n"
    )


def test_a_write_cut_short(start: Start, tmp_path: Path) -> None:
    """Unbuffered, sys.stdout would not tell that a part was not written."""

    def at_most_6_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, 6))

    with (tmp_path / "out").open("wb") as out:
        process = start(stdout=out, env=UNBUFFERED, preexec_fn=at_most_6_bytes)
        _, err = process.communicate(b"a b\nc d\n", timeout=WAIT)
    assert process.returncode == 1
    assert err.startswith(b"translate-trt: error: cannot write standard output: File too large")
    assert (tmp_path / "out").read_bytes() == b"b a\nd "


def test_standard_output_that_is_closed(start: Start) -> None:
    process = start(stdout=None, preexec_fn=lambda: os.close(1))
    _, err = process.communicate(b"a\n", timeout=WAIT)
    assert process.returncode == 1
    assert b"error: standard output is closed; name a file with --output." in err


def test_standard_input_that_is_closed(start: Start) -> None:
    process = start(stdin=None, preexec_fn=lambda: os.close(0))
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert err == b"translate-trt: error: standard input is closed; name an input file.\n"


def test_output_is_utf8_whatever_the_locale(start: Start) -> None:
    process = start(env={**BUFFERED, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    out, _ = process.communicate("ü 😀\n".encode(), timeout=WAIT)
    assert out.decode() == "😀 ü\n"


def test_progress_only_on_a_terminal(start: Start, tmp_path: Path) -> None:
    def shown(*flags: str) -> bytes:
        terminal, other_end = os.openpty()
        fcntl.ioctl(other_end, termios.TIOCSWINSZ, struct.pack("4H", 25, 80, 0, 0))
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        process = start("--output", out, *flags, stderr=other_end)
        process.communicate(b"a b\n", timeout=WAIT)
        os.close(other_end)
        try:
            return os.read(terminal, 65536)
        except OSError:  # nothing was written
            return b""
        finally:
            os.close(terminal)

    assert b"1 lines" in shown()
    assert shown("--no-progress") == b""
