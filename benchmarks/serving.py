"""Measure a Triton server: throughput and latency by clients, and expensive requests.

    bash scripts/triton_server.sh
    python benchmarks/serving.py load --bundle DIR --source test.en [--target onnx-int8]
        [--clients 1 2 4 8 16 32 64] [--requests 100] [--rounds 3]
    python benchmarks/serving.py attack --bundle DIR --source test.en [--requests 40] [--rounds 3]

Clients send lines by gRPC; server and clients share this machine's cores.

- load: each client sends its next line as soon as it has the answer. Counts of clients take turns,
  round after round; beside them, the runtime translates the same lines in this process, all at
  once, by a worker per core.
- attack: on one server that takes requests of any cost, the latency of a client that sends a line
  at a time, alone and beside a client that repeatedly sends 16 rows of 9,950 characters, with 16
  beams up to the maximum length, or with the options of the line; the processor time of a 64-row
  request that its client cancels, relative to that of a request with as many sentences as had been
  begun; throughput, latency and errors with 200 clients at once.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import urllib.request
from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
import psutil
from harness import ROOT, Report, alternate, benchmark, evenly, main, option, read_text, spread

from translate_trt.runtime import Translator
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

PLACE = ROOT / ".cache/triton-server"
CLIENT = (PLACE / "bin/python", Path(__file__).with_name("triton_client.py"))
TARGET = option("--target", default="onnx-int8", help="target of the bundle")
RUNTIME = "runtime alone"
_MOST_SECONDS_TO_START = 120


@contextlib.contextmanager
def server(given: Namespace, served: ServerOptions) -> Iterator[tuple[str, str, str]]:
    """Serve a bundle on the loopback interface until the block ends.

    Yields:
        Its gRPC address, its version, and the page of its metrics.
    """
    http, grpc, metrics = free_port(), free_port(), free_port()
    with tempfile.TemporaryDirectory() as directory, Path(directory, "log").open("w+b") as log:
        repository = Path(directory, "repository")
        write_repository(given.bundle, given.target, repository, served)
        process = subprocess.Popen(
            [PLACE / "bin/tritonserver", "--model-repository", repository,
             "--http-address", "127.0.0.1", "--http-port", str(http),
             "--grpc-address", "127.0.0.1", "--grpc-port", str(grpc),
             "--metrics-address", "127.0.0.1", "--metrics-port", str(metrics)],
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            end = monotonic() + _MOST_SECONDS_TO_START
            while not is_ready(http):
                if process.poll() is not None or monotonic() > end:
                    text = Path(directory, "log").read_text()
                    raise SystemExit(f"the server does not start:\n{text}")
                sleep(0.1)
            with urllib.request.urlopen(f"http://127.0.0.1:{http}/v2") as answer:
                version = json.load(answer)["version"]
            yield f"127.0.0.1:{grpc}", version, f"http://127.0.0.1:{metrics}/metrics"
        finally:
            process.terminate()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def request(line: str) -> dict[str, Any]:
    """Return the request of `triton_client.py` for a line."""
    text = line.encode("utf-8").decode("latin-1")
    return {
        "inputs": {"TEXT": {"type": "BYTES", "shape": [1, 1], "data": [text]}},
        "outputs": ["TRANSLATION"],
    }


def job(address: str, requests: Iterable[dict[str, Any]], clients: int = 1) -> bytes:
    """Format a job of `triton_client.py`."""
    return json.dumps(
        {"protocol": "grpc", "address": address, "model": "translation", "clients": clients,
         "requests": list(requests)}
    ).encode()  # fmt: skip


def repeated(lines: Sequence[str], count: int) -> list[str]:
    """Return that many lines, spread evenly over the text, which is repeated if it is short."""
    return list(islice(cycle(evenly(lines, count)), count))


def by_clients(address: str, lines: Sequence[str], clients: int) -> dict[str, Any]:
    """Run that many clients once; return the seconds of the round and of each request."""
    sent = job(address, map(request, lines), clients)
    done = subprocess.run(CLIENT, input=sent, stdout=subprocess.PIPE, check=True)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    wrong = [one["error"] for one in answers if "error" in one]
    if wrong:
        raise SystemExit(f"{len(wrong)} of {len(answers)} requests failed: {wrong[0]}")
    return {
        # From the first request to the last answer; without the start of the clients' process.
        "seconds": round(max(one["at"] for one in answers), 4),
        "latencies": [round(one["seconds"], 4) for one in answers],
    }


def by_runtime(translator: Translator, lines: Sequence[str]) -> dict[str, Any]:
    """Translate the lines in one call."""
    begun = monotonic()
    translator.translate(lines)
    return {"seconds": round(monotonic() - begun, 4), "lines": len(lines)}


def summarize(samples: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return speeds by rounds, and percentiles of the latencies of all rounds."""
    found: dict[str, Any] = {}
    for clients, rounds in samples.items():
        if clients == RUNTIME:
            speeds = [one["lines"] / one["seconds"] for one in rounds]
            found[clients] = {"sentences_per_second": spread(speeds)}
            continue
        latencies = [1e3 * one for part in rounds for one in part["latencies"]]
        found[clients] = {
            "requests": len(latencies),
            "sentences_per_second": spread(
                len(one["latencies"]) / one["seconds"] for one in rounds
            ),
            "milliseconds": [float(one) for one in np.percentile(latencies, (50, 95, 99))],
        }
    return found


@benchmark(
    "serving",
    "bundle source",
    TARGET,
    option("--clients", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32, 64], help="clients"),
    option("--requests", type=int, default=100, help="requests per round, at least 8 per client"),
    option("--instances", type=int, default=1, help="instances of the model"),
    option("--queue-delay", type=int, default=0, help="Triton's queue delay, microseconds"),
    rounds=3,
)
def load(given: Namespace) -> Report:
    """Measure throughput and latency against the number of clients."""
    text = read_text(given.source)
    served = ServerOptions(instances=given.instances, queue_delay=given.queue_delay)
    translator = Translator(given.bundle, given.target, threads=1, workers=available_cores())
    with server(given, served) as (address, version, _):
        systems = {
            str(count): lambda count=count: by_clients(
                address, repeated(text, max(given.requests, 8 * count)), count
            )
            for count in given.clients
        }
        most = repeated(text, max(given.requests, 8 * max(given.clients)))
        systems[RUNTIME] = lambda: by_runtime(translator, most)
        samples = alternate(systems, given.rounds, warmup=0)
    settings = {
        "target": given.target, "instances": given.instances, "queue_delay": given.queue_delay,
        "triton": version, "source": given.source.name,
    }  # fmt: skip
    several = "" if given.instances == 1 else f"-{given.instances}-instances"
    return Report(summarize(samples), settings, samples, f"serving{several}")


# ---- expensive requests ----


def many_rows(line: str, rows: int, characters: int, **options: int) -> dict[str, Any]:
    """Return a request of equal texts."""
    made = request((f"{line} " * (characters // len(line) + 1))[:characters])
    one = made["inputs"]["TEXT"]
    one["shape"], one["data"] = [rows, 1], one["data"] * rows
    for name, value in options.items():
        made["inputs"][name] = {"type": "INT32", "shape": [rows, 1], "data": [value] * rows}
    return made


@contextlib.contextmanager
def attacker(address: str, sent: dict[str, Any]) -> Iterator[None]:
    """Send a request repeatedly until the block ends, then disconnect."""
    process = subprocess.Popen(CLIENT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert process.stdin is not None
    process.stdin.write(job(address, [sent] * 1_000))
    process.stdin.close()
    try:
        sleep(5)  # until its first request has begun
        yield
    finally:
        process.kill()
        process.wait()


class Instance:
    """Process of the server's only instance: its processor time and metrics."""

    def __init__(self, metrics: str) -> None:
        self._metrics = metrics
        family = psutil.Process().children(recursive=True)
        (self._process,) = (
            one for one in family if any("triton_python_backend_stub" in a for a in one.cmdline())
        )

    def seconds(self) -> float:
        """Return the processor time so far."""
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def metric(self, name: str) -> float:
        """Return a metric of the server, summed over its labels."""
        with urllib.request.urlopen(self._metrics) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(f"{name}{{"))

    def wait_until_idle(self) -> None:
        """Wait until the metrics report no request in work."""
        sleep(2.5)  # metrics are updated every second
        while self.metric("translate_trt_requests_in_work"):
            sleep(0.2)


def cancelled(
    address: str, instance: Instance, sent: dict[str, Any], after: float
) -> dict[str, Any]:
    """Return processor time and sentences of a request whose client disconnects."""
    before = instance.seconds(), instance.metric("translate_trt_sentences_total")
    sent_once = job(address, [{**sent, "cancel": after}])
    subprocess.run(CLIENT, input=sent_once, stdout=subprocess.DEVNULL, check=True)
    instance.wait_until_idle()
    return {
        "processor_seconds": round(instance.seconds() - before[0], 2),
        "sentences": instance.metric("translate_trt_sentences_total") - before[1],
    }


def summarize_attack(samples: dict[str, Any]) -> dict[str, Any]:
    """Return p50 and p95 of latencies, and the processor time of cancelled requests."""
    found: dict[str, Any] = {}
    for name in ("alone", "beside 16 beams", "beside equal options", "200 clients"):
        latencies = [1e3 * one for part in samples[name] for one in part["latencies"]]
        times = [float(one) for one in np.percentile(latencies, (50, 95))]
        found[name] = {"requests": len(latencies), "milliseconds": times}

    def per_sentence(name: str) -> float:
        seconds = sum(one["processor_seconds"] for one in samples[name])
        return float(seconds / sum(one["sentences"] for one in samples[name]))

    found["cancelled"] = {
        "sentences begun": [one["sentences"] for one in samples["cancelled"]],
        "processor seconds per sentence": per_sentence("cancelled"),
        "processor seconds per sentence / as many": per_sentence("cancelled")
        / per_sentence("as many"),
    }
    return found


@benchmark(
    "serving-attack",
    "bundle source",
    TARGET,
    option("--requests", type=int, default=40, help="requests of the cheap client per round"),
    rounds=3,
)
def attack(given: Namespace) -> Report:
    """Measure a server under expensive requests, cancelled requests and many clients."""
    text = read_text(given.source)
    lines, many = repeated(text, given.requests), repeated(text, 600)
    longest = read_manifest(given.bundle).limits.max_target_length
    beside = {
        "beside 16 beams": many_rows(text[0], 16, 9_950, BEAM_SIZE=16, MIN_LENGTH=longest),
        "beside equal options": many_rows(text[0], 16, 9_950),
    }
    samples: dict[str, Any] = {name: [] for name in ("alone", *beside, "cancelled", "as many")}
    with server(given, ServerOptions(max_cost=10**9)) as (address, version, page):
        instance = Instance(page)
        for _ in range(given.rounds):
            samples["alone"].append(by_clients(address, lines, 1))
            for name, sent in beside.items():
                with attacker(address, sent):
                    samples[name].append(by_clients(address, lines, 1))
                instance.wait_until_idle()

        def rows(count: int, after: float = 3_600.0) -> dict[str, Any]:
            return cancelled(address, instance, many_rows(text[0], count, 2_000), after)

        segments = rows(1)["sentences"]
        for _ in range(given.rounds):
            samples["cancelled"].append(rows(64, 4.0))
            begun = samples["cancelled"][-1]["sentences"]
            samples["as many"].append(rows(max(1, round(begun / segments))))
        samples["200 clients"] = [by_clients(address, many, 200) for _ in range(given.rounds)]
    settings = {"target": given.target, "triton": version, "source": given.source.name,
                "requests": given.requests}  # fmt: skip
    results = summarize_attack(samples)
    for name, value in results.items():
        print(f"{name}: {value}")
    return Report(results, settings, samples)


if __name__ == "__main__":
    main(__doc__)
