from __future__ import annotations

import importlib.util
import json
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result

from translate_trt.runtime.cli import main
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.serve.corpus.job import ShardRecord

Run = Callable[..., Result]

pytest.importorskip("pyarrow", reason="pyarrow, of the extra `corpus`, is not installed")
pytest.importorskip("ray", reason="ray, of the extra `corpus`, is not installed")


@pytest.fixture
def corpus(make_bundle: Callable[..., Path], tmp_path: Path) -> Run:
    bundle = make_bundle()

    def run(*arguments: object) -> Result:
        output = [] if "--output" in arguments else ["--output", tmp_path / "out"]
        given = ["corpus", "--bundle", bundle, *output, *arguments]
        return CliRunner().invoke(main, list(map(str, given)))

    return run


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch, fake_translator: Any) -> list[Any]:
    """Translate shards in this process with a translator that reverses words.

    The list is filled with what the cluster was asked.
    """
    from translate_trt.runtime.serve.corpus import run
    from translate_trt.runtime.serve.corpus.shard import translate_shard

    asked: list[Any] = []

    def translate(shards: Any, work: Any, on_finished: Any, address: Any) -> None:
        asked.append((work, address))
        translator = fake_translator(work.bundle, work.target)
        translator.request = lambda lines, options, terminology, **_: LineRequest(
            lines, options, terminology=terminology
        )
        translator.translate_request = lambda request: translator.translate(
            request.lines, request.options, terminology=request.terminology
        )
        for shard in shards:
            on_finished(
                shard, translate_shard(shard, work.job, translator, work.search, work.options)
            )

    monkeypatch.setattr(run, "translate_shards", translate)
    return asked


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "a.txt").write_bytes(b"a b\n\xff\n\nc d e\n" * 5)
    (tmp_path / "b.txt").write_bytes(b"f g\n")
    return tmp_path


def test_files_and_a_table_of_them(corpus: Run, shards: list[Any], text: Path) -> None:
    result = corpus(text / "*.txt", "--shard-lines", 3)
    assert result.exit_code == 0, result.output
    assert (text / "out/a.txt").read_text() == "b a\n\n\ne d c\n" * 5
    assert (text / "out/b.txt").read_text() == "g f\n"
    lines = result.stdout.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["output", "lines", "bad", "target", "tokens"],
        ["a.txt", "20", "5", "35"],
        ["b.txt", "1", "0", "3"],
        ["all", "21", "5", "38"],
    ]
    assert lines[4].startswith("21 lines translated in ")
    assert str(text / "out/a.txt.bad.jsonl") in result.stderr
    # As a shell expands it.
    again = corpus(text / "a.txt", text / "b.txt", "--shard-lines", 3)
    assert again.stdout.splitlines() == [*lines[:4], "all shards were already finished"]
    assert len(shards) == 1


def test_json_lines_are_those_of_translate(corpus: Run, shards: list[Any], text: Path) -> None:
    (text / "c.txt").write_bytes(b"a b\n\nc d e\n")
    given = ["translate", "--bundle", text / "bundle", "--n-best", 2, text / "c.txt"]
    expected = CliRunner().invoke(main, list(map(str, given))).stdout
    run = corpus(text / "c.txt", "--n-best", 2, "--shard-lines", 2)
    assert run.exit_code == 0, run.output
    assert (text / "out/c.txt").read_text() == expected
    # Tokens of the best hypotheses: 3 of "a b", 4 of "c d e", with their end symbols.
    assert run.stdout.splitlines()[1].split() == ["c.txt", "3", "0", "7"]
    # The flag is implied, so it makes no other run.
    again = corpus(text / "c.txt", "--n-best", 2, "--shard-lines", 2, "--json")
    assert again.stdout.endswith("all shards were already finished\n")
    one = corpus(text / "b.txt", "--json", "--output", text / "one")
    assert one.exit_code == 0, one.output
    (line,) = (text / "one/b.txt").read_text().splitlines()
    assert [found["text"] for found in json.loads(line)["hypotheses"]] == ["g f"]


def test_what_is_asked_of_the_cluster(corpus: Run, shards: list[Any], text: Path) -> None:
    flags = ["--target", "onnx-int8", "--workers", 3, "--cores", 2, "--attempts", 5]
    flags += ["--batch-tokens", 99, "--device", "cpu", "--address", "head:6379", "--beam-size", 2]
    flags += ["--max-characters", 7, "--trust-code", "--column", "de"]
    assert corpus(text / "b.txt", *flags).exit_code == 0
    ((work, address),) = shards
    assert (address, work.target, work.search.beam_size) == ("head:6379", "onnx-int8", 2)
    assert (work.workers.workers, work.workers.cores, work.workers.attempts) == (3, 2, 5)
    assert (work.workers.batch_tokens, work.workers.device) == (99, "cpu")
    assert (work.workers.trust_code, work.needs_gpu) == (True, False)
    assert (work.options.max_characters, work.options.column) == (7, "de")


def test_the_time_left() -> None:
    from translate_trt.runtime.cli.shard_progress import ShardProgress

    now = 100.0
    progress = ShardProgress(hidden=True, clock=lambda: now)
    assert progress.state() == "no shard was planned yet"
    progress.planned(50, 10)
    now += 20.0
    assert progress.line() == "10 of 50 shards are finished, none in the 20 s so far"
    for _ in range(4):
        progress.finished(cast(ShardRecord, SimpleNamespace(records=1000, target_tokens=15_000)))
    now += 20.0
    assert progress.line() == (
        "14 of 50 shards are finished, 100.0 lines/s, 1,500 target tokens/s, 0:06:00 left"
    )
    progress.close()


def test_sigterm_tells_how_far_the_run_is(
    corpus: Run, shards: list[Any], text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from translate_trt.runtime.serve.corpus import run

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(run, "translate_shards", lambda *_: signal.raise_signal(signal.SIGTERM))
    result = corpus(text / "b.txt")
    assert result.exit_code == 143
    assert "0 of 1 shards" in result.stderr
    assert signal.getsignal(signal.SIGTERM) is before


def test_evidence_of_parity_is_no_other_setting(corpus: Run, shards: list[Any], text: Path) -> None:
    assert corpus(text / "b.txt").exit_code == 0
    path = text / "bundle/manifest.json"
    value = json.loads(path.read_text())
    value["targets"]["onnx-fp32"]["parity"] = {"largest_difference": 1.0}
    path.write_text(json.dumps(value))
    assert corpus(text / "b.txt").stdout.endswith("all shards were already finished\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere.txt"], 1, "nowhere.txt"),
        ([], 2, "name inputs"),
        (["{text}/b.txt", "--target", "tensorrt"], 1, "onnx-fp32"),
        (["{text}/b.txt", "--workers", "0"], 2, "--workers is 0"),
        (["{text}/b.txt", "--shard-lines", "0"], 2, "--shard-lines is 0"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_made(
    corpus: Run, text: Path, arguments: list[str], code: int, message: str
) -> None:
    result = corpus(*(argument.format(text=text) for argument in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert not (text / "out").exists()


def test_the_extra_is_named(corpus: Run, text: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *rest: None if name == "ray" else real(name, *rest)
    )
    result = corpus(text / "b.txt")
    assert result.exit_code == 1
    assert "'translate-trt[corpus]'" in result.stderr
