"""Bundles damaged at random, with matching hashes: both runtimes accept them or report an error.

ONNX Runtime reads the graphs without prior checks of ours. For graphs the test only checks that its
errors become ours: changed numbers are no errors.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import damage
from support.cpp_library import Library, build

from translate_trt.runtime import errors

pytestmark = pytest.mark.slow

SEED = 2018
KINDS = {
    "onnx-fp32": {"manifest": 240, "tokenizer": 80, "graph": 80},
    "onnx-fp32-shortlist": {"manifest": 70, "graph": 30},
}
OPTIONS = {"beam_size": 2, "max_length": 6}
LINES = ["the cat runs.", "a"]

#: How a request was answered: a status, "fine" or an error's, and the error's message.
Ask = Callable[[Path], list[str]]

#: Memory of a process in bytes: what asks for more is told, and this machine has it to spare.
MEMORY = 8 * 2**30


@contextmanager
def python() -> Iterator[Ask]:
    """The Python runtime in a separate process."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({MEMORY}, {MEMORY}))"
    program = f"{limit}; import runpy, sys; runpy.run_path({damage.__file__!r}, None, '__main__')"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True, env={**os.environ, "TRANSLATE_TRT_KERNELS": "none"},
    ) as process:  # fmt: skip

        def ask(bundle: Path) -> list[str]:
            assert process.stdin is not None
            assert process.stdout is not None
            request = {"bundle": str(bundle), "lines": LINES, "options": OPTIONS}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
            assert answer, "the process ended"
            found: list[str] = json.loads(answer)
            return found

        yield ask


@contextmanager
def cpp(library: Library) -> Iterator[Ask]:
    """The C++ library in a process with sanitizers."""
    with library.probe(TRANSLATE_TRT_KERNELS="none", **allocations()) as probe:

        def ask(bundle: Path) -> list[str]:
            answer: dict[str, Any] = probe.ask(load={"bundle": str(bundle), "threads": 1})
            if "error" not in answer:
                answer = probe.ask(lines=LINES, options=OPTIONS)
            return answer.get("error", ["fine", ""])  # type: ignore[no-any-return]

        yield ask


def allocations() -> dict[str, str]:
    """Return settings with which AddressSanitizer fails allocations instead of aborting."""
    return {"ASAN_OPTIONS": f"allocator_may_return_null=1:max_allocation_size_mb={MEMORY >> 20}"}


def told(ask: Ask, bundles: dict[str, Path], place: Path) -> dict[str, int]:
    """Count the results of damaged copies; fail on any unexpected result.

    Args:
        ask: a runtime.
        bundles: by the target that is taken of each.
        place: a folder for the copies.
    """
    ours = {name for name in vars(errors) if name.endswith("Error")}
    ours |= {"TT_BUNDLE_ERROR", "TT_OPTION_ERROR", "TT_BACKEND_ERROR", "TT_MEMORY_ERROR"}
    counts: dict[str, int] = {}
    for target, bundle in bundles.items():
        for case in damage.damaged(bundle, target, place, SEED, KINDS[target]):
            status, message = ask(case.bundle)
            assert status in {"fine", *ours}, (case, status, message)
            assert status == "fine" or message, case
            counts[status] = counts.get(status, 0) + 1
            shutil.rmtree(case.bundle)
    return counts


@pytest.fixture(scope="module")
def bundles(compiled_bundle: Path, shortlist_bundle: Path) -> dict[str, Path]:
    return {"onnx-fp32": compiled_bundle, "onnx-fp32-shortlist": shortlist_bundle}


def test_python_says_what_is_wrong(bundles: dict[str, Path], tmp_path: Path) -> None:
    with python() as ask:
        counts = told(ask, bundles, tmp_path)
    assert sum(counts.values()) == 500
    assert counts["BundleError"] > 200  # the damage does reach what reads the files
    assert counts["fine"] > 20


@pytest.mark.parametrize(
    "sanitize", ["", pytest.param("address,undefined", marks=pytest.mark.nightly)]
)
def test_cpp_says_what_is_wrong(bundles: dict[str, Path], tmp_path: Path, sanitize: str) -> None:
    library = Library(build(sanitize), sanitize=sanitize)
    with cpp(library) as ask:
        counts = told(ask, bundles, tmp_path)
    assert sum(counts.values()) == 500
    assert counts["TT_BUNDLE_ERROR"] > 200
    assert counts["fine"] > 20


@pytest.mark.parametrize(
    ("group", "name"), [("encoder_outputs", "cross_key_0"), ("state", "self_value_1")]
)
def test_sizes_beyond_any_model(
    compiled_bundle: Path, tmp_path: Path, group: str, name: str
) -> None:
    bundle = Path(shutil.copytree(compiled_bundle, tmp_path / "bundle"))
    path = bundle / "manifest.json"
    for value in (10**9, 2**63 - 1, 2**63):
        manifest = json.loads(path.read_text())
        for target in manifest["targets"].values():
            target["contract"][group][name]["axes"][1] = value
        path.write_text(json.dumps(manifest))
        with python() as ask:
            status, message = ask(bundle)
        assert status in ("BundleError", "BackendError"), message
