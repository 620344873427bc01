"""Real Triton server on this machine and its clients (a plugin of tests/conftest.py)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from support.paths import ROOT

PLACE = ROOT / ".cache/triton-server"
CLIENT = ROOT / "benchmarks/triton_client.py"
WAIT = 90


def free_ports(count: int) -> list[int]:
    """Return free ports of the loopback interface."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def listens(port: int) -> bool:
    """Return whether a port accepts connections."""
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def is_ready(address: str) -> bool:
    """Return whether all models of a server are ready."""
    try:
        with urllib.request.urlopen(f"{address}/v2/health/ready", timeout=WAIT) as answer:
            return bool(answer.status == 200)
    except OSError:  # which HTTPError is, too
        return False


def wait_until_ready(
    process: subprocess.Popen[bytes], address: str, log: Callable[[], str] = str
) -> None:
    """Wait until a started server is ready."""

    def ready() -> bool:
        assert process.poll() is None, log()
        return is_ready(address)

    wait_until(ready)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; fail after a while."""
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


class TritonServer:
    """`tritonserver` process on fixed ports of the loopback interface."""

    def __init__(self, repository: Path, log: Path) -> None:
        self.repository, self._log = repository, log
        self._http_port, self._grpc_port, self._metrics_port = free_ports(3)
        self.address = {
            "http": f"127.0.0.1:{self._http_port}", "grpc": f"127.0.0.1:{self._grpc_port}",
        }  # fmt: skip
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *more: str) -> None:
        """Start the server with extra arguments and wait until it is ready."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [PLACE / "bin/tritonserver", "--model-repository", self.repository,
                 "--http-address", "127.0.0.1", "--http-port", str(self._http_port),
                 "--grpc-address", "127.0.0.1", "--grpc-port", str(self._grpc_port),
                 "--metrics-address", "127.0.0.1", "--metrics-port", str(self._metrics_port),
                 *more],
                stdout=log, stderr=log,
            )  # fmt: skip
        wait_until_ready(self.process, f"http://{self.address['http']}", self.log)
        # It opens the port of its metrics last.
        wait_until(lambda: listens(self._metrics_port))

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """End the server and return its exit code."""
        assert self.process is not None
        self.process.send_signal(how)
        return self.process.wait(WAIT)

    def model_processes(self) -> list[Path]:
        """Return the /proc directories of the processes that run the model."""
        assert self.process is not None
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                # pid (name) state parent: a name may have spaces and parentheses.
                parent = path.read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid:
                    found.append(path.parent)
        return found

    def metrics(self) -> dict[str, float]:
        """Return the model's metrics by name without `translate_trt_`, requests by outcome."""
        address = f"http://127.0.0.1:{self._metrics_port}/metrics"
        with urllib.request.urlopen(address, timeout=WAIT) as answer:
            text = answer.read().decode()
        found = re.findall(r"^translate_trt_(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE)
        outcome = re.compile(r'outcome="(\w+)"')
        return {
            by[1] if (by := outcome.search(labels)) else name: float(value)
            for name, labels, value in found
            if not name.endswith("_bucket")
        }

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        """Send a GET, or a POST with a body; return status and content."""
        request = urllib.request.Request(f"http://{self.address['http']}/{path}", body)
        try:
            with urllib.request.urlopen(request, timeout=WAIT) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def clients(
        self,
        requests: Sequence[dict[str, Any]],
        protocol: str = "grpc",
        clients: int = 1,
        **more: Any,
    ) -> Clients:
        """Start sending requests."""
        return Clients(
            {"protocol": protocol, "address": self.address[protocol], "model": "translation",
             "clients": clients, "requests": requests, **more}
        )  # fmt: skip

    def ask(self, requests: Sequence[dict[str, Any]], *given: Any, **more: Any) -> list[Any]:
        """Send requests and return their answers in order."""
        return self.clients(requests, *given, **more).answers()


class Clients:
    """Client process that sends a job's requests."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._count = len(job["requests"])
        self._process = subprocess.Popen(
            [PLACE / "bin/python", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode())
        self._process.stdin.close()
        self._found: dict[int, dict[str, Any]] = {}

    def wait_for(self, count: int) -> None:
        """Wait until `count` requests are answered."""
        assert self._process.stdout is not None
        while len(self._found) < count:
            line = json.loads(self._process.stdout.readline())
            self._found[line["request"]] = line

    def answers(self) -> list[dict[str, Any]]:
        self.wait_for(self._count)
        assert self._process.wait(WAIT) == 0
        assert self._process.stdout is not None
        self._process.stdout.close()
        return [self._found[number] for number in range(self._count)]


@pytest.fixture(scope="session")
def triton_server_program() -> Path:
    """Installation of the server, made on first use; skips tests if it cannot be made."""
    done = subprocess.run(
        ["bash", ROOT / "scripts/triton_server.sh"],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(done.stderr.strip().splitlines()[-1])
    assert done.returncode == 0, done.stderr
    return PLACE / "bin/tritonserver"


@pytest.fixture
def start_triton(
    triton_server_program: Path, tmp_path: Path
) -> Iterator[Callable[..., TritonServer]]:
    """Factory of servers that end with the test."""
    servers = []

    def start(repository: Path, *more: str) -> TritonServer:
        servers.append(TritonServer(repository, tmp_path / f"triton-{len(servers)}.log"))
        servers[-1].start(*more)
        return servers[-1]

    yield start
    for one in servers:
        if one.process is not None and one.process.poll() is None:
            one.stop(signal.SIGKILL)
