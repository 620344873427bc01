#!/usr/bin/env python3
"""Mutation testing: apply small faults to the code one by one, and record which test catches each.

    rm -rf build/mutation                                   # if tests have changed
    python scripts/mutate.py --map [arguments of pytest]    # adds which tests run which lines
    python scripts/mutate.py --part export --seed 48 --count 20 --out before.json
    python scripts/mutate.py --again before.json --out after.json

Parts are export (train/ and export/), runtime (its Python) and cpp (runtime/cpp). A fault is a
flipped comparison, a negated condition, an exchanged operator, an integer off by one, two swapped
arguments, or a dropped statement. Lines are drawn evenly from all that offer one; a fault that does
not compile or import is replaced. --again applies the faults of a file to the current sources by
the text of their lines; a fault whose lines no longer exist is gone. A run continues an earlier one
of its --out.

Tests of a fault, neither nightly nor with sanitizers, in order until one fails:

1. with --again, the test that caught the fault before, if its file still exists;
2. in C++, the unit tests and kernel tests of the rebuilt library, then CPP_TESTS;
3. in Python, tests of the quick tier that run a line of the fault, or any line of its file if
   imports run the fault, also in processes that tests start (--map keeps them in build/mutation);
   then all tests of files that name the module. Files whose selected tests take the least
   processor time come first, those without a known time last.

A fault has survived when no test failed, or when pytest has used --budget seconds of processor
time. A test that takes HANG seconds more than ten times its usual time has caught the fault.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest
from faults import BYTES, ROOT, Fault, choose, line_of

WORK = ROOT / "build/mutation"
COVERAGE, TIMES, LOG = WORK / "coveragerc", WORK / "times.jsonl", WORK / "log.jsonl"
HANG = 120.0
MEMORY = 12 << 30  # bytes per process, for faults that allocate without end

CPP_PROGRAMS = ("translate_trt_unit_tests", "translate_trt_kernel_tests")
CPP_TESTS = [f"tests/runtime/{name}" for name in (
    "kernels", "text/test_markup.py", "text/test_markup_tokens.py",
    "text/test_glossary.py", "test_translator.py", "test_constraints.py",
    "test_sampling.py", "test_alternatives.py", "test_score.py", "test_loops.py",
    "test_translate_markup.py", "test_service.py", "test_search_operators.py", "test_kernels.py",
    "test_native.py", "test_cpp_library.py", "test_cpp_jobs.py",
)]  # fmt: skip
# Kernels for other processors are neither mutated nor built.
CPP_OPTIONS = ("-D", "TRANSLATE_TRT_AVX512=OFF", "-D", "TRANSLATE_TRT_AVX_VNNI=OFF")
CPP_RESET = ("-D", "TRANSLATE_TRT_AVX512=ON", "-U", "TRANSLATE_TRT_AVX_VNNI")


# ---- in the process of pytest, with -p mutate ----


def log(**values: object) -> None:
    with open(os.environ["MUTATE_LOG"], "a") as file:
        file.write(json.dumps(values) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests, files and folders of MUTATE_TESTS, in its order."""
    if names := os.environ.get("MUTATE_TESTS"):
        order = {name: rank for rank, name in enumerate(Path(names).read_text().split("\n"))}

        def rank(item: pytest.Item) -> int:
            file = Path(item.nodeid.partition("::")[0])
            places = (item.nodeid, str(file), *map(str, file.parents))
            return min(order.get(place, len(order)) for place in places)

        # Builds with sanitizers take longer than all other tests.
        kept = (i for i in items if "sanitized" not in getattr(i, "fixturenames", ()))
        items[:] = sorted((item for item in kept if rank(item) < len(order)), key=rank)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the times of a test, and attribute lines that run to it."""
    wall, used = time.monotonic(), sum(os.times()[:4])
    if used > float(os.environ.get("MUTATE_BUDGET", "inf")):
        pytest.exit("out of budget", 0)
    log(started=item.nodeid)
    os.environ["MUTATE_TEST"] = item.nodeid  # for the processes that the test starts
    if "COVERAGE_PROCESS_START" in os.environ:
        from coverage import Coverage

        if coverage := Coverage.current():
            coverage.switch_context(item.nodeid)
    result = yield
    log(ended=item.nodeid, used=sum(os.times()[:4]) - used, wall=time.monotonic() - wall)
    return result


def pytest_runtest_logreport(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        log(failed=report.nodeid)


pytest_collectreport = pytest_runtest_logreport


# ---- tests of a fault ----


@functools.cache
def known() -> tuple[dict[str, dict[str, Any]], set[str]]:
    """Return times of tests in the run of --map, and the tests that failed in it."""
    lines = [json.loads(line) for line in TIMES.read_text().splitlines()] if TIMES.exists() else []
    failed = {line["failed"] for line in lines if "failed" in line}
    return {line["ended"]: line for line in lines if "ended" in line}, failed


@functools.cache
def contexts(file: str) -> dict[int, list[str]]:
    from coverage import CoverageData

    data = CoverageData(str(WORK / "lines"))
    data.read()
    return data.contexts_by_lineno(str(ROOT / file))


def module(file: str) -> str:
    return "translate_trt." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_by(fault: Fault, line: int) -> set[str]:
    """Return the tests that run the fault, which begins at `line`; "" is an import.

    Of what imports run, such as tables, those are the tests that run any line of the file.
    """
    tests = contexts(fault.file)
    lines = range(line, line + fault.before.count("\n") + 1)
    found = {test for line in lines for test in tests.get(line, ())}
    return found if "" not in found else set().union(*tests.values())


def select(fault: Fault, line: int) -> list[str]:
    """Return tests and files in the order in which they run."""
    if fault.part == "cpp":
        return [name for name in CPP_TESTS if (ROOT / name).exists()]
    package, _, name = module(fault.file).rpartition(".")
    imported = r"(?:\.| import (?:\([^)]*?|[^(\n]*?)\b)"
    naming = re.compile(rf"\b{re.escape(package)}{imported}{name}\b")
    files: dict[str, list[str]] = {}
    for test in sorted(run_by(fault, line) & known()[0].keys()):
        files.setdefault(test.partition("::")[0], []).append(test)
    used: Counter[str] = Counter()
    for test, taken in known()[0].items():
        used[test.partition("::")[0]] += taken["used"]
    running = sorted(files, key=lambda file: sum(known()[0][test]["used"] for test in files[file]))
    named = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
             if naming.search(path.read_text())]  # fmt: skip
    named.sort(key=lambda file: (file not in used, used[file], file))
    return [*(test for file in running for test in files[file]), *named]


# ---- running ----


def start_pytest(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    paths = [str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    command = ["prlimit", f"--data={MEMORY}", sys.executable, "-m", "pytest", "-q"]
    command += ["-p", "mutate", "-p", "no:cacheprovider", *arguments]
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **settings, **environment}, stdout=sys.stderr,
        start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_map(arguments: list[str]) -> None:
    """Run tests of the quick tier, and add their lines and times to what is known."""
    sources = " ".join(f"\n    {ROOT / folder}" for folder in ("export", "runtime", "train"))
    COVERAGE.write_text(f"[run]\ndata_file = {WORK / 'lines'}\nparallel = true\nsigterm = true\n"
                        f"context = ${{MUTATE_TEST-}}\nsource_dirs = {sources}\n")  # fmt: skip
    process = start_pytest(
        "-m", "not slow and not nightly", *arguments,
        MUTATE_LOG=str(TIMES), COVERAGE_PROCESS_START=str(COVERAGE),
    )  # fmt: skip
    try:
        process.wait()
    except KeyboardInterrupt:  # what has run until now is kept
        process.send_signal(signal.SIGINT)
        process.wait()
    command = [
        sys.executable,
        "-m",
        "coverage",
        "combine",
        "-q",
        "--append",
        f"--rcfile={COVERAGE}",
    ]
    subprocess.run(command, cwd=WORK, check=True)


def restore() -> None:
    """Restore the file that a fault was applied to, if there is one."""
    saved = WORK / "saved.json"
    if saved.exists():
        file, text = json.loads(saved.read_text())
        (ROOT / file).write_text(text, BYTES)
        saved.unlink()


@contextlib.contextmanager
def replaced(file: str, old: str, new: str) -> Iterator[None]:
    """Change a file of the working tree. After a crash, the next run restores the file."""
    (WORK / "saved.json").write_text(json.dumps([file, old]))
    try:
        (ROOT / file).write_text(new, BYTES)
        yield
    finally:
        restore()


def build(*options: str) -> bool:
    command = ["bash", "scripts/build_library.sh", "-D", "TRANSLATE_TRT_TESTS=ON", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0


def is_valid(fault: Fault, new: str, imported: bool) -> bool:
    """Return whether a changed file compiles, and imports if imports run the fault."""
    if fault.part == "cpp":
        return build(*CPP_OPTIONS)
    try:
        ast.parse(new.encode(BYTES))
    except SyntaxError:
        return False
    command = [sys.executable, "-B", "-c", f"import {module(fault.file)}"]
    return not imported or subprocess.run(command, capture_output=True, check=False).returncode == 0


def run_programs() -> tuple[str, str]:
    """Run the C++ tests; return the result and the program that has it."""
    for name in CPP_PROGRAMS:
        program = ROOT / "build/native/tests" / name
        try:
            done = subprocess.run([program], capture_output=True, check=False, timeout=3 * HANG)
        except subprocess.TimeoutExpired:
            return "hangs", name
        if done.returncode:
            return "caught", name
    return "survived", ""


def run_pytest(tests: list[str], budget: float) -> tuple[str, str]:
    """Run tests in their order; return the result and the test that has it."""
    names = WORK / "tests.txt"
    names.write_text("\n".join(tests))
    LOG.write_text("")
    files = dict.fromkeys(test.partition("::")[0] for test in tests)
    process = start_pytest(
        "-x", "-m", "not nightly", *files, *(f"--deselect={test}" for test in known()[1]),
        MUTATE_LOG=str(LOG), MUTATE_TESTS=str(names), MUTATE_BUDGET=str(budget),
    )  # fmt: skip
    size, since, running, limit = 0, time.monotonic(), "collection", 3 * HANG
    try:
        while process.poll() is None:
            time.sleep(0.2)
            if LOG.stat().st_size > size:
                size, since = LOG.stat().st_size, time.monotonic()
                last = json.loads(LOG.read_text().splitlines()[-1])
                running = last.get("started", running)
                limit = HANG + 10 * known()[0].get(running, {}).get("wall", HANG / 4)
            if time.monotonic() > since + limit:
                return "hangs", running
    finally:
        end(process)
    for line in map(json.loads, LOG.read_text().splitlines()):
        if "failed" in line:
            return "caught", line["failed"]
    if process.returncode not in (0, 5):  # 5: no tests
        return "caught", f"{running} ends pytest with {process.returncode}"
    return "survived", ""


def judge(fault: Fault, first: str, budget: float) -> tuple[str, str]:
    """Apply a fault and run its tests; return the result and the test that caught it."""
    path = ROOT / fault.file
    text = path.read_text(BYTES) if path.exists() else ""
    place = fault.find(text)
    if place is None:
        return "gone", ""
    line, new = line_of(text, place[0]), text[: place[0]] + fault.after + text[place[1] :]
    tests = select(fault, line)
    if (ROOT / first.partition("::")[0]).is_file():
        tests.insert(0, first)
    imported = fault.part != "cpp" and "" in run_by(fault, line)
    with replaced(fault.file, text, new):
        if not is_valid(fault, new, imported):
            return "invalid", ""
        if fault.part == "cpp" and (result := run_programs())[1]:
            return result
        return run_pytest(tests, budget) if tests else ("survived", "")


def report(results: list[dict[str, Any]]) -> None:
    for part in dict.fromkeys(result["part"] for result in results):
        rows = [row for row in results if row["part"] == part and row["result"] != "invalid"]
        counts = Counter(row["result"] for row in rows)
        print(f"\n{part}:", ", ".join(f"{count} {result}" for result, count in counts.items()))
        for row in sorted(rows, key=lambda row: row["result"]):
            print(f"{row['result']:9}{row['seconds']:5.0f} s  {row['file']}:{row['line']}  "
                  f"{row['kind']}  {row['test']}")  # fmt: skip
            if row["result"] in ("survived", "gone"):
                print("\n".join(f"{sign} {line.strip()}" for sign, lines in
                                (("    -", row["before"]), ("    +", row["after"]))
                                for line in lines.split("\n")))  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--map", action="store_true", help="learn which tests run which lines")
    parser.add_argument("--part", choices=("export", "runtime", "cpp"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="number of faults (default: 20)")
    parser.add_argument("--again", type=Path, metavar="FILE", help="faults of an earlier run")
    parser.add_argument("--out", type=Path, default=WORK / "results.json", metavar="FILE")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="per fault")
    options, more = parser.parse_known_args()
    if (more and not options.map) or not (options.map or options.part or options.again):
        parser.error(f"give --map, --part or --again, not {more}")
    if options.part in ("export", "runtime") and not TIMES.exists():
        parser.error("nothing is known about the tests; run this script with --map first")
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (ROOT / "build/.mutation.lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    restore()
    if options.map:
        make_map(more)
        return

    def read(path: Path) -> dict[Fault, dict[str, Any]]:
        rows = json.loads(path.read_text()) if path.exists() else []
        return {Fault(*(row[field.name] for field in fields(Fault))): row for row in rows}

    before = read(options.again) if options.again else {}
    before = {fault: row for fault, row in before.items() if row["result"] != "invalid"}
    results = read(options.out)
    wanted = len(before) or options.count
    try:
        for fault in before or choose(options.part, options.seed):
            if wanted == 0:
                break
            if fault not in results:
                start, first = time.monotonic(), before.get(fault, {}).get("test", "")
                row = dict(
                    zip(("result", "test"), judge(fault, first, options.budget), strict=True)
                )
                seconds = round(time.monotonic() - start, 1)
                results[fault] = {**asdict(fault), **row, "seconds": seconds}
                options.out.write_text(json.dumps(list(results.values()), indent=1))
                print(row["result"], f"{fault.file}:{fault.line}", row["test"], flush=True)
            wanted -= results[fault]["result"] != "invalid"
    finally:
        if any(fault.part == "cpp" for fault in results):
            build(*CPP_RESET)
    report(list(results.values()))


if __name__ == "__main__":
    main()
