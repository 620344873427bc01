"""A real server process: draining, reloading, broken bundles."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from support.bad_bundles import edit

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
import httpx

pytestmark = pytest.mark.slow

#: Seconds of work, so that all requests are there before the first is answered.
#: Sentences that differ: equal ones of a request are translated once.
SENTENCES = [f"the cat {''.join(letters)}. " for letters in permutations("acehnrstu", 4)]
QUERY = {
    "q": "".join(SENTENCES[:40]), "source": "en", "target": "de",
    "options": {"min_length": 60, "max_length": 60},
}  # fmt: skip
SHORT = {"q": "the cat", "source": "en", "target": "de"}
#: Much more work than can be done in a second.
LONG = QUERY | {"q": "".join(SENTENCES[:1400]), "options": QUERY["options"] | {"beam_size": 16}}
#: Seconds in which a process does anything, even on a busy machine.
PATIENCE = 120
#: Seconds that a busy machine may stall a client between two calls.
STALL = 5


class Server:
    """A running `translate-trt serve` and the lines of its log."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.url = process.stdout.readline().removeprefix("listening on ").strip()
        self._log: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            # The error that ends a command is text, as for all commands.
            record = json.loads(line) if line.startswith("{") else {"message": line}
            with self._changed:
                self._log.append(record)
                self._changed.notify_all()

    def logged(self, message: str) -> dict[str, Any]:
        """Wait for a record of the log with a message."""
        return self._wait(lambda record: message in record["message"])

    def request(self, number: str) -> dict[str, Any]:
        """Wait for the record of a request."""
        return self._wait(lambda record: record.get("request_id") == number)

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        with self._changed:
            found = self._changed.wait_for(
                lambda: next((one for one in self._log if wanted(one)), None), PATIENCE
            )
        assert found is not None, self._log
        return found

    def end(self) -> int:
        """Wait for the end of the process; return its exit status."""
        status = self.process.wait(PATIENCE)
        self._reader.join()
        return status


@contextmanager
def running(*arguments: str) -> Iterator[Server]:
    command = [
        sys.executable, "-m", "translate_trt", "serve", *arguments, "-v", "--port", "0",
        "--workers", "1", "--threads", "1", "--target", "onnx-fp32",
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


@pytest.fixture
def bundle(compiled_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(compiled_bundle, tmp_path / "model"))


def test_sigterm_answers_what_is_in_flight(bundle: Path) -> None:
    with running(f"en-de={bundle}") as server, ThreadPoolExecutor(20) as threads:
        # So much that a busy machine starts the last client before the first has its answer.
        query = QUERY | {"q": "".join(SENTENCES[:80])}

        def ask(_: int) -> int:
            return httpx.post(f"{server.url}/translate", json=query, timeout=PATIENCE).status_code

        asked = [threads.submit(ask, number) for number in range(20)]
        in_flight = "translate_trt_http_requests_in_flight 21.0"  # with the one for the metrics
        while in_flight not in httpx.get(f"{server.url}/metrics").text:
            assert not all(one.done() for one in asked), [one.result() for one in asked]
        server.process.send_signal(signal.SIGTERM)
        assert [one.result() for one in asked] == [200] * 20
        assert server.end() == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/ready")


def test_a_drain_delay_answers_new_requests_but_is_not_ready(bundle: Path) -> None:
    with running(f"en-de={bundle}", "--drain-delay", "600") as server:
        server.process.send_signal(signal.SIGTERM)
        server.logged("draining")
        ready = httpx.get(f"{server.url}/ready")
        assert (ready.status_code, ready.headers["Connection"]) == (503, "close")
        answer = httpx.post(f"{server.url}/translate", json=SHORT, timeout=PATIENCE)
        assert (answer.status_code, answer.headers["Connection"]) == (200, "close")


def test_no_connection_is_lost_while_clients_open_new_ones(bundle: Path) -> None:
    # A client may stall between its connection and its request.
    arguments = ("--drain-delay", "0.5", "--body-timeout", str(PATIENCE))
    with running(f"en-de={bundle}", *arguments) as server, ThreadPoolExecutor(40) as threads:
        address = httpx.URL(server.url)
        asked = threading.Semaphore(0)

        def ask() -> None:
            while True:
                try:
                    client = socket.create_connection((address.host, address.port or 0), PATIENCE)
                except ConnectionRefusedError:
                    return
                with client:
                    client.sendall(
                        b"GET /languages HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
                    )
                    answer = client.makefile("rb").read()
                assert answer.startswith(b"HTTP/1.1 200 ")
                assert answer.endswith(b"]")
                asked.release()

        asking = [threads.submit(ask) for _ in range(40)]
        for _ in range(200):
            assert asked.acquire(timeout=PATIENCE)
        server.process.send_signal(signal.SIGTERM)
        for one in asking:
            one.result()
        assert server.end() == 0


def test_requests_that_outlast_the_drain_are_cancelled_and_reported(bundle: Path) -> None:
    with (
        running(f"en-de={bundle}", "--drain-timeout", "0.1") as server,
        ThreadPoolExecutor(1) as threads,
    ):

        def ask() -> int:
            url = f"{server.url}/translate"
            try:
                return httpx.post(url, json=LONG, timeout=PATIENCE).status_code
            except httpx.RemoteProtocolError:  # the connection ends without an answer
                return 0

        asked = threads.submit(ask)
        in_flight = "translate_trt_http_requests_in_flight 2.0"  # with the one for the metrics
        while in_flight not in httpx.get(f"{server.url}/metrics").text:
            assert not asked.done(), "it finished before the signal"
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 1
        assert asked.result() != 200
        assert server.logged("1 requests were cancelled")["level"] == "error"
        error = server.logged("error: ")["message"]
        assert "--drain-timeout and cancelled: 1 requests" in error


def client_of(server: Server, forwarded: str) -> tuple[int, str]:
    """Return the status of a request that a proxy forwards, and its client in the log."""
    number = f"id-{uuid.uuid4().hex}"
    headers = {"X-Forwarded-For": forwarded, "X-Request-ID": number}
    answer = httpx.post(f"{server.url}/translate", json=SHORT, headers=headers, timeout=PATIENCE)
    return answer.status_code, server.request(number)["client"]


def test_clients_behind_a_proxy_have_limits_of_their_own(bundle: Path) -> None:
    proxies = ("--trusted-proxies", "127.0.0.1, 10.0.0.0/8", "--requests-per-minute", "1")
    with running(f"en-de={bundle}", *proxies) as server:
        assert client_of(server, "203.0.113.1") == (200, "203.0.113.1")
        assert client_of(server, "203.0.113.1, 10.1.2.3") == (429, "203.0.113.1")
        # What a client writes itself stands before the address that the proxy adds.
        assert client_of(server, "203.0.113.7, 203.0.113.1") == (429, "203.0.113.1")
        assert client_of(server, "203.0.113.2") == (200, "203.0.113.2")
        assert client_of(server, "2001:db8::1") == (200, "2001:db8::1")
        assert client_of(server, "2001:db8::2") == (429, "2001:db8::2")  # the same network


def test_an_address_of_ipv6_without_proxies(bundle: Path) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    arguments = ("--host", "::1", "--requests-per-minute", "1")
    with running(f"en-de={bundle}", *arguments) as server:
        assert server.url.startswith("http://[::1]:")
        assert client_of(server, "203.0.113.1") == (200, "::1")
        assert client_of(server, "203.0.113.2") == (429, "::1")


def test_sighup_reloads_and_a_broken_bundle_keeps_the_old_one(bundle: Path) -> None:
    stop = threading.Event()
    with running(f"en-de={bundle}") as server, ThreadPoolExecutor(4) as threads:

        def ask() -> set[int]:
            found = set()
            with httpx.Client(timeout=PATIENCE) as client:
                while True:
                    found.add(client.post(f"{server.url}/translate", json=SHORT).status_code)
                    if stop.is_set():
                        return found

        asking = [threads.submit(ask) for _ in range(4)]
        try:
            server.process.send_signal(signal.SIGHUP)
            server.logged("reloaded model")
            edit(bundle, lambda manifest: manifest.update(format_version=1))
            server.process.send_signal(signal.SIGHUP)
            error = server.logged("keeps its former version")
        finally:
            stop.set()
        assert [one.result() for one in asking] == [{200}] * 4
        assert error["level"] == "error"
        assert "format version 1" in error["message"]
        metrics = httpx.get(f"{server.url}/metrics").text
        assert 'translate_trt_reloads_total{outcome="success"} 1.0' in metrics
        assert 'translate_trt_reloads_total{outcome="failed"} 1.0' in metrics
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_changed_manifest_is_noticed(bundle: Path) -> None:
    with running(f"en-de={bundle}", "--watch-interval", "0.05") as server:
        edit(bundle, lambda manifest: manifest.update(created_by="another version"))
        server.logged("reloaded model")
        assert httpx.post(f"{server.url}/translate", json=SHORT).status_code == 200


def test_a_bundle_that_cannot_be_loaded_ends_the_server(bundle: Path) -> None:
    edit(bundle, lambda manifest: manifest.update(format_version=1))
    with running(f"en-de={bundle}") as server:
        assert server.url == ""
        assert server.end() == 1
        assert "error: " in server.logged("format version 1")["message"]


def test_clients_that_close_their_side_or_leave(bundle: Path) -> None:
    """A client that closes its side after its request gets its answer; one that leaves does not."""
    with running(f"en-de={bundle}", "--body-timeout", str(STALL)) as server:
        address = httpx.URL(server.url)
        head = b"Host: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        with socket.create_connection((address.host, address.port or 0), PATIENCE) as client:
            client.sendall(b"POST /translate HTTP/1.1\r\n" + head % 100 + b"{")
            assert b" 408 " in client.recv(1000)
        for query, version in ((SHORT, "1.0"), (SHORT, "1.1"), (LONG, "1.1")):
            with socket.create_connection((address.host, address.port or 0), PATIENCE) as client:
                body = json.dumps(query).encode()
                named = f"POST /translate HTTP/{version}\r\nX-Request-ID: {version}-{len(body)}\r\n"
                client.sendall(named.encode() + head % len(body) + body)
                if query is SHORT:
                    client.shutdown(socket.SHUT_WR)
                    answers = b"".join(iter(lambda: client.recv(1000), b""))
                    assert b"HTTP/1.1 200 " in answers
                    assert answers.endswith(b"}")
        assert server.request(f"1.1-{len(body)}")["outcome"] == "cancelled"
        assert httpx.get(f"{server.url}/ready").status_code == 200


def test_a_client_that_reads_nothing_is_disconnected(bundle: Path) -> None:
    with running(f"en-de={bundle}", "--body-timeout", "1") as server:
        address = httpx.URL(server.url)
        client = socket.socket()
        with client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(PATIENCE)
            client.connect((address.host, address.port or 0))
            # Until the connection is closed, at the latest when the test's time is up.
            with contextlib.suppress(ConnectionError):
                while True:
                    client.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n")
                    time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_two_servers_on_one_port(bundle: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "translate_trt", "serve", f"en-de={bundle}"]
        done = subprocess.run([*command, "--port", port], capture_output=True, text=True)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert os.strerror(98) in done.stderr
