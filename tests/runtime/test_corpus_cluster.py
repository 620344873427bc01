"""Corpora on a real Ray cluster of several node processes, any of which may be killed."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from support.paths import ROOT
from support.ray_cluster import RayCluster

from translate_trt.runtime import Translator
from translate_trt.runtime.json_lines import read_json_lines

pytest.importorskip("ray", reason="ray, of the extra `corpus`, is not installed")
pytest.importorskip("torch", reason="the export packages are needed")

pytestmark = pytest.mark.nightly
WAIT = 300
WORDS = ["the", "cat", "dog", "house", "tree", "runs", "sleeps", "green", "big", "river", "walks"]
BAD = b"not \xff UTF-8"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster(nodes=2)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def bundle(compiled_bundle: Path) -> Path:
    return compiled_bundle


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of distinct lines, one of them bad."""
    directory, rng = tmp_path_factory.mktemp("text"), random.Random(1)
    for name, count in (("a.txt", 750), ("b.txt", 250)):
        lines = [
            " ".join([f"{name} {number}", *rng.choices(WORDS, k=rng.randint(2, 9))]).encode()
            for number in range(count)
        ]
        lines[200] = BAD
        (directory / name).write_bytes(b"\n".join(lines) + b"\n")
    return directory


@pytest.fixture(scope="module")
def expected(bundle: Path, text: Path) -> dict[str, str]:
    """Translate the files with a Translator, without a cluster."""
    translator = Translator(bundle, threads=1)
    made = {}
    for path in text.iterdir():
        lines = path.read_bytes().splitlines()
        lines[lines.index(BAD)] = b""
        translations = translator.translate([line.decode() for line in lines])
        made[path.name] = "".join(f"{one.text}\n" for one in translations)
    return made


def began(path: Path) -> int | None:
    """Process of a shard's last attempt, from `.started.json`; None once it is joined."""
    with contextlib.suppress(FileNotFoundError):
        return int(json.loads(path.read_bytes())["pid"])
    return None


class Run:
    """`translate-trt corpus`, with a prefix, on the cluster, and what is on its disk."""

    def __init__(
        self, bundle: Path, text: Path, out: Path, *flags: str, prefix: Sequence[str] = ()
    ) -> None:
        self.out, self.parts = out, out / "_corpus/parts"
        program = "from translate_trt.runtime.cli import main; main()"
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", program, "corpus", "--bundle", bundle,
             f"{text}/*.txt", "--output", out, "--shard-lines", "30", *flags],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def records(self) -> dict[Path, tuple[int, bytes]]:
        """Return modification time and content of the records of finished shards."""
        found = {}
        for path in self.parts.glob("*/[0-9]*[0-9].json"):
            with contextlib.suppress(FileNotFoundError):  # joined meanwhile
                found[path] = (path.stat().st_mtime_ns, path.read_bytes())
        return found

    def begun(self) -> dict[Path, int]:
        """Return the process of the last attempt at each unfinished shard."""
        found = {}
        for path in self.parts.glob("*/*.started.json"):
            pid = began(path)
            if pid and not path.with_name(path.name.replace(".started", "")).exists():
                found[path] = pid
        return found

    def wait_for(self, condition: Callable[[], object]) -> None:
        end = time.monotonic() + WAIT
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < end
            time.sleep(0.01)

    def at_work(self) -> list[int]:
        """Return the processes with an unfinished shard."""
        return list(self.begun().values())

    def latest(self) -> int:
        """Return the process of a shard's last attempt."""
        path = max(self.parts.glob("*/*.started.json"), key=lambda path: path.stat().st_mtime_ns)
        return int(json.loads(path.read_bytes())["pid"])

    def end(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=WAIT)
        return self.process.returncode, out, err


@pytest.fixture
def start(cluster: RayCluster, bundle: Path, text: Path) -> Iterator[Callable[..., Run]]:
    runs = []

    def start(out: Path, text: Path = text, *flags: str) -> Run:
        runs.append(Run(bundle, text, out, "--address", cluster.address, *flags))
        return runs[-1]

    yield start
    for one in runs:
        one.process.kill()
        one.process.wait()
        # Not until the end of the pipes, which a process that it started may hold.
        for pipe in (one.process.stdout, one.process.stderr):
            assert pipe is not None
            pipe.close()


def check(out: Path, expected: dict[str, str], tidy: bool = True) -> None:
    """Check that the outputs are complete; `tidy` also checks that all parts are removed."""
    assert {path.name: path.read_text() for path in out.glob("*.txt")} == expected
    for name in expected:
        assert (out / f"{name}.bad.jsonl").read_text() == (
            '{"line": 201, "reason": "not valid UTF-8"}\n'
        )
    assert not tidy or not list((out / "_corpus/parts").glob("*"))


def test_a_worker_and_then_the_run_killed(
    start: Callable[..., Run], tmp_path: Path, expected: dict[str, str]
) -> None:
    first = start(tmp_path / "out")
    first.wait_for(lambda: len(first.records()) >= 3 and first.at_work())
    os.kill(first.at_work()[0], signal.SIGKILL)
    before = len(first.records())
    first.wait_for(lambda: len(first.records()) >= before + 6)
    first.process.kill()
    for worker in first.at_work():  # else they do much of what is left before they notice
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGKILL)
    first.process.wait()
    time.sleep(1)  # all its workers end
    kept = first.records()
    assert not (tmp_path / "out/b.txt").exists()
    second = start(tmp_path / "out")
    second.wait_for(lambda: len(second.records()) > len(kept))
    for path, record in kept.items():
        assert second.records()[path] == record  # not done again
    second.process.send_signal(signal.SIGINT)
    code, out, err = second.end()
    assert (code, out) == (130, "")
    assert "shards are finished; run the same command to continue" in err
    third = start(tmp_path / "out")
    code, out, err = third.end()
    assert code == 0, err
    assert out.splitlines()[3].split()[:3] == ["all", "1,000", "2"]
    check(tmp_path / "out", expected)


def test_ray_itself_killed(
    bundle: Path, text: Path, tmp_path: Path, expected: dict[str, str]
) -> None:
    """Ray terminates its driver from C++; the command reports the progress and what to do."""
    psutil = pytest.importorskip("psutil", reason="psutil, of the extra `bench`, is not installed")
    out, finished = tmp_path / "out", 0

    def more_finished(run: Run, count: int) -> bool:
        return len(run.records()) >= count

    for victim in ("raylet", "gcs_server"):
        run = Run(bundle, text, out, "--workers", "1")
        try:
            run.wait_for(partial(more_finished, run, finished + 2))
            worker = run.latest()
            os.kill(worker, signal.SIGSTOP)  # so that work is left, however long Ray takes
            children = psutil.Process(run.process.pid).children(recursive=True)
            (pid,) = [child.pid for child in children if child.name() == victim]
            os.kill(pid, signal.SIGKILL)
            code, stdout, err = run.end()
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
            assert (code, stdout) == (1, "")
            # Not a line of Ray's own. Ray may end its driver at once, or fail its shards first.
            lines = err.splitlines()
            assert all(line.startswith("translate-trt: ") for line in lines), err
            found = re.fullmatch(
                rf"translate-trt: error: .+ Ray's own messages are in {re.escape(str(out))}"
                r"/_corpus/ray\.log\. (\d+) of \d+ shards are finished; run the same command again "
                r"to continue\.",
                lines[-1],
            )
            assert found is not None, err
            finished = int(found[1])
            assert finished == len(run.records())
            assert (out / "_corpus/ray.log").stat().st_size
            _, alive = psutil.wait_procs(children, WAIT)
            assert not alive
        finally:
            run.process.kill()
    last = Run(bundle, text, out, "--workers", "2")
    code, _, err = last.end()
    assert code == 0, err
    check(out, expected, tidy=False)


def test_a_machine_killed(
    start: Callable[..., Run], cluster: RayCluster, tmp_path: Path, expected: dict[str, str]
) -> None:
    run = start(tmp_path / "out")
    run.wait_for(lambda: len(run.records()) >= 3 and len(run.at_work()) == 2)
    cluster.ask("kill")
    code, out, err = run.end()
    cluster.ask("add")
    assert code == 0, err
    assert out.splitlines()[3].split()[:3] == ["all", "1,000", "2"]
    # A worker of that machine may live a moment longer, and write its part once more.
    check(tmp_path / "out", expected, tidy=False)


def test_a_cluster_of_this_machine_listens_to_no_other(
    bundle: Path, text: Path, tmp_path: Path
) -> None:
    psutil = pytest.importorskip("psutil", reason="psutil, of the extra `bench`, is not installed")
    run = Run(bundle, text, tmp_path / "out", "--workers", "1")
    try:
        run.wait_for(run.records)
        driver = psutil.Process(run.process.pid)
        found = set()
        for process in (driver, *driver.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found |= {
                    connection.laddr.ip
                    for connection in process.net_connections("inet")
                    if connection.status == psutil.CONN_LISTEN
                }
        assert found
        assert found <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        children = driver.children(recursive=True)
        run.process.send_signal(signal.SIGTERM)
        run.end()
        _, alive = psutil.wait_procs(children, 30)
        assert not alive
    finally:
        run.process.kill()


def test_the_commands_of_the_docs(cluster: RayCluster, bundle: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    (tmp_path / "bundle").symlink_to(bundle)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/a.txt").write_text("the cat runs\n\nthe dog walks\n")
    (tmp_path / "tables").mkdir()
    table = pyarrow.table({"en": ["the cat runs", None], "id": [1, 2]})
    importlib.import_module("pyarrow.parquet").write_table(table, tmp_path / "tables/t.parquet")
    page = (ROOT / "docs/scale.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for block in blocks:
        if block.startswith("pip install"):
            continue  # what constraints.txt says was installed
        command = block.replace("HEAD:6379", cluster.address)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", command], cwd=tmp_path, capture_output=True,
            text=True, check=False, env={**os.environ, "PATH": path}, timeout=WAIT,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stderr}"
    translator = Translator(bundle, threads=1)
    cat, _, dog = (one.text for one in translator.translate(["the cat runs", "", "the dog walks"]))
    for out in ("out", "from-cluster"):
        assert (tmp_path / out / "a.txt").read_text() == f"{cat}\n\n{dog}\n"
    made = importlib.import_module("pyarrow.parquet").read_table(tmp_path / "translated/t.parquet")
    assert made.to_pydict() == {
        "en": ["the cat runs", None],
        "id": [1, 2],
        "translation": [cat, None],
    }
    found = list(read_json_lines(tmp_path / "nbest/a.txt"))
    assert [source for source, _ in found] == ["the cat runs", "", "the dog walks"]
    assert [len(hypotheses) for _, hypotheses in found] == [4, 1, 4]
    assert [hypotheses[0].text for _, hypotheses in found] == [cat, "", dog]
    assert len(blocks) == 5
