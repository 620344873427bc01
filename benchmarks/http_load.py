"""Load test of the HTTP server beside `TranslationService` alone.

    python benchmarks/http_load.py --bundle DIR --source test.en [--target onnx-int8]
        [--clients 200] [--requests 10000] [--rounds 3]

Each client sends a line over a connection of its own, and its next line as soon as it has the
answer. The server runs in one process, the clients in another; both share this machine's cores.
Beside them, a service in this process has as many lines at the same time, submitted from the
callbacks of finished ones. The two take turns. Every answer is compared with the service's; a
request without the right answer is lost. CPU time per request, of the server's process and of this
one, does not depend on what else the machine does.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path
from time import perf_counter, process_time
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil
from harness import Report, alternate, benchmark, main, option, ratios, spread

from translate_trt.runtime import TranslationService, Translator
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.results import Translation

HTTP, ALONE = "HTTP server", "service alone"
LANGUAGES = ("en", "de")


@contextmanager
def server(bundle: Path, target: str | None, workers: int) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server until the block ends; yield its URL and its process."""
    command = [
        sys.executable, "-m", "translate_trt", "serve", f"{'-'.join(LANGUAGES)}={bundle}",
        "--port", "0", "--no-page", "--workers", str(workers), "--threads", "1",
        *(() if target is None else ("--target", target)),
    ]  # fmt: skip
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server does not start")
            yield line.split()[-1], psutil.Process(process.pid)
        finally:
            process.terminate()
    if process.returncode:
        raise SystemExit(f"the server ended with {process.returncode}")


async def client(url: str, jobs: Iterator[tuple[int, str]], answers: list[Any]) -> None:
    """Send requests over one connection until none is left."""
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    source, target = LANGUAGES
    for number, line in jobs:
        body = json.dumps({"q": line, "source": source, "target": target}).encode()
        head = (
            f"POST /translate HTTP/1.1\r\nHost: {address.netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        begun = perf_counter()
        try:
            writer.write(head.encode() + body)
            received = await reader.readuntil(b"\r\n\r\n")
            status, *fields = received.decode("latin-1").split("\r\n")
            named = {name.lower(): value for name, _, value in (f.partition(":") for f in fields)}
            content = await reader.readexactly(int(named["content-length"]))
        except (OSError, asyncio.IncompleteReadError) as error:
            answers.append((number, perf_counter() - begun, repr(error)))
            return
        ok = status.split()[1] == "200"
        text = json.loads(content)["translatedText"] if ok else None
        answers.append((number, perf_counter() - begun, text))
    writer.close()


def run_clients(job: dict[str, Any]) -> dict[str, Any]:
    """Run all clients in this process; return seconds, and of each request its answer."""
    answers: list[Any] = []
    jobs = iter(enumerate(job["lines"]))

    async def run() -> float:
        begun = perf_counter()
        await asyncio.gather(*(client(job["url"], jobs, answers) for _ in range(job["clients"])))
        return perf_counter() - begun

    return {"seconds": asyncio.run(run()), "answers": answers}


def by_http(
    url: str, process: psutil.Process, lines: Sequence[str], clients: int
) -> dict[str, Any]:
    """Run the clients in a process of their own."""
    before = cpu_seconds(process)
    job = json.dumps({"url": url, "lines": lines, "clients": clients})
    done = subprocess.run(
        [sys.executable, __file__, "--as-clients"], input=job.encode(), stdout=subprocess.PIPE,
        check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found | {"cpu": cpu_seconds(process) - before}


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def by_service(service: TranslationService, lines: Sequence[str], clients: int) -> dict[str, Any]:
    """Translate the lines in this process, as many at the same time as there are clients."""
    jobs, answers, done = iter(enumerate(lines)), [], threading.Event()
    errors: list[BaseException] = []
    lock = threading.Lock()

    def submit_next() -> None:
        with lock:
            number, line = next(jobs, (None, ""))
        if number is None:
            return
        begun = perf_counter()

        def finish(future: Future[Translation]) -> None:
            if (error := future.exception()) is not None:
                errors.append(error)
                done.set()
                return
            answers.append((number, perf_counter() - begun, future.result().text))
            if len(answers) == len(lines):
                done.set()
            submit_next()

        # As the server does: it splits texts into sentences.
        future = service.submit_document(line, split_sentences=LANGUAGES[0])
        future.add_done_callback(finish)

    begun, before = perf_counter(), process_time()
    for _ in range(clients):
        submit_next()
    done.wait()
    if errors:
        raise errors[0]
    cpu = process_time() - before
    return {"seconds": perf_counter() - begun, "answers": answers, "cpu": cpu}


def lost(found: dict[str, Any], expected: Sequence[str]) -> int:
    """Return the number of requests without the right answer."""
    right = {number for number, _, text in found["answers"] if text == expected[number]}
    return len(expected) - len(right)


def summarize(
    samples: dict[str, list[dict[str, Any]]], expected: Sequence[str], speeds: Any
) -> dict[str, Any]:
    """Return speeds by rounds, percentiles of latencies, and lost requests."""
    found: dict[str, Any] = {}
    for name, rounds in samples.items():
        latencies = [1e3 * seconds for part in rounds for _, seconds, _ in part["answers"]]
        found[name] = {
            "requests": len(expected) * len(rounds),
            "lost": sum(lost(part, expected) for part in rounds),
            "requests_per_second": spread(speeds[name]),
            "cpu_milliseconds": spread(1e3 * part["cpu"] / len(expected) for part in rounds),
            "milliseconds": [float(one) for one in np.percentile(latencies, (50, 95, 99))],
        }
    return found | {f"{HTTP} / {ALONE}": ratios(speeds, HTTP, ALONE)}


@benchmark(
    "http-load",
    "bundle target source",
    option("--clients", type=int, default=200, help="clients at the same time"),
    option("--requests", type=int, default=10_000, help="requests per round"),
    rounds=3,
)
def load(given: Namespace) -> Report:
    """Measure the HTTP server and the service alone in turn."""
    text = [one for one in given.source.read_text(encoding="utf-8").splitlines() if one.strip()]
    if not text:
        raise SystemExit(f"{given.source} has no text")
    lines = list(islice(cycle(text), given.requests))
    workers = available_cores()
    translator = Translator(given.bundle, given.target, threads=1, workers=workers)
    with (
        TranslationService(translator) as service,
        server(given.bundle, given.target, workers) as (url, process),
    ):
        few = lines[: 2 * given.clients]  # to warm up
        by_http(url, process, few, given.clients)
        by_service(service, few, given.clients)
        systems = {
            HTTP: lambda: by_http(url, process, lines, given.clients),
            ALONE: lambda: by_service(service, lines, given.clients),
        }
        samples = alternate(systems, given.rounds, warmup=0)
        found = translator.translate_document(text, split_sentences=LANGUAGES[0])
    expected = list(islice(cycle(one.text for one in found), given.requests))
    speeds = {
        name: [len(lines) / one["seconds"] for one in rounds] for name, rounds in samples.items()
    }
    settings = {
        "target": translator.target.name, "workers": workers, "clients": given.clients,
        "requests": given.requests, "source": given.source.name,
    }  # fmt: skip
    return Report(summarize(samples, expected, speeds), settings, speeds)


if __name__ == "__main__":
    if sys.argv[1:] == ["--as-clients"]:
        json.dump(run_clients(json.load(sys.stdin)), sys.stdout)
    else:
        main(__doc__)
