"""Measure a Triton server under expensive requests, cancelled requests and many clients.

    bash scripts/triton_server.sh
    python benchmarks/serving_attack.py --bundle DIR --source test.en [--target onnx-int8]
        [--requests 40] [--rounds 3]

Measures, on one server that takes requests of any cost:

- the latency of a client that sends a line at a time, alone and beside a client that repeatedly
  sends 16 rows of 9,950 characters, with 16 beams up to the maximum length, or with the options of
  the line;
- the processor time of a 64-row request that its client cancels, relative to that of a request with
  as many sentences as had been begun;
- throughput, latency and errors with 200 clients at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

from harness import parser, write
from serving import PLACE, by_clients, evenly, request, server

from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

ROWS, CHARACTERS, BEAM = 16, 9_950, 16
CLIENT = Path(__file__).with_name("triton_client.py")


def many_rows(line: str, rows: int, characters: int, **options: int) -> dict[str, Any]:
    """Return a request of equal texts."""
    text = (f"{line} " * (characters // len(line) + 1))[:characters]
    made = request(text)
    one = made["inputs"]["TEXT"]
    one["shape"], one["data"] = [rows, 1], one["data"] * rows
    for name, value in options.items():
        made["inputs"][name] = {"type": "INT32", "shape": [rows, 1], "data": [value] * rows}
    return made


def job(address: str, requests: Sequence[dict[str, Any]]) -> bytes:
    """Format the job of one client for `triton_client.py`."""
    return json.dumps(
        {"protocol": "grpc", "address": address, "model": "translation", "clients": 1,
         "requests": requests}
    ).encode()  # fmt: skip


@contextlib.contextmanager
def attacker(address: str, sent: dict[str, Any]) -> Iterator[None]:
    """Send a request repeatedly until the block ends, then disconnect."""
    process = subprocess.Popen(
        [PLACE / "bin/python", CLIENT], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
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
        (self._pid,) = (
            path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if _is_instance(path)
        )

    def seconds(self) -> float:
        """Return the processor time so far."""
        fields = Path("/proc", self._pid, "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(self._metrics) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith(f"{name}{{"))

    def wait_until_idle(self) -> None:
        """Wait until the metrics report no request in work."""
        sleep(2.5)  # metrics are updated every second
        while self.metric("translate_trt_requests_in_work"):
            sleep(0.2)


def _is_instance(path: Path) -> bool:
    """Whether a process is the Python backend of the server that this process started."""
    with contextlib.suppress(OSError):
        if b"triton_python_backend_stub" not in path.read_bytes():
            return False
        server = _parent(path.parent)
        return _parent(Path("/proc", server)) == str(os.getpid())
    return False


def _parent(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[1]


def cancelled(
    address: str, instance: Instance, sent: dict[str, Any], after: float
) -> dict[str, Any]:
    """Return processor time and sentences of a request whose client disconnects."""
    before = instance.seconds(), instance.metric("translate_trt_sentences_total")
    subprocess.run(
        [PLACE / "bin/python", CLIENT],
        input=job(address, [{**sent, "cancel": after}]), stdout=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    instance.wait_until_idle()
    return {
        "processor_seconds": round(instance.seconds() - before[0], 2),
        "sentences": instance.metric("translate_trt_sentences_total") - before[1],
    }


def main() -> None:
    """Measure, and write the report."""
    options = parser(__doc__)
    options.set_defaults(rounds=3)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--target", default="onnx-int8")
    options.add_argument("--source", type=Path, required=True)
    options.add_argument(
        "--requests", type=int, default=40, help="requests of the cheap client per round"
    )
    options.add_argument("--note", default="", help="conditions of the measurement")
    given = options.parse_args()
    text = given.source.read_text(encoding="utf-8").split("\n")[:-1]
    lines = evenly(text, given.requests)
    longest = read_manifest(given.bundle).limits.max_target_length
    costly = many_rows(text[0], ROWS, CHARACTERS, BEAM_SIZE=BEAM, MIN_LENGTH=min(longest, 10**9))
    plain = many_rows(text[0], ROWS, CHARACTERS)
    with_rows = partial(many_rows, text[0], characters=2_000)
    served = ServerOptions(max_cost=10**9)
    samples: dict[str, Any] = {"alone": [], "beside 16 beams": [], "beside equal options": []}
    samples |= {"cancelled": [], "as many": []}
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory, "repository")
        write_repository(given.bundle, given.target, repository, served)
        with server(repository, Path(directory, "log")) as (address, version, page):
            instance = Instance(page)
            for _ in range(given.rounds):
                samples["alone"].append(by_clients(address, served.name, lines, 1))
                for name, sent in (("beside 16 beams", costly), ("beside equal options", plain)):
                    with attacker(address, sent):
                        samples[name].append(by_clients(address, served.name, lines, 1))
                    instance.wait_until_idle()
            # Segments of a row.
            pieces = cancelled(address, instance, with_rows(1), 3_600.0)["sentences"]
            for _ in range(given.rounds):
                part = cancelled(address, instance, with_rows(64), 4.0)
                rows = max(1, round(part["sentences"] / pieces))
                samples["cancelled"].append(part)
                samples["as many"].append(cancelled(address, instance, with_rows(rows), 3_600.0))
            samples["200 clients"] = [
                by_clients(address, served.name, evenly(text, 600), 200)
                for _ in range(given.rounds)
            ]
    settings = {
        "target": given.target, "triton": version, "source": given.source.name,
        "note": given.note, "requests": given.requests,
    }  # fmt: skip
    results = summarize(samples)
    for name, value in results.items():
        print(f"{name}: {value}")
    print(write("serving-attack", settings, results, given, samples))


def summarize(samples: dict[str, Any]) -> dict[str, Any]:
    """Return p50 and p95 of latencies, and the processor time of cancelled requests."""
    found: dict[str, Any] = {}
    for name in ("alone", "beside 16 beams", "beside equal options", "200 clients"):
        latencies = sorted(1e3 * one for part in samples[name] for one in part["latencies"])
        p95 = latencies[int(0.95 * (len(latencies) - 1))]
        times = [statistics.median(latencies), p95]
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


if __name__ == "__main__":
    main()
