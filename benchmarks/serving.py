"""Throughput and latency of a Triton server against the number of clients.

    bash scripts/triton_server.sh
    python benchmarks/serving.py --bundle DIR --source test.en [--target onnx-int8]
        [--clients 1 2 4 8 16 32 64] [--requests 100] [--rounds 3]

Each client sends a line by gRPC and sends its next one as soon as it has the answer. Server and
clients share this machine's cores. Counts of clients take turns, round after round; beside them,
the runtime translates the same lines in this process, all at once, by a worker per core.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import tempfile
import urllib.request
from argparse import Namespace
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np
from harness import ROOT, Report, alternate, benchmark, evenly, main, option, read_text, spread

from translate_trt.runtime import Translator
from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

PLACE = ROOT / ".cache/triton-server"
CLIENT = (PLACE / "bin/python", Path(__file__).with_name("triton_client.py"))
RUNTIME = "runtime alone"
_MOST_SECONDS_TO_START = 120


@contextlib.contextmanager
def server(given: Namespace, served: ServerOptions) -> Iterator[tuple[str, str]]:
    """Serve a bundle on the loopback interface until the block ends; yield address and version."""
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
            yield f"127.0.0.1:{grpc}", version
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


def repeated(lines: Sequence[str], count: int) -> list[str]:
    """Return that many lines, spread evenly over the text, which is repeated if it is short."""
    return list(islice(cycle(evenly(lines, count)), count))


def by_clients(address: str, lines: Sequence[str], clients: int) -> dict[str, Any]:
    """Run that many clients once; return the seconds of the round and of each request."""
    job = {
        "protocol": "grpc", "address": address, "model": "translation", "clients": clients,
        "requests": [request(line) for line in lines],
    }  # fmt: skip
    sent = json.dumps(job).encode()
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
    option("--target", default="onnx-int8", help="target of the bundle"),
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
    with server(given, served) as (address, version):
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


if __name__ == "__main__":
    main(__doc__)
