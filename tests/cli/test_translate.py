from __future__ import annotations

import dataclasses
import fcntl
import gzip
import json
import math
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.cli.output import open_output
from translate_trt.runtime.errors import OutputError
from translate_trt.runtime.options import SearchOptions

BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
UNBUFFERED = {**BUFFERED, "PYTHONUNBUFFERED": "1"}
WAIT = 60  # seconds; only so that a failing test ends


@pytest.fixture
def bundle(make_bundle: Callable[..., Path]) -> Path:
    return make_bundle(targets=("onnx-fp32", "onnx-int8", "onnx-int8-shortlist"))


@pytest.fixture
def run(bundle: Path, fake_translator: Any) -> Callable[..., Result]:
    def run(*arguments: object, stdin: bytes = b"") -> Result:
        flags = ["translate", "--bundle", str(bundle), *map(str, arguments)]
        return CliRunner().invoke(main, flags, input=stdin)

    return run


@pytest.fixture
def start(bundle: Path, fake_program: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
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

BAD_INPUTS = {
    "empty file": (b"", b""),
    "empty line": (b"\n", b"\n"),
    "white space": (b"  \t \n", b"\n"),
    "words": (b"a b\nc d\n", b"b a\nd c\n"),
    "no final newline": (b"a b\nc d", b"b a\nd c\n"),
    "CRLF": (b"a b\r\n\r\nc\r\n", b"b a\n\nc\n"),
    "BOM": (b"\xef\xbb\xbfa b\n", b"b a\n"),
    "invalid UTF-8": (b"a \xff\n", "\ufffd a\n".encode()),
    "NUL": (b"a \0\n", b"\0 a\n"),
    "emoji and scripts": ("😀 猫 й\n".encode(), "й 猫 😀\n".encode()),
    "gzip": (gzip.compress(b"a b\nc d\n", mtime=0), b"b a\nd c\n"),
    "U+0085 VT FF U+2028": ("a\x85b\x0bc\x0cd\u2028e\n".encode(), b"e d c b a\n"),
}


@pytest.mark.parametrize(("given", "expected"), BAD_INPUTS.values(), ids=BAD_INPUTS)
def test_one_line_out_for_every_line_in(
    run: Callable[..., Result], tmp_path: Path, given: bytes, expected: bytes
) -> None:
    result = run(stdin=given)
    assert result.exit_code == 0, result.output
    assert result.stdout_bytes == expected

    (tmp_path / "in").write_bytes(given)
    assert run(tmp_path / "in").stdout_bytes == expected
    assert run(tmp_path / "in", "--output", tmp_path / "out").exit_code == 0
    assert (tmp_path / "out").read_bytes() == expected
    as_json = run("--json", stdin=given).stdout_bytes.split(b"\n")[:-1]
    assert len([json.loads(line) for line in as_json]) == expected.count(b"\n")


def test_several_inputs_in_order(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "1").write_bytes(b"a b")
    (tmp_path / "2").write_bytes(b"")
    (tmp_path / "3").write_bytes(b"e f\n")
    result = run(tmp_path / "1", "-", tmp_path / "2", tmp_path / "3", stdin=b"c d\n")
    assert result.stdout == "b a\nd c\nf e\n"


def test_chunks(run: Callable[..., Result], tmp_path: Path, fake_translator: Any) -> None:
    (tmp_path / "in").write_text("1\n2\n3\n4\n5\n")
    assert run(tmp_path / "in", "--chunk-lines", 2).stdout == "1\n2\n3\n4\n5\n"
    assert [lines for lines, *_ in fake_translator.calls] == [["1", "2"], ["3", "4"], ["5"]]


def test_invalid_utf8_is_told_with_file_and_line(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    (tmp_path / "in").write_bytes(b"ok\n\xff\n")
    result = run(tmp_path / "in")
    assert result.stderr.startswith(f"translate-trt: warning: {tmp_path / 'in'}, line 2: not valid")


def test_long_lines_are_told_with_file_and_line(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "in").write_text("short\n" + "word " * 33 + "\nshort\n")
    result = run(tmp_path / "in", "--chunk-lines", 1)
    assert result.stdout.count("\n") == 3
    for part in (f"{tmp_path / 'in'}, line 2", "16 tokens", "3 segments"):
        assert part in result.stderr


# ---- options ----


FLAGS: list[tuple[list[str], dict[str, Any]]] = [
    (["--beam-size", "2"], {"beam_size": 2}),
    (["--length-penalty", "0"], {"length_penalty": 0.0}),
    (["--length-penalty-form", "length"], {"length_penalty_form": "length"}),
    (["--early-stopping"], {"early_stopping": True}),
    (["--max-length", "7"], {"max_length": 7}),
    (["--min-length", "3"], {"min_length": 3}),
    (["--max-extra-length", "9"], {"max_extra_length": 9}),
    (["--n-best", "3"], {"num_hypotheses": 3}),
    (["--attention"], {"return_attention": True}),
    (["--target-language", "de"], {"target_language": "de"}),
    (["--source-language", "en"], {"source_language": "en"}),
    (["--loop-guard"], {"loop_guard": True}),
    (["--alternatives", "3"], {"alternatives": 3}),
    (["--min-alternative-prob", "0.1"], {"min_alternative_prob": 0.1}),
    (["--repetition-penalty", "1.2"], {"repetition_penalty": 1.2}),
    (["--no-repeat-ngram-size", "3"], {"no_repeat_ngram_size": 3}),
    (["--suppress-sequences", "12 40, 7"], {"suppress_sequences": "12 40, 7"}),
    (["--disable-unk"], {"disable_unk": True}),
    (
        ["--beam-size", "1", "--sampling-top-k", "9", "--sampling-top-p", "0.9",
         "--sampling-temperature", "0.8", "--sampling-seed", "4"],
        {"beam_size": 1, "sampling_top_k": 9, "sampling_top_p": 0.9, "sampling_temperature": 0.8,
         "seed": 4},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "changed"), FLAGS)
def test_flags_reach_the_translator(
    run: Callable[..., Result],
    fake_translator: Any,
    bundle: Path,
    flags: list[str],
    changed: dict[str, Any],
) -> None:
    assert run(*flags, stdin=b"a\n").exit_code == 0
    defaults = read_manifest(bundle).search_options()
    assert fake_translator.calls[-1][1] == dataclasses.replace(defaults, **changed)


def test_each_search_option_is_tried_above() -> None:
    tried = {name for _, changed in FLAGS for name in changed}
    assert tried == {field.name for field in dataclasses.fields(SearchOptions)}


def test_defaults_are_the_bundles(
    run: Callable[..., Result], fake_translator: Any, bundle: Path
) -> None:
    path = bundle / "manifest.json"
    value = json.loads(path.read_text())
    value["search"] = {"beam_size": 7, "length_penalty": 0.25}
    path.write_text(json.dumps(value))
    run("--length-penalty", "0.5", stdin=b"a\n")
    assert fake_translator.calls[-1][1] == SearchOptions(beam_size=7, length_penalty=0.5)


def test_translator_is_made_as_asked(run: Callable[..., Result], fake_translator: Any) -> None:
    run(
        "--target", "onnx-int8", "--shortlist", "--threads", 3, "--workers", 4, "--batch-tokens", 99
    )
    run()
    given = {"threads": 3, "workers": 4, "batch_tokens": 99}
    assert fake_translator.made == [
        {"target": "onnx-int8", "shortlist": True, **given},
        {"target": None, "shortlist": False, "threads": None, "workers": 1, "batch_tokens": None},
    ]


@pytest.mark.parametrize(
    ("threads", "pipe", "workers"),
    [((), False, 6), ((1,), False, 6), ((4,), False, 1), ((9,), False, 1), ((2,), False, 3),
     ((), True, 1), ((2,), True, 1)],
)  # fmt: skip
def test_a_file_has_a_worker_for_every_core_and_a_pipe_one(
    run: Callable[..., Result], fake_translator: Any, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, threads: tuple[int, ...], pipe: bool, workers: int,
) -> None:  # fmt: skip
    monkeypatch.setattr("translate_trt.runtime.cores.available_cores", lambda: 6)
    (tmp_path / "in").write_text("a b\n")
    flags = [flag for number in threads for flag in ("--threads", number)]
    assert run(*flags, tmp_path / "in", *(["-"] if pipe else []), stdin=b"c d\n").exit_code == 0
    assert fake_translator.made[-1]["workers"] == workers


def test_the_batches_of_engines_do_not_follow_the_cores(
    run: Callable[..., Result], fake_translator: Any, bundle: Path, tmp_path: Path
) -> None:
    manifest = read_manifest(bundle)
    engine = dataclasses.replace(manifest.targets["onnx-fp32"], engine={})
    write_manifest(bundle, dataclasses.replace(manifest, targets={"onnx-fp32": engine}))
    (tmp_path / "in").write_text("a b\n")
    for flags in ([], ["--workers", 3]):
        assert run(tmp_path / "in", *flags).exit_code == 0
    assert [made["workers"] for made in fake_translator.made] == [None, 3]


@pytest.mark.parametrize(
    ("flags", "exit_code", "message"),
    [
        (["--beam-size", "0"], 2, "--beam-size is 0"),
        (["--n-best", "5"], 2, "Raise --beam-size"),
        (["--length-penalty", "nan"], 2, "--length-penalty is nan"),
        (["--length-penalty-form", "x"], 2, "gnmt"),
        (["--threads", "0"], 2, "--threads"),
        (["--workers", "0"], 2, "--workers"),
        (["--chunk-lines", "0"], 2, "--chunk-lines"),
        (["--target", "tensorrt"], 1, "onnx-fp32"),
        (["no-such-file"], 1, "file no-such-file"),
        (["--target-prefix", "no-such-file"], 1, "file no-such-file"),
        (["-", "--target-prefix", "-"], 2, "are both -"),
    ],
)
def test_bad_options(
    run: Callable[..., Result], flags: list[str], exit_code: int, message: str
) -> None:
    result = run(*flags, stdin=b"a\n")
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert message in result.stderr


# ---- formats ----


def test_scores(run: Callable[..., Result]) -> None:
    assert run("--scores", stdin=b"a b\n\n").stdout == "0.000000\tb a\n0.000000\t\n"


def test_json(run: Callable[..., Result]) -> None:
    result = run("--json", stdin='ü "b"\u2028\n\n'.encode())
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


def test_n_best_is_json(run: Callable[..., Result]) -> None:
    value = json.loads(run("--n-best", 3, stdin=b"a b\n").stdout)
    assert [item["text"] for item in value["hypotheses"]] == ["b a", "b a #1", "b a #2"]
    assert [item["score"] for item in value["hypotheses"]] == [0, -1, -2]


def test_attention_is_json_with_a_matrix_for_each_piece(run: Callable[..., Result]) -> None:
    short, long = run("--attention", stdin=b"a\n" + b"w " * 18).stdout.splitlines()
    assert json.loads(short)["hypotheses"][0]["attention"] == [[[1.0, 0.0], [0.0, 1.0]]]
    matrices = json.loads(long)["hypotheses"][0]["attention"]
    assert [len(matrix) for matrix in matrices] == [17, 3]
    assert "attention" not in json.loads(run("--json", stdin=b"a\n").stdout)["hypotheses"][0]


# ---- prefixes ----


def test_prefixes_go_with_their_lines(
    run: Callable[..., Result], tmp_path: Path, fake_translator: Any
) -> None:
    (tmp_path / "1").write_text("a\nb\nc\n")
    (tmp_path / "2").write_text("d\n")
    (tmp_path / "prefixes").write_text("A\n\nC\nD\n")
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 2)
    assert run(tmp_path / "1", tmp_path / "2", *flags).exit_code == 0
    assert [prefixes for *_, prefixes in fake_translator.calls] == [["A", ""], ["C"], ["D"]]


def test_constraints_go_with_their_lines(
    run: Callable[..., Result], tmp_path: Path, fake_translator: Any
) -> None:
    (tmp_path / "phrases").write_text("A\tB b\n\n\tC\n")
    flags = ("--constraints", tmp_path / "phrases", "--chunk-lines", 2)
    before = len(fake_translator.constraints)
    assert run(*flags, stdin=b"a\nb\nc\n").exit_code == 0
    assert fake_translator.constraints[before:] == [[["A", "B b"], []], [["C"]]]
    result = run(*flags, stdin=b"a\nb\n")
    assert (result.exit_code, "phrases" in result.stderr) == (1, True)
    for other in (("--document",), ("--markup", "html"), ("--split-sentences",)):
        result = run(*flags, *other, stdin=b"a\n")
        assert (result.exit_code, "--constraints" in result.stderr) == (2, True)


def test_lines_without_letters(run: Callable[..., Result], fake_translator: Any) -> None:
    for flags in ((), ("--translate-all",)):
        assert run(*flags, stdin=b"12\n").exit_code == 0
        assert fake_translator.translates_all[-1] is bool(flags)
    for other in (("--document",), ("--markup", "html")):
        assert run("--translate-all", *other, stdin=b"12\n").exit_code == 2


@pytest.mark.parametrize(
    ("prefixes", "message"),
    [
        ("A\n", "prefixes has only 1 lines, none for standard input, line 2"),
        ("A\nB\nC\nD\n", "prefixes has 4 lines, but the input 2"),
    ],
)
def test_as_many_prefixes_as_lines(
    run: Callable[..., Result], tmp_path: Path, prefixes: str, message: str
) -> None:
    (tmp_path / "prefixes").write_text(prefixes)
    result = run("--target-prefix", tmp_path / "prefixes", stdin=b"a\nb\n")
    assert result.exit_code == 1
    assert message in result.stderr


# ---- output files ----


def test_existing_output_is_refused_before_anything_is_loaded(
    run: Callable[..., Result], tmp_path: Path, fake_translator: Any
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    result = run("--output", out, stdin=b"a\n")
    assert result.exit_code == 1
    assert str(out) in result.stderr
    assert "--force" in result.stderr
    assert not fake_translator.made
    assert out.read_text() == "old"
    assert run("--output", out, "--force", stdin=b"a b\n").exit_code == 0
    assert out.read_text() == "b a\n"
    assert [path.name for path in tmp_path.glob("out*")] == ["out"]


def test_lines_of_an_interrupted_run_are_not_overwritten(
    run: Callable[..., Result], tmp_path: Path
) -> None:
    left, others = tmp_path / "out.0123abcd.partial", tmp_path / "out.mine.partial"
    for path in (left, others):
        path.write_text("kept")
    result = run("--output", tmp_path / "out", stdin=b"a\n")
    assert result.exit_code == 1
    assert str(left) in result.stderr
    assert left.read_text() == "kept"
    assert run("--output", tmp_path / "out", "--force", stdin=b"a\n").exit_code == 0
    assert sorted(path.name for path in tmp_path.glob("*out*")) == ["out", "out.mine.partial"]


def test_a_hyphen_is_standard_output(
    run: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = run("-o", "-", stdin=b"a b\n")
    assert (result.exit_code, result.stdout) == (0, "b a\n")
    assert run("-o", "-", "--resume", stdin=b"a b\n").exit_code == 2
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("place", [".", "no/such/place"])
def test_output_that_cannot_be_written(
    run: Callable[..., Result], tmp_path: Path, place: str
) -> None:
    result = run("--output", tmp_path / place, "--force", stdin=b"a\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("translate-trt: error: ")


def test_an_error_keeps_the_lines_that_are_done(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "prefixes").write_text("A\nB\n")
    (tmp_path / "in").write_text("a b\nc d\ne f\n")
    flags = ("--target-prefix", tmp_path / "prefixes", "--chunk-lines", 2)
    result = run(tmp_path / "in", "--output", tmp_path / "out", *flags)
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


@pytest.mark.parametrize("role", ["input", "prefixes", "link", "hard link"])
def test_an_input_is_not_replaced(run: Callable[..., Result], tmp_path: Path, role: str) -> None:
    path, prefixes, out = tmp_path / "text", tmp_path / "prefixes", tmp_path / "out"
    path.write_text("a b\nc d\n")
    prefixes.write_text("\n\n")
    if role == "link":
        out.symlink_to("text")
    elif role == "hard link":
        os.link(path, out)
    else:
        out = path if role == "input" else prefixes
    result = run(path, "--target-prefix", prefixes, "--output", out, "--force")
    assert result.exit_code == 1
    assert "is the input" in result.stderr
    assert (path.read_text(), prefixes.read_text()) == ("a b\nc d\n", "\n\n")


def test_what_is_no_text_is_not_replaced(run: Callable[..., Result], tmp_path: Path) -> None:
    for name, content in (("weights", b"a\0b"), ("picture", b"\x89PNG\r\n")):
        (tmp_path / name).write_bytes(content)
        result = run("--output", tmp_path / name, "--force", stdin=b"a\n")
        assert result.exit_code == 1
        assert "--force" in result.stderr
        assert (tmp_path / name).read_bytes() == content


def test_two_at_once(
    run: Callable[..., Result], start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.write_text("old")
    first = start("--output", out, "--force")
    assert first.stdin is not None
    first.stdin.write(b"a b\n")
    first.stdin.flush()
    while first.poll() is None and not list(tmp_path.glob("out.*.partial")):
        time.sleep(0.01)
    second = run("--output", out, "--force", stdin=b"c d\n")
    assert second.exit_code == 1
    assert f"process {first.pid} on " in second.stderr
    assert out.read_text() == "old"
    first.communicate(timeout=WAIT)
    assert out.read_text() == "b a\n"
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == ["out"]


def test_a_directory_that_disappears(run: Callable[..., Result], tmp_path: Path) -> None:
    def vanish(*, at_once: bool) -> None:
        directory = tmp_path / "od"
        directory.mkdir()
        with open_output(directory / "o.txt", force=False) as output:
            output.write(["first"])
            shutil.rmtree(directory)
            if at_once:
                output.write(["second"])

    for at_once in (True, False):
        with pytest.raises(OutputError, match=r"o\.txt"):
            vanish(at_once=at_once)
    assert not (tmp_path / "od").exists()


def test_devices_are_written_and_not_replaced(run: Callable[..., Result], tmp_path: Path) -> None:
    assert run("--output", "/dev/null", "--force", stdin=b"a\n").exit_code == 0
    assert not os.path.isfile("/dev/null")
    assert not os.path.exists("/dev/null.partial")


# ---- streams ----


def test_a_pipe_is_answered_before_it_ends(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    for line, answer in ((b"a b\n", b"b a\n"), (b"\n", b"\n"), (b"c d e\n", b"e d c\n")):
        process.stdin.write(line)
        process.stdin.flush()
        assert process.stdout.readline() == answer
    process.stdin.write(b"last one")
    out, err = process.communicate(timeout=WAIT)
    assert (out, err, process.returncode) == (b"one last\n", b"", 0)


def test_ctrl_c_while_waiting_for_a_pipe(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a b\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"b a\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(WAIT) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_keeps_the_lines_that_are_done(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, sent: int, status: int
) -> None:
    process = start("--output", tmp_path / "out")
    assert process.stdin is not None
    process.stdin.write(b"a b\n\nc d\n")
    process.stdin.flush()
    done = b"b a\n\nd c\n"
    partial = tmp_path / "not there yet"
    while process.poll() is None and not (partial.exists() and partial.read_bytes() == done):
        time.sleep(0.01)
        partial = next(tmp_path.glob("out.*.partial"), partial)
    process.send_signal(sent)
    assert process.wait(WAIT) == status
    assert process.stderr is not None
    (message,) = process.stderr.read().decode().splitlines()
    assert str(partial) in message
    assert partial.read_bytes() == done
    assert not (tmp_path / "out").exists()


def test_a_reader_that_has_seen_enough(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    (tmp_path / "in").write_text("a b\n" * 50_000)
    process = start(tmp_path / "in", "--chunk-lines", 100)
    assert process.stdout is not None
    assert process.stdout.readline() == b"b a\n"
    process.stdout.close()
    assert process.wait(WAIT) == 141
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_standard_output_is_a_file_without_a_name(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    with tempfile.TemporaryFile() as output:
        process = start("--chunk-lines", 1, stdout=output)
        _, err = process.communicate(b"a b\nc d\n", timeout=WAIT)
        output.seek(0)
        assert (process.returncode, err, output.read()) == (0, b"", b"b a\nd c\n")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
@pytest.mark.parametrize("env", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
@pytest.mark.parametrize("to_file", [False, True])
def test_a_full_disk(
    start: Callable[..., subprocess.Popen[bytes]], to_file: bool, env: dict[str, str]
) -> None:
    with open("/dev/full", "wb") as full:
        flags, stdout = (["--output", "/dev/full"], subprocess.PIPE) if to_file else ([], full)
        process = start(*flags, stdout=stdout, env=env)
        _, err = process.communicate(b"a b\n", timeout=WAIT)
    name = b"/dev/full" if to_file else b"standard output"
    assert process.returncode == 1
    assert err == (
        b"translate-trt: error: cannot write " + name + b": No space left on device. "
        b"Free some space or choose a path on another disk.\n"
    )


@pytest.mark.parametrize("env", [BUFFERED, UNBUFFERED], ids=["buffered", "unbuffered"])
def test_a_write_cut_short(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, env: dict[str, str]
) -> None:
    def at_most_6_bytes() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (6, 6))

    with (tmp_path / "out").open("wb") as out:
        process = start(stdout=out, env=env, preexec_fn=at_most_6_bytes)
        _, err = process.communicate(b"a b\nc d\n", timeout=WAIT)
    assert process.returncode == 1
    assert err.startswith(b"translate-trt: error: cannot write standard output: File too large")
    assert (tmp_path / "out").read_bytes() == b"b a\nd "


def test_standard_output_that_is_closed(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start(stdout=None, preexec_fn=lambda: os.close(1))
    _, err = process.communicate(b"a\n", timeout=WAIT)
    assert process.returncode == 1
    assert b"error: standard output is closed; name a file with --output." in err


def test_messages_that_nobody_can_read(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Descriptor 2, closed by 2>&-, is not reused for the output."""
    process = start("--output", tmp_path / "out", preexec_fn=lambda: os.close(2))
    out, _ = process.communicate(b"a b\n", timeout=WAIT)
    assert (process.returncode, out) == (0, b"")
    assert (tmp_path / "out").read_text() == "b a\n"


def test_standard_input_that_is_closed(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start(stdin=None, preexec_fn=lambda: os.close(0))
    _, err = process.communicate(timeout=WAIT)
    assert process.returncode == 1
    assert err == b"translate-trt: error: standard input is closed; name an input file.\n"


def test_output_is_utf8_whatever_the_locale(start: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = start(env={**BUFFERED, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    out, _ = process.communicate("ü 😀\n".encode(), timeout=WAIT)
    assert out.decode() == "😀 ü\n"


def test_progress_only_on_a_terminal(
    start: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
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


def test_score_of_an_empty_line_is_finite(run: Callable[..., Result]) -> None:
    assert math.isfinite(float(run("--scores", stdin=b"\n").stdout.split("\t")[0]))
