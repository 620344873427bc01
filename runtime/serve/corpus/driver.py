"""Ray driver in a subprocess, which isolates the command from failures of Ray.

If the raylet or the GCS is lost, Ray terminates its driver from C++ with `_exit`, without any
exception or handler. The command therefore starts the driver as a subprocess, which connects to Ray
(`cluster`), reports each finished shard as a line of JSON, and writes the output of Ray to the
run's `ray.log`. The subprocess also isolates Ray's environment variables, signal handlers and
threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from translate_trt.runtime import errors
from translate_trt.runtime.errors import BackendError, TranslateTrtError
from translate_trt.runtime.io.atomic_files import output_errors
from translate_trt.runtime.serve.corpus import cluster
from translate_trt.runtime.serve.corpus.cluster import OnFinished, Work
from translate_trt.runtime.serve.corpus.job import ShardRecord
from translate_trt.runtime.serve.corpus.plan import Shard

log = logging.getLogger("translate_trt")

_PROGRAM = f"from {__name__} import main; main()"
_SECONDS_TO_END = 10.0  # to disconnect from Ray; a cluster on this machine takes 2 to 3


def translate_shards(
    shards: Sequence[Shard], work: Work, on_finished: OnFinished, address: str | None = None
) -> None:
    """Run `cluster.translate_shards` in a subprocess, which never outlives this call.

    Raises:
        BackendError: See `cluster.translate_shards`; or Ray has terminated its driver. Shards that
            are finished on disk have been passed to `on_finished` nevertheless.
        OptionError: See `cluster.translate_shards`.
        OutputError: The log cannot be written.
    """
    left = {shard.to_json(): shard for shard in shards}
    path = work.job.home / "ray.log"
    error: TranslateTrtError | None = None
    with _driver(path) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        request = {
            "work": work.to_json(),
            "shards": list(left),
            "address": address,
            "level": log.getEffectiveLevel(),
        }
        with contextlib.suppress(BrokenPipeError):  # already terminated; see its exit status
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        for message in _messages(process.stdout):
            if "finished" in message:
                shard = left.pop(message["finished"])
                on_finished(shard, ShardRecord(**message["record"]))
            elif "error" in message:
                error = getattr(errors, message["error"])(message["text"])
            else:
                log.log(message["level"], "%s", message["text"])
            if error is not None or not left:
                break  # do not wait for a driver that cannot disconnect from Ray
        # A driver that is stuck is killed when the block ends.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    status = process.returncode
    for shard in list(left.values()):  # finished after the driver was lost
        if (found := work.job.finished(shard)) is not None:
            del left[shard.to_json()]
            on_finished(shard, found)
    if left and isinstance(error, BackendError | None):
        error = BackendError(f"{error or _cause(status)} Ray's own messages are in {path}.")
    if left and error is not None:
        raise error


def _cause(status: int) -> str:
    """Explain the exit status of a driver that reported no error."""
    if status < 0:
        return (
            f"the driver process of Ray was killed by {signal.Signals(-status).name}, perhaps "
            "because memory ran out."
        )
    return (
        f"Ray terminated the run (exit status {status}), as it does when this machine's raylet or "
        "the cluster's head node is lost."
    )


@contextmanager
def _driver(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Start the subprocess and stop it after the block; it never outlives this process."""
    with contextlib.ExitStack() as stack:
        with output_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = stack.enter_context(path.open("wb"))
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys; sys.path[:] = sys.argv[1:]; {_PROGRAM}",
                *sys.path,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=noise,
            start_new_session=True,  # Ctrl-C on a terminal must not reach the driver
        )
        stack.callback(_end, process)
        yield process


def _end(process: subprocess.Popen[bytes]) -> None:
    """Close the driver's input, which makes it disconnect, and kill it if it does not exit.

    The agents of a cluster on this machine outlive a lost GCS by a minute, so the process group is
    killed, too. Workers have their own process groups and exit with their raylet.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_END)
    finally:
        process.kill()
        process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):  # the group is empty
            os.killpg(process.pid, signal.SIGKILL)
        process.stdout.close()


def _messages(stream: Any) -> Iterator[dict[str, Any]]:
    """Iterate over the driver's messages, ignoring an incomplete last one."""
    for line in stream:
        if line.endswith(b"\n"):
            yield json.loads(line)


# ---- in the subprocess ----


def main() -> None:
    """Read a request from standard input and translate its shards."""
    requests, answers = _take_streams()
    lock = threading.Lock()  # Ray's threads log, too

    def tell(**message: Any) -> None:
        with lock:
            answers.write(json.dumps(message).encode() + b"\n")
            answers.flush()

    def tell_finished(shard: Shard, record: ShardRecord) -> None:
        tell(finished=shard.to_json(), record=dataclasses.asdict(record))

    line = requests.readline()
    if not line.endswith(b"\n"):
        return  # the parent has exited
    threading.Thread(target=_end_with_the_parent, args=(requests,), daemon=True).start()
    request = json.loads(line)
    log.setLevel(request["level"])
    log.addHandler(_Forward(tell))
    log.propagate = False
    try:
        cluster.translate_shards(
            [Shard.from_json(text) for text in request["shards"]],
            Work.from_json(request["work"]),
            tell_finished,
            request["address"],
        )
    except TranslateTrtError as error:
        traceback.print_exc()
        tell(error=type(error).__name__, text=str(error))
        sys.exit(1)


def _take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return both pipes to the parent, and redirect stdin and stdout away from them for Ray."""
    requests = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def _end_with_the_parent(requests: BinaryIO) -> None:
    requests.read()
    os.kill(os.getpid(), signal.SIGTERM)  # Ray disconnects, unless it is stuck
    time.sleep(_SECONDS_TO_END / 2)
    os._exit(1)


class _Forward(logging.Handler):
    """Log handler that sends messages to the parent."""

    def __init__(self, tell: Any) -> None:
        super().__init__()
        self._tell = tell

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the parent has exited
            self._tell(level=record.levelno, text=self.format(record))
