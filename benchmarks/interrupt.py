"""How long Ctrl-C takes: from SIGINT to the end of `translate-trt translate` while it translates.

    python benchmarks/interrupt.py BUNDLE --source text.en [--target onnx-int8] [--rounds 10]

A process each time, with as many workers as there are cores, at a random moment between a second
after its start and three: bundles load in less, and the text takes longer.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from report import parser, write

# Of the text, which is repeated: a minute and more of work.
LINES = 20_000
EARLIEST, LATEST = 1.0, 3.0  # seconds after the start
PROGRAM = "from translate_trt.runtime.cli import main; main()"


def arguments() -> argparse.Namespace:
    """From the command line."""
    options = parser(__doc__)
    options.add_argument("bundle", type=Path)
    options.add_argument("--source", type=Path, required=True, help="lines to translate")
    options.add_argument("--target")
    options.set_defaults(rounds=10)
    return options.parse_args()


def repeated(source: Path, directory: Path) -> Path:
    """A file of LINES lines of that text, again and again."""
    lines = source.read_text(encoding="utf-8").splitlines()
    path = directory / "text"
    path.write_text("\n".join((lines * (LINES // len(lines) + 1))[:LINES]) + "\n", encoding="utf-8")
    return path


def seconds_to_end(command: list[str], moment: float) -> float:
    """From SIGINT, so many seconds after the start, to the process's end.

    Raises:
        RuntimeError: it was no longer translating, or ended otherwise than an interrupted one.
    """
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # What a shell starts in the background ignores Ctrl-C, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        time.sleep(moment)
        if process.poll() is not None:
            raise RuntimeError(f"it ended before it was interrupted: {process.communicate()[1]}")
        begin = time.perf_counter()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        taken = time.perf_counter() - begin
    finally:
        process.kill()
    if process.returncode != 128 + signal.SIGINT:
        raise RuntimeError(f"it ended with status {process.returncode}: {errors}")
    return taken


def main() -> None:
    """Measure and write."""
    given = arguments()
    moments = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        text = repeated(given.source, Path(directory))
        command = [sys.executable, "-c", PROGRAM, "translate", "--bundle", str(given.bundle),
                   "--workers", str(given.threads), "--threads", "1", str(text)]  # fmt: skip
        if given.target is not None:
            command += ["--target", given.target]
        seconds = [
            seconds_to_end(command, moments.uniform(EARLIEST, LATEST)) for _ in range(given.rounds)
        ]
    print(f"{statistics.median(seconds):.2f} s, at most {max(seconds):.2f} s")
    settings = {"workers": given.threads, "target": given.target, "rounds": given.rounds}
    print(write("interrupt", settings, {"seconds": seconds}, given.out))


if __name__ == "__main__":
    main()
