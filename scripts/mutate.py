#!/usr/bin/env python3
"""Mutation testing: apply small faults to the code one by one, and record which test catches each.

    python scripts/mutate.py --map [arguments of pytest]    # which tests run which lines
    python scripts/mutate.py --part export --seed 48 --count 20 --out before.json
    python scripts/mutate.py --again before.json --out after.json    # after --map, if tests changed

Parts are export (train/ and export/), runtime (its Python) and cpp (runtime/cpp). A fault is a
flipped comparison, a negated condition, an exchanged operator, an integer off by one, two swapped
arguments, or a dropped statement. Lines are drawn evenly from all that offer one; a fault that does
not compile or import is replaced. --again applies the faults of a file to the current sources by
the text of their lines; a fault whose lines no longer exist is gone. A run continues an earlier one
of its --out.

Tests of a fault, neither nightly nor with sanitizers, in order until one fails:

1. with --again, the test that caught the fault before, if its file still exists;
2. in C++, the unit tests and kernel tests of the rebuilt library, then CPP_TESTS;
3. in Python, tests of the quick tier that run a line of the fault, also in processes that they
   start (--map keeps them in build/mutation), then all tests of files that name the module. Files
   whose selected tests take the least processor time come first, those without a known time last.

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
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build/mutation"
COVERAGE, TIMES, LOG = WORK / "coveragerc", WORK / "times.jsonl", WORK / "log.jsonl"
HANG = 120.0
BYTES = "latin-1"  # for texts of one character per byte, the unit of columns in ast

CPP_PROGRAMS = ("translate_trt_unit_tests", "translate_trt_kernel_tests")
CPP_TESTS = [f"tests/runtime/{name}" for name in (
    "kernels", "text/test_cpp_markup.py", "text/test_cpp_markup_tokens.py",
    "text/test_glossary_library.py", "test_translator.py", "test_constraints.py",
    "test_sampling.py", "test_alternatives.py", "test_score.py", "test_loops.py",
    "test_translate_markup.py", "test_service.py", "test_search_operators.py", "test_kernels.py",
    "test_native.py", "test_cpp_library.py", "test_cpp_jobs.py",
)]  # fmt: skip
# Kernels for other processors are neither mutated nor built.
CPP_OPTIONS = ("-D", "TRANSLATE_TRT_AVX512=OFF", "-D", "TRANSLATE_TRT_AVX_VNNI=OFF")
CPP_RESET = ("-D", "TRANSLATE_TRT_AVX512=ON", "-U", "TRANSLATE_TRT_AVX_VNNI")
OTHER_FILES = re.compile(r"src/(?:cuda|tensorrt)/|(?:avx512|avxvnni|amx|neon|tiles)[^/]*$")
OTHER_CODE = re.compile(r"AVX512|VNNI|AMX|TILES|NEON|aarch64|__ARM|_WIN32|__APPLE__|CUDA")


# ---- in the process of pytest, with -p mutate ----


def log(**values: object) -> None:
    with open(os.environ["MUTATE_LOG"], "a") as file:
        file.write(json.dumps(values) + "\n")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests, files and folders of MUTATE_TESTS, in its order."""
    if names := os.environ.get("MUTATE_TESTS"):
        order = {name: rank for rank, name in enumerate(Path(names).read_text().splitlines())}

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


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        log(failed=report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        log(failed=report.nodeid)


# ---- faults ----


@dataclass(frozen=True)
class Fault:
    """A change of whole lines, of which the first had the number `line` when it was chosen."""

    part: str
    file: str
    line: int
    kind: str
    before: str
    after: str

    def find(self, text: str) -> tuple[int, int] | None:
        """Return the place of the lines in a text, the nearest to `line` if several match."""
        found = [match.span() for match in re.finditer(rf"^{re.escape(self.before)}$", text, re.M)]
        return min(found, key=lambda at: abs(line_of(text, at[0]) - self.line), default=None)


Edit = tuple[str, int, int, str]  # kind, start, end, new text
FLIPPED = {
    "<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",),
    "!=": ("==",), "is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",),
    "and": ("or",), "or": ("and",), "&&": ("||",), "||": ("&&",), "+": ("-",), "-": ("+",),
    "*": ("+",), "/": ("*",), "//": ("*",),
}  # fmt: skip
OPERATOR = re.compile(r"\b(?:is not|not in|is|in|and|or)\b|[<>=!]=|//|[<>+*/-]")


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def python_edits(text: str) -> Iterator[Edit]:
    """Yield the edits of a module; strings and annotations have none."""
    starts = [0, *accumulate(len(line) + 1 for line in text.split("\n"))]

    def span(node: Any) -> tuple[int, int]:
        return (starts[node.lineno - 1] + node.col_offset,
                starts[node.end_lineno - 1] + node.end_col_offset)  # fmt: skip

    def exchange(kind: str, left: ast.AST, right: ast.AST) -> Iterator[Edit]:
        if found := OPERATOR.search(text, span(left)[1], span(right)[0]):
            for new in FLIPPED[found[0]]:
                yield kind, *found.span(), new

    pending: list[ast.AST] = [ast.parse(text.encode(BYTES))]
    while pending:
        match node := pending.pop():
            case ast.JoinedStr():  # its positions are wrong before Python 3.12
                continue
            case ast.Compare():
                yield from exchange("comparison", node.left, node.comparators[0])
            case ast.BoolOp():
                yield from exchange("condition", *node.values[:2])
            case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div() | ast.FloorDiv()):
                yield from exchange("operator", node.left, node.right)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                condition = text[slice(*span(test))]
                if condition != "TYPE_CHECKING":
                    yield "condition", *span(test), f"not ({condition})"
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield "off by one", *span(node), str(value + 1)
            case ast.Call(args=[one, other, *_]) if type(one) is type(other):
                (a, b), (c, d) = span(one), span(other)
                yield "arguments", a, d, text[c:d] + text[b:c] + text[a:b]
            case (ast.AugAssign() | ast.Raise() | ast.Continue() | ast.Break()
                  | ast.Expr(value=ast.Call())
                  | ast.Assign(targets=[ast.Attribute() | ast.Subscript()])):  # fmt: skip
                yield "statement", *span(node), "pass"
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns"):
                children = value if isinstance(value, list) else [value]
                pending += [child for child in children if isinstance(child, ast.AST)]


NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/|R\"(\w*)\(.*?\)\1\"|\"(?:\\.|[^\"\\\n])*\"|(?<!\w)'(?:\\.|[^'\\\n])+'"
    r"|static_assert\([^;]*;",
    re.S,
)
CPP_EDITS = [
    ("comparison", re.compile(r"(?<= )(?:[<>=!]=|[<>])(?= )")),
    ("condition", re.compile(r"(?<= )(?:&&|\|\|)(?= )")),
    ("operator", re.compile(r"(?<=[\w)\]] )[+*/-](?= [\w(])")),
    ("off by one", re.compile(r"(?<![\w.'])\d+(?![\w.'])")),
    ("condition", re.compile(r"(?<=if \()[^\n{}]+(?=\) (?:\{|return\b|continue;|break;))")),
    ("arguments", re.compile(r"(?<=\w\()(\w[\w.>-]*), (\w[\w.>-]*)(?=[,)])")),
    ("statement", re.compile(r"(?<=[;{}]\n)( +)(?!return|using|throw|case|else|auto|const)"
                             r"[\w\].>:(\[-]+(?:\([^\n;]*\)| [+*|&/-]?= [^\n;]+);(?=\s*$)", re.M)),
]  # fmt: skip


def cpp_edits(text: str) -> Iterator[Edit]:
    """Yield edits outside of comments, strings, the preprocessor's lines and what it omits here."""
    code = NOT_CODE.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
    lines, omitted, continued = code.split("\n"), [False], False
    for number, line in enumerate(lines):
        directive = line.lstrip().startswith("#") or continued
        continued = directive and line.endswith("\\")
        word = re.match(r"\s*#\s*(ifndef|if|elif|else|endif)", line)
        if word and word[1] == "endif":
            omitted.pop()
        elif word and word[1] in ("if", "ifndef"):
            omitted.append(word[1] == "if" and bool(OTHER_CODE.search(line)))
        elif word:
            omitted[-1] = bool(OTHER_CODE.search(line))
        if directive or any(omitted):
            lines[number] = " " * len(line)
    code = "\n".join(lines)
    for kind, pattern in CPP_EDITS:
        for found in pattern.finditer(code):
            start, end = found.span()
            if kind == "arguments":
                yield kind, start, end, f"{found[2]}, {found[1]}"
            elif kind == "statement":
                yield kind, start, end, found[1] + "{}"
            elif kind == "off by one":
                yield kind, start, end, str(int(found[0]) + 1)
            else:
                for new in FLIPPED.get(found[0], (f"!({text[start:end]})",)):
                    yield kind, start, end, new


def choose(part: str, seed: int) -> Iterator[Fault]:
    """Yield faults in random order, at most one per line."""
    folders = {"export": ("train", "export"), "runtime": ("runtime",),
               "cpp": ("runtime/cpp/src", "runtime/cpp/kernels")}[part]  # fmt: skip
    edits, endings = (cpp_edits, (".cc", ".h")) if part == "cpp" else (python_edits, (".py",))
    lines: dict[tuple[str, int], list[Fault]] = {}
    for path in (path for folder in folders for path in (ROOT / folder).rglob("*")):
        file = str(path.relative_to(ROOT))
        if path.suffix not in endings or (part == "cpp" and OTHER_FILES.search(file)):
            continue
        text = path.read_text(BYTES)
        for kind, start, end, new in edits(text):
            first, last = text.rfind("\n", 0, start) + 1, text.index("\n", end)
            before, after = text[first:last], text[first:start] + new + text[end:last]
            fault = Fault(part, file, line_of(text, start), kind, before, after)
            if before != after:
                lines.setdefault((file, fault.line), []).append(fault)
    chance = random.Random(f"{part} {seed}")
    for place in chance.sample(sorted(lines), len(lines)):
        yield chance.choice(lines[place])


# ---- tests of a fault ----


@functools.cache
def times() -> dict[str, dict[str, Any]]:
    """Processor seconds and wall time of the tests that passed in the run of --map."""
    if not TIMES.exists():
        sys.exit("Nothing is known about the tests; run python scripts/mutate.py --map first.")
    lines = [json.loads(line) for line in TIMES.read_text().splitlines()]
    failed = {line["failed"] for line in lines if "failed" in line}
    return {line["ended"]: line for line in lines if line.get("ended", "") not in {"", *failed}}


@functools.cache
def contexts(file: str) -> dict[int, list[str]]:
    from coverage import CoverageData

    data = CoverageData(str(WORK / "lines"))
    data.read()
    return data.contexts_by_lineno(str(ROOT / file))


def module(file: str) -> str:
    return "translate_trt." + file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def run_by(fault: Fault, line: int) -> set[str]:
    """Return the tests that run lines of the fault, which begins at `line`; "" is an import."""
    lines = range(line, line + fault.before.count("\n") + 1)
    return {test for line in lines for test in contexts(fault.file).get(line, ())}


def select(fault: Fault, line: int) -> list[str]:
    """Return tests and files in the order in which they run."""
    if fault.part == "cpp":
        return [name for name in CPP_TESTS if (ROOT / name).exists()]
    package, _, name = module(fault.file).rpartition(".")
    imported = r"(?:\.| import (?:\([^)]*?|[^(\n]*?)\b)"
    naming = re.compile(rf"\b{re.escape(package)}{imported}{name}\b")
    files: dict[str, list[str]] = {}
    for test in sorted(run_by(fault, line) & times().keys()):
        files.setdefault(test.partition("::")[0], []).append(test)
    known: dict[str, float] = {}
    for test, taken in times().items():
        file = test.partition("::")[0]
        known[file] = known.get(file, 0.0) + taken["used"]
    tests = [str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")
             if naming.search(path.read_text())]  # fmt: skip
    running = sorted(files, key=lambda file: sum(times()[test]["used"] for test in files[file]))
    naming_files = sorted(tests, key=lambda file: (known.get(file, float("inf")), file))
    return [*(test for file in running for test in files[file]), *naming_files]


# ---- running ----


def start_pytest(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    paths = [str(ROOT / "scripts"), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-p", "no:cacheprovider"]
    return subprocess.Popen(
        [*command, *arguments], cwd=ROOT, env={**os.environ, **settings, **environment},
        stdout=sys.stderr, start_new_session=True,
    )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process and those that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def make_map(arguments: list[str]) -> None:
    """Run the quick tier once, and keep the lines and times of its tests."""
    shutil.rmtree(WORK)
    WORK.mkdir()
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
    command = [sys.executable, "-m", "coverage", "combine", "-q", f"--rcfile={COVERAGE}", str(WORK)]
    subprocess.run(command, check=True)


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
        "-x", "-m", "not nightly", *files,
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
                limit = HANG + 10 * times().get(running, {}).get("wall", HANG / 4)
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
    for fault in before or choose(options.part, options.seed):
        if wanted == 0:
            break
        if fault not in results:
            start = time.monotonic()
            result, test = judge(fault, before.get(fault, {}).get("test", ""), options.budget)
            seconds = round(time.monotonic() - start, 1)
            results[fault] = {**asdict(fault), "result": result, "test": test, "seconds": seconds}
            options.out.write_text(json.dumps(list(results.values()), indent=1))
            print(f"{result}: {fault.file}:{fault.line} {fault.kind} {test}", flush=True)
        wanted -= results[fault]["result"] != "invalid"
    if any(fault.part == "cpp" for fault in results):
        build(*CPP_RESET)
    report(list(results.values()))


if __name__ == "__main__":
    main()
