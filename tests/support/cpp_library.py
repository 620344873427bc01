"""libtranslate_trt, built once per test run, and programs that use it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnxruntime
import pytest
from filelock import FileLock

from support.paths import ROOT
from support.translations import rounding
from translate_trt.runtime import kernels
from translate_trt.runtime.results import Hypothesis, Translation

SUPPRESSIONS = ROOT / "runtime/cpp/tests"

#: Search options for comparisons of the library with Python.
SEARCHES: list[dict[str, Any]] = [
    {}, {"beam_size": 1},
    {"beam_size": 6, "num_hypotheses": 6, "length_penalty": 1.0, "length_penalty_form": "length"},
    {"early_stopping": True, "num_hypotheses": 3}, {"max_length": 5, "num_hypotheses": 4},
    {"max_extra_length": 0}, {"min_length": 12, "length_penalty": 0.0},
    {"beam_size": 2, "return_attention": True},
    {"beam_size": 2, "alternatives": 5, "min_alternative_prob": 0.01},
]  # fmt: skip


def onnxruntime_library() -> Path:
    """Return the path of ONNX Runtime's shared library in its Python package."""
    found = sorted(Path(onnxruntime.__file__).with_name("capi").glob("libonnxruntime.so.*"))
    if not found:
        pytest.skip("Python's onnxruntime has no library for C here")
    return found[0]


def environment() -> dict[str, str]:
    """Return an environment in which programs find Python's ONNX Runtime and kernels."""
    return {
        **os.environ,
        "TRANSLATE_TRT_VENV": "none",
        "TRANSLATE_TRT_ONNXRUNTIME": str(onnxruntime_library()),
        "TRANSLATE_TRT_KERNELS": str(kernels.library() or "none"),
    }


def build(sanitize: str = "", prefix: str = "") -> Path:
    """Run scripts/build_library.sh and return its build folder; skip if a tool is missing.

    A build with sanitizers omits kernels that the processor cannot run, which take long to compile.
    """
    (ROOT / "build").mkdir(exist_ok=True)
    options = ["-D", "TRANSLATE_TRT_TESTS=ON"]
    if sanitize and kernels.status() == kernels.PORTABLE:
        options += ["-D", "TRANSLATE_TRT_X86_64=OFF"]
    elif sanitize:
        if kernels.status() in ("avx2", "avx_vnni"):
            options += ["-D", "TRANSLATE_TRT_AVX512=OFF"]
        if kernels.status() != "avx_vnni":
            options += ["-D", "TRANSLATE_TRT_AVX_VNNI=OFF"]
    with FileLock(ROOT / "build/.tests.lock"):  # another process of the tests may need it as well
        done = subprocess.run(
            ["bash", ROOT / "scripts/build_library.sh", *options],
            env={**environment(), "SANITIZE": sanitize, "PREFIX": prefix},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    return ROOT / "build" / (f"native-{sanitize.partition(',')[0]}" if sanitize else "native")


@dataclass(frozen=True)
class Library:
    """An installed build of the library.

    Attributes:
        folder: of the build.
        prefix: of the installation, if there is one.
        sanitize: as of scripts/build_library.sh.
    """

    folder: Path
    prefix: Path | None = None
    sanitize: str = ""

    def environment(self) -> dict[str, str]:
        """Return the environment for programs of the build."""
        found = environment()
        if self.sanitize == "thread":
            found["TSAN_OPTIONS"] = f"suppressions={SUPPRESSIONS / 'thread.supp'}"
        elif self.sanitize:
            found["LSAN_OPTIONS"] = f"suppressions={SUPPRESSIONS / 'leak.supp'}"
            found["UBSAN_OPTIONS"] = "print_stacktrace=1"
        return found

    def run(self, name: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a test program to its end."""
        command = [*self._start(), self.folder / "tests" / name, *arguments]
        return subprocess.run(
            command, env=self.environment(), input=stdin, capture_output=True, text=True,
            check=False,
        )  # fmt: skip

    def installed(self, name: str) -> Path:
        """Return the path of an installed file of that name."""
        assert self.prefix is not None
        (found,) = self.prefix.glob(f"lib*/**/{name}")
        return found

    def compile_c(self, code: str, place: Path | None = None) -> Path:
        """Compile a strict C99 program with the flags of pkg-config; skip without a compiler.

        It looks for the library in `place`, or in the installation's folder.
        """
        compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None or shutil.which("pkg-config") is None:
            pytest.skip("there is no C compiler, or no pkg-config")
        folder = self.installed("translate_trt.pc").parent
        environment = {**self.environment(), "PKG_CONFIG_PATH": str(folder)}
        flags = subprocess.run(
            ["pkg-config", "--cflags", "--libs", "translate_trt"], env=environment,
            capture_output=True, text=True, check=True,
        ).stdout.split()  # fmt: skip
        assert self.prefix is not None
        source, program = self.prefix / "program.c", self.prefix / "program"
        source.write_text(code)
        strict = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"]
        rpath = f"-Wl,-rpath,{place or folder.parent}"
        done = subprocess.run(
            [compiler, *strict, source, "-o", program, *flags, rpath], env=environment,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return program

    def probe(self, name: str = "translate_trt_probe", **environment: str) -> Probe:
        """Start a program that answers requests: the probe, which translates, or another one."""
        command = [*self._start(), self.folder / "tests" / name]
        return Probe(command, {**self.environment(), **environment})

    def _start(self) -> list[str]:
        # ThreadSanitizer of GCC 12 does not support all load addresses that newer kernels choose.
        command = ["setarch", "--addr-no-randomize"]
        if self.sanitize != "thread" or shutil.which("setarch") is None:
            return []
        permitted = subprocess.run([*command, "true"], capture_output=True, check=False)
        return command if permitted.returncode == 0 else []


def exported(path: Path) -> set[str]:
    """Return the names that a library exports; skip without nm."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    done = subprocess.run(
        ["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True
    )
    names = {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}
    return names - {"TRANSLATE_TRT_0"}


def declared(*headers: Path) -> set[str]:
    """Return the functions that headers declare."""
    text = "".join(header.read_text() for header in headers)
    return set(re.findall(r"^TT_API [\w *]+?(tt_\w+)\(", text, re.MULTILINE))


class Probe:
    """A process of runtime/cpp/tests/probe.cc, or of another program that answers requests."""

    def __init__(self, command: Sequence[str | Path], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command, env=environment, text=True, encoding="utf-8",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    @property
    def process_id(self) -> int:
        """Return the process id."""
        return self._process.pid

    def ask(self, **request: Any) -> Any:
        """Send a request and return the answer; fail if the process ends without one."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            pytest.fail(f"the program ended: {self._process.communicate()[1]}")
        return json.loads(answer)

    def load(self, bundle: Path, **options: Any) -> Any:
        """Load a bundle and return its description; fail on an error."""
        answer = self.ask(load={"bundle": str(bundle), **options})
        assert "error" not in answer, answer
        return answer

    def refuses(self, bundle: Path, **options: Any) -> tuple[str, str]:
        """Load a bundle that is refused; return status and message of the error."""
        status, message = self.ask(load={"bundle": str(bundle), **options})["error"]
        return status, message

    def close(self) -> str:
        """End the process and return its stderr; fail if it ends with an error."""
        _, errors = self._process.communicate()
        assert self._process.returncode == 0, errors
        return errors

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is None:
            self.close()
        else:
            self._process.kill()
            self._process.communicate()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """Installed library."""
    prefix = tmp_path_factory.mktemp("installed")
    return Library(build(prefix=str(prefix)), prefix)


@pytest.fixture(scope="session", params=["address,undefined", "thread"])
def sanitized(request: pytest.FixtureRequest, library: Library) -> Library:
    """Library built with sanitizers."""
    return Library(build(request.param), sanitize=request.param)


@pytest.fixture
def probe(library: Library) -> Iterator[Probe]:
    """Running probe, which must end without an error."""
    with library.probe() as program:
        yield program


def assert_same_hypothesis(found: Any, expected: Hypothesis) -> None:
    """Compare bit by bit where kernels make rounding independent of the batch."""
    tolerance = rounding()
    assert tuple(found["tokens"]) == tuple(expected.tokens)
    assert found["truncated"] == expected.truncated
    assert found["score"] == pytest.approx(expected.score, rel=0, abs=tolerance)
    assert found["token_log_probs"] == pytest.approx(
        list(expected.token_log_probs), rel=0, abs=tolerance
    )
    attention = np.array(found["attention"], np.float32)
    right = np.zeros(0) if expected.attention is None else expected.attention
    np.testing.assert_allclose(attention, right, rtol=0, atol=tolerance)


def assert_same_translations(found: Any, expected: Sequence[Translation]) -> None:
    """Compare translations as `assert_same_hypothesis` does."""
    tolerance = rounding()
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs.hypotheses, strict=True):
            assert one["text"] == other.text
            # From Python 3.12 on, sums of floats are rounded otherwise.
            assert one["score"] == pytest.approx(other.score, rel=1e-12, abs=9 * tolerance)
            for segment, right in zip(one["pieces"], other.segments, strict=True):
                assert_same_hypothesis(segment, right)


def texts(found: Any) -> list[str]:
    """Return the best translation of each line."""
    return [line[0]["text"] for line in found]
