"""Runs over corpora without a cluster: their state on disk, lost shards, and Ray's driver."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.corpus import OPTIONS, SEARCH, Upper, translate, write, write_parquet

from translate_trt.runtime.errors import BackendError, OptionError, OutputError
from translate_trt.runtime.serve.corpus import cluster, driver, run
from translate_trt.runtime.serve.corpus.job import Job, open_job
from translate_trt.runtime.serve.corpus.join import join_parts
from translate_trt.runtime.serve.corpus.plan import Input, Shard, plan
from translate_trt.runtime.serve.corpus.run_options import WorkerOptions
from translate_trt.runtime.serve.corpus.shard import translate_shard

pytestmark = pytest.mark.slow


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path / "out", {"corpus": {"shard_lines": 3}})


@pytest.mark.parametrize("what", ["part", "size", "record", "settings", "input"])
def test_what_does_not_count_as_finished(tmp_path: Path, job: Job, what: str) -> None:
    source = write(tmp_path / "a", b"a\nb\n")
    (shard,) = plan(source, OPTIONS)
    translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
    assert job.finished(shard) is not None
    if what == "part":
        job.part(shard).unlink()
    elif what == "size":
        job.part(shard).write_text("A\n")
    elif what == "record":
        job.record(shard).write_text('{"records": 2}')
    elif what == "settings":
        job = Job(job.output, {"corpus": {"shard_lines": 4}})
    else:
        (shard,) = plan(write(tmp_path / "a", b"a\nb\nc"), OPTIONS)
    assert job.finished(shard) is None
    translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
    assert job.finished(shard) is not None


def test_a_part_that_the_disk_has_changed(tmp_path: Path, job: Job) -> None:
    for source in (
        write(tmp_path / "a", b"a\nb\n"),
        write_parquet(tmp_path / "b.parquet", {"text": ["a"]}),
    ):
        (shard,) = plan(source, OPTIONS)
        record = translate_shard(shard, job, Upper(), SEARCH, OPTIONS)
        content = bytearray(job.part(shard).read_bytes())
        content[0] ^= 1
        job.part(shard).write_bytes(content)
        with pytest.raises(OutputError, match="changed since"):
            join_parts(job, source, [shard], [record])
        assert not job.result(source).exists()
        assert job.finished(shard) is None


# ---- what is kept on disk ----


def test_other_settings_are_refused(
    tmp_path: Path, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"search": {"beam_size": 4}, "bundle": {"files": {"step": "0"}, "target": "t"}}
    job = Job(tmp_path / "out", settings)
    source = write(tmp_path / "a", b"a\n")
    with open_job(job, [source], force=False):
        translate(job, source)
    other = {"search": {"beam_size": 5}, "bundle": {"files": {"step": "1"}, "target": "t"}}
    with (
        pytest.raises(OutputError, match="beam_size 4"),
        open_job(Job(job.output, other), [source], force=False),
    ):
        pass
    assert job.complete(source) is not None
    with open_job(Job(job.output, other), [source], force=True):
        assert Job(job.output, other).complete(source) is None
        assert (job.output / "a").read_text() == "A\n"  # until there is a new one
        (job.output / "notes").write_text("mine")
    assert not (job.output / "a").exists()  # it is of no input of the run that is complete
    assert (job.output / "notes").read_text() == "mine"
    assert "translated again" in caplog.text


def test_one_run_at_a_time(tmp_path: Path, job: Job) -> None:
    refused = pytest.raises(OutputError, match="is writing to")
    with open_job(job, [], force=False), refused, open_job(job, [], force=True):
        pass
    with open_job(job, [], force=False):
        pass


def test_files_of_others_stay(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "a", b"a\n")
    job.output.mkdir()
    (job.output / "a").write_text("mine")
    with pytest.raises(OutputError, match="written"), open_job(job, [source], False):
        pass
    with pytest.raises(OutputError, match="would replace"):
        open_job(Job(tmp_path, {}), [source], True).__enter__()
    with pytest.raises(OutputError, match="written"), open_job(job, [source], force=True):
        pass
    assert (job.output / "a").read_text() == "mine"
    (job.output / "a").unlink()
    with open_job(job, [source], force=False):
        translate(job, source)
    (job.output / "a").write_text("A, and what I think of it\n")
    with pytest.raises(OutputError, match="has been changed"), open_job(job, [source], False):
        pass
    with open_job(job, [source], force=True):
        translate(job, source)
    assert (job.output / "a").read_text() == "A\n"


def test_a_run_that_is_killed_loses_no_output(tmp_path: Path, job: Job) -> None:
    """With other settings: the old output stays until it is replaced by the new one."""
    source, other = write(tmp_path / "a", b"a\n"), write(tmp_path / "b", b"b\n")
    with open_job(job, [source, other], force=False):
        translate(job, source)
        translate(job, other)
    anew = Job(job.output, {"search": {"beam_size": 5}})

    def killed() -> None:
        with open_job(anew, [source, other], force=True):
            translate(anew, source)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        killed()
    assert anew.complete(source) is not None
    assert anew.complete(other) is None
    assert (job.output / "b").read_text() == "B\n"


def test_what_an_ended_run_left_goes(tmp_path: Path, job: Job) -> None:
    source = write(tmp_path / "a", b"a\n")
    job.output.mkdir()
    for name in (".a.0123abcd.partial", ".b.0123abcd.partial"):
        (job.output / name).write_text("A")
    with open_job(job, [source], force=False):
        assert [path.name for path in job.output.glob(".*.partial")] == [".b.0123abcd.partial"]


def test_a_changed_input_is_told(
    tmp_path: Path, job: Job, caplog: pytest.LogCaptureFixture
) -> None:
    source = write(tmp_path / "a", b"a\n")
    with open_job(job, [source], force=False):
        translate(job, source)
    source = write(tmp_path / "a", b"b\nc\n")
    with open_job(job, [source], force=False):
        assert job.complete(source) is None
    assert str(tmp_path / "a") in caplog.text


def test_a_machine_that_sees_another_disk(job: Job) -> None:
    with open_job(job, [], force=False):
        job.check_visible()
    (job.home / "job.json").unlink()
    with pytest.raises(OutputError, match="directory"):
        job.check_visible()


def test_attempts_are_of_a_run(tmp_path: Path, job: Job) -> None:
    (shard,) = plan(write(tmp_path / "a", b"a\n"), OPTIONS)
    assert job.attempts(shard, "one") == 0
    assert [job.begin(shard, "one"), job.begin(shard, "one"), job.begin(shard, "two")] == [1, 2, 1]
    assert (job.attempts(shard, "one"), job.attempts(shard, "two")) == (0, 1)


# ---- a run, with shards translated here ----


@pytest.fixture
def work(job: Job) -> cluster.Work:
    return cluster.Work("bundle", "t", SEARCH, OPTIONS, WorkerOptions(attempts=2), job, "run")


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, work: cluster.Work) -> SimpleNamespace:
    """Run rounds in this process; `lost` has the number of lost workers per shard."""
    state = SimpleNamespace(translator=Upper(), lost={}, rounds=[], after=None)
    worker = cluster.ShardWorker.__new__(cluster.ShardWorker)
    worker._work, worker._translator = work, state.translator

    def one_round(shards: list[str], work: cluster.Work, workers: int) -> Any:
        state.rounds.append(len(shards))
        for text in shards:
            index = json.loads(text)["index"]
            if state.lost.get(index, 0):
                state.lost[index] -= 1
                work.job.begin(Shard.from_json(text), work.run)
                continue
            rows = worker({"shard": [text]})
            yield {name: values[0] for name, values in rows.items()}
            if state.after is not None:
                state.after()

    monkeypatch.setattr(cluster, "_round", one_round)
    monkeypatch.setattr(cluster, "_connected", lambda *_: contextlib.nullcontext(1))
    monkeypatch.setattr(run, "translate_shards", cluster.translate_shards)
    return state


def lines_of(count: int) -> bytes:
    return b"".join(b"line %02d\n" % number for number in range(count))


def run_here(work: cluster.Work, *sources: Input) -> tuple[dict[str, Any], list[Any]]:
    told: list[Any] = []
    found = run.translate_inputs(sources, work, lambda *counts: told.append(counts), told.append)
    return found, told


def test_a_run(tmp_path: Path, work: cluster.Work, here: SimpleNamespace) -> None:
    a, b = write(tmp_path / "a", lines_of(9)), write(tmp_path / "b", b"x\n")
    found, told = run_here(work, a, b)
    assert list(found) == ["a", "b"]
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()
    assert told[0] == (4, 0)
    assert len(told) == 5
    assert run_here(work, a, b) == (found, [(0, 0)])
    assert len(here.translator.lines) == 10


def test_a_run_goes_on_where_it_was_stopped(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source, finished = write(tmp_path / "a", lines_of(9)), []

    def stop() -> None:
        finished.append(1)
        if len(finished) == 2:
            raise KeyboardInterrupt

    here.after = stop
    with pytest.raises(KeyboardInterrupt):
        run_here(work, source)
    assert not (work.job.output / "a").exists()
    here.after = None
    assert run_here(work, source)[1][0] == (3, 2)
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()
    assert len(here.translator.lines) == 9


def test_a_lost_shard_is_handed_out_again(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    here.lost = {1: 1}
    _, told = run_here(work, write(tmp_path / "a", lines_of(9)))
    assert (here.rounds, len(told)) == ([3, 1], 4)
    assert "attempt" in caplog.text
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()


def test_a_shard_that_fails_always_is_given_up(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source = write(tmp_path / "a", lines_of(3) + b"crash\n" + lines_of(5))
    message = "1 of 3 shards failed 2 times: a, shard 1: out of memory. 2 of 3 shards are finished"
    with pytest.raises(BackendError, match=message):
        run_here(work, source)
    assert here.rounds == [3, 1]
    assert [work.job.finished(shard) is not None for shard in plan(source, OPTIONS)] == [
        True, False, True,
    ]  # fmt: skip
    assert not (work.job.output / "a").exists()


def test_a_shard_that_ray_repeats_is_refused_in_the_end(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace
) -> None:
    source = write(tmp_path / "a", b"a\n")
    (shard,) = plan(source, OPTIONS)
    for _ in range(2):
        work.job.begin(shard, work.run)  # and its worker dies
    with pytest.raises(BackendError, match="worker was lost"):
        run_here(work, source)
    assert here.translator.lines == []


def test_a_cluster_that_does_nothing(
    tmp_path: Path, work: cluster.Work, here: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> Any:
        raise OSError("ray.exceptions.ActorDiedError\n  OutputError: host does not see out.")
        yield

    monkeypatch.setattr(cluster, "_round", fail)
    with pytest.raises(BackendError, match=r"host does not see out\. 0 of 1 shards"):
        run_here(work, write(tmp_path / "a", b"a\n"))


def test_addresses_of_another_form_and_where_nothing_is(work: cluster.Work) -> None:
    for address in ("ray://head:10001", "head", "head:", ":1", "http://h:1"):
        with pytest.raises(OptionError):
            cluster.translate_shards([], work, lambda *_: None, address)
    with pytest.raises(BackendError):
        cluster.translate_shards([], work, lambda *_: None, "127.0.0.1:1")


@pytest.mark.parametrize(
    ("resources", "wanted", "cores", "expected"),
    [({"CPU": 8.0}, None, 1, 8), ({"CPU": 8.0}, None, 3, 2), ({"CPU": 8.0}, 3, 1, 3),
     ({"CPU": 1.0}, 3, 1, 3)],
)  # fmt: skip
def test_number_of_workers(
    job: Job, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    resources: dict[str, float], wanted: int | None, cores: int, expected: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(cluster.Work, "needs_gpu", False)
    workers = WorkerOptions(workers=wanted, cores=cores)
    work = cluster.Work("bundle", "t", SEARCH, OPTIONS, workers, job)
    assert cluster._worker_count(work, resources) == expected
    assert ("resources" in caplog.text) == (resources["CPU"] == 1)
    monkeypatch.setattr(cluster.Work, "needs_gpu", True)
    with pytest.raises(OptionError, match="GPU"):
        cluster._worker_count(work, resources)
    assert cluster._worker_count(work, {**resources, "GPU": 1.0}) == (wanted or 1)


# ---- the driver's process ----


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Replace the code of Ray's driver; it may use `answer` and `request`."""

    def play(code: str) -> None:
        program = (
            "import json, os, signal, sys, time\n"
            "from translate_trt.runtime.serve.corpus import driver\n"
            "requests, answers = driver._take_streams()\n"
            "request = json.loads(requests.readline())\n"
            "def answer(**message):\n"
            "    answers.write(json.dumps(message).encode() + b'\\n')\n"
            "    answers.flush()\n"
        )
        monkeypatch.setattr(driver, "_PROGRAM", f"exec({program + code!r})")

    return play


def fail(work: cluster.Work, source: Input) -> str:
    """Return the error message of a failing run."""
    with pytest.raises(BackendError) as caught:
        run_here(work, source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("os._exit(1)", "status 1)"),
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("answers.write(b'{\"fin'); answers.flush(); os._exit(3)", "(exit status 3)"),
    ],
    ids=["without a word", "killed", "in mid-sentence"],
)
def test_a_driver_that_ends(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None], code: str, message: str
) -> None:
    play(f"print('noise', flush=True); os.system('echo of a child')\n{code}")
    found = fail(work, write(tmp_path / "a", lines_of(9)))
    path = work.job.home / "ray.log"
    assert message in found
    assert f" Ray's own messages are in {path}. 0 of 3 shards are finished" in found
    assert path.read_text().startswith("noise\nof a child\n")


def test_what_workers_finished_unheard_counts(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None]
) -> None:
    source = write(tmp_path / "a", lines_of(9))

    def finish(*numbers: int) -> None:
        for number in numbers:
            shard = plan(source, OPTIONS)[number]
            translate_shard(shard, work.job, Upper(), SEARCH, OPTIONS)

    class Dies:
        """Process that exits at the start of a run, as do its workers later."""

        def __init__(self, *numbers: int) -> None:
            self.numbers = numbers

        def __call__(self, stream: Any) -> Any:
            finish(*self.numbers)
            return iter(())

    with pytest.MonkeyPatch.context() as patch:
        play("os._exit(1)")
        patch.setattr(driver, "_messages", Dies(0, 2))
        assert "2 of 3 shards are finished" in fail(work, source)
        patch.setattr(driver, "_messages", Dies(1))
        assert run_here(work, source)[1][0] == (3, 2)  # all are there, so that nothing failed
    assert (work.job.output / "a").read_bytes() == lines_of(9).upper()


def test_what_a_driver_started_ends_with_it(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None]
) -> None:
    """Simulate a driver whose child keeps the other end of the pipe open."""
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    play(f"os.system('sleep 1000 > {tmp_path / 'pipe'} &'); os._exit(1)")
    fail(work, write(tmp_path / "a", lines_of(9)))
    os.set_blocking(reader, True)
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_stopped_run_ends_its_driver(
    tmp_path: Path, work: cluster.Work, play: Callable[[str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Stop the driver, and kill it if it does not exit."""
    started: list[Any] = []
    end = driver._end
    monkeypatch.setattr(driver, "_end", lambda process: (started.append(process), end(process)))
    monkeypatch.setattr(driver, "_SECONDS_TO_END", 0.2)

    def interrupt(stream: Any) -> Any:
        assert json.loads(stream.readline())
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "_messages", interrupt)
    for code in ("requests.read()", "time.sleep(1000)"):
        play(f"answer(level=10, text='ready'); {code}")
        with pytest.raises(KeyboardInterrupt):
            run_here(work, write(tmp_path / "a", lines_of(9)))
        assert started.pop().returncode is not None


def test_a_log_that_cannot_be_written(tmp_path: Path, work: cluster.Work) -> None:
    work.job.output.mkdir()
    (work.job.output / "_corpus").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        driver.translate_shards([], work, lambda *_: None)


@pytest.mark.parametrize(
    ("address", "error", "attempts"),
    [
        ("local", "the current node timed out during startup", 3),
        ("local", "no space left on device", 1),
        ("127.0.0.1:6379", "timed out", 1),
    ],
)
def test_ray_is_started_again_if_this_machine_was_too_slow(
    address: str, error: str, attempts: int
) -> None:
    calls: list[str] = []

    def init(**settings: Any) -> None:
        calls.append(settings["address"])
        raise RuntimeError(error)

    ray = SimpleNamespace(init=init, shutdown=lambda: None)
    with pytest.raises(RuntimeError, match=error):
        cluster._start(ray, {"address": address})
    assert calls == [address] * attempts
    ray.init = lambda **settings: calls.append("started")
    cluster._start(ray, {"address": address})
    assert calls[-1] == "started"
