"""Kill writing commands at each system call that changes a file, and check what remains.

    python -m support.killed_writers NAME DIRECTORY TOKENIZER  # in tests/

A writer is forked for each step, which is a call that creates, renames, syncs or removes something,
and ends itself by SIGKILL there. This process has one thread and does no more than fork and wait,
so that nothing can hang; what a command computes is left out where it takes time.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import json
import math
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

# As in tests/conftest.py: before torch is imported.
os.environ["OMP_NUM_THREADS"] = "1"

# Of each writer: at renames and right after them, where one output takes another's name, and at
# other steps, evenly spread.
MOST_AT_RENAMES, MOST_ELSEWHERE = 10, 8


_RENAMES = {"replace", "rename", "_exchange"}


class Writer(NamedTuple):
    """Command that writes an output.

    Attributes:
        write: makes its output in a directory, of a version: "old" or "new".
        version: says which version's output is there, after it has checked that it is whole.
    """

    write: Callable[[Path, str], None]
    version: Callable[[Path], str]


# ---- killing ----


def _instrument(kill_at: int | None) -> list[str]:
    """Record the steps of this process and end it at one of them; return the recorded names."""
    steps: list[str] = []

    def step(name: str) -> None:
        steps.append(name)
        if len(steps) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(module: Any, name: str) -> None:
        original = getattr(module, name)

        def call(*arguments: Any, **named: Any) -> Any:
            step(name)
            return original(*arguments, **named)

        setattr(module, name, call)

    for name in ("replace", "rename", "unlink", "remove", "rmdir", "mkdir", "fsync", "truncate"):
        before(os, name)
    from translate_trt.runtime.io import atomic_files as files

    before(files, "_exchange")
    open_file = io.open

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        stream = open_file(file, mode, *arguments, **named)
        if set(mode) & set("wxa+"):
            step("open")  # the file is empty now
        return stream

    io.open = builtins.open = opened  # type: ignore[assignment]
    return steps


def _in_child(work: Callable[[], object], kill_at: int | None = None, steps: bool = False) -> Any:
    """Run `work` in a forked process; return its result or step names, or None if killed."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 1
        try:
            os.close(reading)
            names = _instrument(kill_at) if steps or kill_at is not None else []
            result = work()
            os.write(writing, json.dumps(names if steps else result).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        answer = stream.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return None
    if os.waitstatus_to_exitcode(status) != 0:
        raise AssertionError(f"the process ended with status {status}")
    return json.loads(answer)


def _names(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


def _choose(steps: Sequence[str]) -> list[int]:
    """Return the numbers of the steps to kill at, from 1: all near renames, and some others."""
    renames = {i for i, name in enumerate(steps, start=1) if name in _RENAMES}
    near = [number for number in range(1, len(steps) + 1) if {number, number - 1} & renames]
    others = [number for number in range(1, len(steps) + 1) if number not in near]
    return sorted({*_spread(near, MOST_AT_RENAMES), *_spread(others, MOST_ELSEWHERE)})


def _spread(numbers: Sequence[int], most: int) -> Sequence[int]:
    """Return at most `most` evenly spread numbers, including the last."""
    return numbers[:: -max(1, math.ceil(len(numbers) / most))]


def run(writer: Writer, directory: Path) -> dict[str, Any]:
    """Kill the writer at its steps and run it again; return what it left, by version.

    Raises:
        AssertionError: something else than whole old or whole new output.
    """
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a fork could hang"
    old, new, work = directory / "old", directory / "new", directory / "work"
    for path, version in ((old, "old"), (new, "new")):
        path.mkdir()
        _in_child(lambda path=path, version=version: writer.write(path, version))
    shutil.copytree(old, work, symlinks=True)
    steps = _in_child(lambda: writer.write(work, "new"), steps=True)
    assert _names(work) == _names(new)
    chosen = _choose(steps)
    found = {"old": 0, "new": 0}
    for number, at in enumerate(chosen):
        shutil.rmtree(work)
        shutil.copytree(old, work, symlinks=True)
        assert _in_child(lambda: writer.write(work, "new"), kill_at=at) is None
        left = _in_child(lambda: writer.version(work))
        assert left in found, f"killed at step {at}: {left}"
        found[left] += 1
        if number % 3 == 0:
            _in_child(lambda: writer.write(work, "new"))
            again = _in_child(lambda: writer.version(work))
            assert again == "new", f"run again after a kill at step {at}: {again}"
            assert _names(work) == _names(new), f"killed at step {at}: {_names(work)}"
    assert found["old"], "nothing of the old output was ever left"
    return {"steps": len(steps), "killed": len(chosen), **found}


# ---- writers ----


def translate(tokenizer: Path) -> Writer:
    from translate_trt.runtime.cli.output import open_output

    def write(directory: Path, version: str) -> None:
        settings = {"version": version}
        with open_output(directory / "out.txt", force=True, settings=settings) as output:
            for number in range(3):
                output.write([f"{version} {number}"])
                output.note(number + 1, "")

    def version(directory: Path) -> str:
        lines = (directory / "out.txt").read_text().splitlines()
        assert len(lines) == 3
        (one,) = {line.split()[0] for line in lines}
        return one

    return Writer(write, version)


def directory(tokenizer: Path) -> Writer:
    """Writer of a directory of several files, as of bundles, checkpoints and repositories."""
    from translate_trt.runtime.io.atomic_files import new_directory
    from translate_trt.runtime.io.outputs import Kind

    names = ("manifest.json", "one/weights", "other/weights")
    kind = Kind("thing", "translate-trt make", lambda path: list(names))

    def write(directory: Path, version: str) -> None:
        with new_directory(directory / "thing", force=True, kind=kind) as work:
            for name in names:
                (work / name).parent.mkdir(exist_ok=True)
                (work / name).write_text(version)

    def version(directory: Path) -> str:
        (one,) = {(directory / "thing" / name).read_text() for name in names}
        return one

    return Writer(write, version)


def _prepare(directory: Path, tokenizer: Path, version: str) -> None:
    """Writer for `data prepare --force` with a given vocabulary."""
    import logging

    from translate_trt.runtime.io.locks import locked_directory
    from translate_trt.train.data import prepare as module
    from translate_trt.train.data.corpora import PrepareOptions
    from translate_trt.train.data.prepare import Preparation, recover
    from translate_trt.train.data.text_sources import TextSource

    logging.disable(logging.WARNING)
    vocabulary = tokenizer.read_bytes()

    def train_tokenizer(lines: Any, size: int, path: Path, *_: object) -> int:
        list(lines)
        path.write_bytes(vocabulary)
        return size

    module.train_tokenizer = train_tokenizer  # type: ignore[assignment]
    text = [directory.parent / f"{directory.name}.{side}" for side in ("source", "target")]
    for path in text:
        if not path.exists():
            path.write_text(
                "".join(f"{word} dog sleeps\n" for word in ("the", "a", "big", "green"))
            )
    pair = TextSource(text[0]), TextSource(text[1])
    # The old one has a test set, which the new one must not keep.
    test = [pair] if version == "old" else []
    options = PrepareOptions(vocabulary_size=320)
    wanted = Preparation(version, ("en", "en"), [pair], [pair], test, options)
    if directory.is_dir():
        recover(directory)
    with locked_directory(directory):
        module.prepare(wanted, directory, 1, force=True)


def data_prepare(tokenizer: Path) -> Writer:
    from translate_trt.train.data.token_files import open_prepared

    def write(directory: Path, version: str) -> None:
        _prepare(directory / "data", tokenizer, version)

    def version(directory: Path) -> str:
        prepared = open_prepared(directory / "data")
        for name in prepared.splits:
            prepared.check(name)
        assert ("test" in prepared.splits) == (prepared.name == "old")
        prepared.text("valid")
        return prepared.name

    return Writer(write, version)


def train(tokenizer: Path) -> Writer:
    import torch
    import torch._dynamo  # takes seconds, which each child would wait for at its first Adam

    from translate_trt.runtime.io.locks import locked_directory
    from translate_trt.train.checkpoint import (
        AVERAGED,
        numbered_checkpoints,
        open_checkpoint,
    )
    from translate_trt.train.data.token_files import open_prepared
    from translate_trt.train.trainer import metrics
    from translate_trt.train.trainer.distributed import Group
    from translate_trt.train.trainer.loop import Trainer
    from translate_trt.train.trainer.run import prepare_job
    from translate_trt.train.training_state import TrainingState

    metrics._tensorboard = lambda *_: None  # it has threads and files of its own
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 8, "d_ff": 8, "heads": 1}
    recipe = {
        "batch_tokens": 64, "micro_batch_tokens": 64, "checkpoint_every": 1, "validate_every": 0,
        "average_checkpoints": 2, "precision": "fp32",
    }  # fmt: skip
    steps = {"old": 1, "new": 3}

    def write(directory: Path, version: str) -> None:
        data, out = directory / "data", directory / "run"
        torch.set_num_threads(1)
        if not data.exists():
            _prepare(data, tokenizer, "data")
        overrides: dict[str, Any] = {**sizes, **recipe, "steps": steps[version]}
        with locked_directory(out):
            # A killed run of the same settings is what one resumes.
            begun = (out / "run.json").exists() and _steps(out) == steps[version]
            job = prepare_job(
                open_prepared(data),
                out,
                "tiny",
                {} if begun else overrides,
                resume=begun,
                force=not begun,
            )
            Trainer(job, Group(torch.device("cpu")), begun).run()

    def _steps(out: Path) -> int:
        return int(json.loads((out / "run.json").read_text())["train"]["steps"])

    def version(directory: Path) -> str:
        out = directory / "run"
        averaged = [out / AVERAGED] if (out / AVERAGED).exists() else []
        for path in numbered_checkpoints(out):
            TrainingState.load(path / "training")
        found = {
            len(numbered_checkpoints(out)) and open_checkpoint(path).train["steps"]
            for path in (*averaged, *numbered_checkpoints(out))
            if open_checkpoint(path).load_model()
        }
        # The old run is whole, or the new one has begun; what is not moved yet counts as begun.
        if found and found != {steps["new"]}:
            assert found == {steps["old"]}
            begun = (out / ".switch").exists()
            assert begun or (_steps(out) == steps["old"] and averaged)
            return "new" if begun else "old"
        return "new"

    return Writer(write, version)


def corpus(tokenizer: Path) -> Writer:
    from support.corpus import Upper
    from translate_trt.runtime.options import SearchOptions
    from translate_trt.runtime.serve.corpus.job import Job, open_job
    from translate_trt.runtime.serve.corpus.join import join_parts
    from translate_trt.runtime.serve.corpus.plan import find_inputs, plan
    from translate_trt.runtime.serve.corpus.run_options import CorpusOptions
    from translate_trt.runtime.serve.corpus.shard import translate_shard

    options, search = CorpusOptions(shard_lines=2), SearchOptions()
    names = ("a.txt", "b.txt")

    class Marking(Upper):
        def __init__(self, version: str) -> None:
            super().__init__()
            self.version = version

        def spell(self, line: str) -> str:
            return f"{self.version} {line}"

    def write(directory: Path, version: str) -> None:
        given = directory.parent / "given"
        given.mkdir(exist_ok=True)
        for name in names:
            if not (given / name).exists():
                (given / name).write_text("one\ntwo\nthree\n")
        inputs = find_inputs([str(given / name) for name in names], "text")
        job = Job(directory / "out", {"search": {"version": version}})
        with open_job(job, inputs, force=True):
            for source in inputs:
                if job.complete(source) is not None:
                    continue
                shards = plan(source, options)
                records = [
                    translate_shard(shard, job, Marking(version), search, options)
                    for shard in shards
                ]
                records = [dataclasses.replace(one, seconds=0.0, pid=0) for one in records]
                join_parts(job, source, shards, records)

    def version(directory: Path) -> str:
        found = []
        for name in names:
            lines = (directory / "out" / name).read_text().splitlines()
            (one,) = {line.split()[0] for line in lines}
            assert [line.split()[1] for line in lines] == ["one", "two", "three"]
            found.append(one)
        assert found in (["old", "old"], ["new", "old"], ["new", "new"])  # file by file
        return found[-1]

    return Writer(write, version)


WRITERS: dict[str, Callable[[Path], Writer]] = {
    "translate": translate,
    "directory": directory,
    "data prepare": data_prepare,
    "train": train,
    "corpus": corpus,
}

if __name__ == "__main__":
    name, place, vocabulary = sys.argv[1:]
    print(json.dumps(run(WRITERS[name](Path(vocabulary)), Path(place))))
