"""scripts/build_kernels.sh and build_library.sh with programs that pretend, and with real ones.

test_cpp_library.py builds with build_library.sh.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

NAME = "libtranslate_trt_kernels.so"
HEADER = "onnxruntime_cxx_api.h"


NEEDED = ("bash", "dirname", "cat", "awk", "cmp", "cp", "grep", "mkdir", "mktemp", "mv", "rm")
CMAKE = f"""#!/bin/bash
echo "cmake $*" >>"$CALLS"
[ -z "${{BROKEN:-}}" ] || {{ echo "kernels.cc:1: error: it is broken"; exit 1; }}
if [ "$1" = --build ]; then mkdir -p "$2"; echo "${{CONTENT:-library}}" >"$2/{NAME}"; fi
"""


class Checkout:
    """A copy of the scripts, and a path with nothing on it but what a test puts there."""

    def __init__(self, directory: Path) -> None:
        self.root, self.bin = directory / "checkout", directory / "bin"
        self.calls = directory / "calls"
        self.library = self.root / "runtime/kernels" / NAME
        shutil.copytree(ROOT / "scripts", self.root / "scripts")
        self.library.parent.mkdir(parents=True)
        self.has_real(*NEEDED)

    def has(self, **programs: str) -> None:
        for name, content in programs.items():
            path = self.bin / name.replace("_", "-").replace("cxx", "c++")
            path.write_text(content)
            path.chmod(0o755)

    def has_tools(self) -> None:
        self.has(cmake=CMAKE, ninja="", cxx="")

    def has_real(self, *programs: str) -> None:
        self.bin.mkdir(exist_ok=True)
        for name in programs:
            (self.bin / name).symlink_to(shutil.which(name) or f"there is no {name}")

    def run(
        self, command: str, timeout: float = 60, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        given = {"PATH": str(self.bin), "CALLS": str(self.calls), "TRANSLATE_TRT_VENV": "none"}
        return subprocess.run(
            [self.bin / "bash", "-c", command],
            env={**given, **environment},
            cwd=self.root,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def build(self, what: str = "kernels", **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run(f"bash scripts/build_{what}.sh", **environment)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


@pytest.fixture
def headers(tmp_path: Path) -> str:
    place = tmp_path / "headers"
    place.mkdir()
    (place / HEADER).write_text("")
    return str(place)


def test_it_says_which_tool_is_missing(checkout: Checkout) -> None:
    for message, programs in (
        ("there is no cmake. Install it, for example: apt-get install", {"cmake": CMAKE}),
        ("there is neither ninja nor make. Install one", {"make": ""}),
        ("there is no C++ compiler. Install one: apt-get install g++", {"cxx": ""}),
    ):
        done = checkout.build(ONNXRUNTIME_INCLUDE_DIR="/nowhere")
        assert done.returncode == 3
        assert done.stderr.startswith(f"The compiled kernels cannot be built: {message}")
        checkout.has(**programs)
    done = checkout.build(ONNXRUNTIME_INCLUDE_DIR="/nowhere")
    assert done.returncode == 3
    assert f"ONNXRUNTIME_INCLUDE_DIR is /nowhere, which has no {HEADER}" in done.stderr
    assert not checkout.calls.exists()


def test_a_library_is_replaced_if_it_has_changed_and_never_written_to(
    checkout: Checkout, headers: str
) -> None:
    checkout.has_tools()
    checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers)
    first = checkout.library.stat()  # not with its time of access: the comparison reads it
    again = checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers)
    assert again.stderr == ""
    second = checkout.library.stat()
    assert (second.st_ino, second.st_mtime_ns) == (first.st_ino, first.st_mtime_ns)
    with checkout.library.open() as loaded:
        changed = checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers, CONTENT="another")
        assert f"runtime/kernels/{NAME}" in changed.stderr
        assert loaded.read() == "library\n"
    assert checkout.library.read_text() == "another\n"


def test_a_build_that_fails_shows_why_and_leaves_the_library(
    checkout: Checkout, headers: str
) -> None:
    checkout.has_tools()
    checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers)
    done = checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers, BROKEN="1")
    assert done.returncode == 1
    assert "kernels.cc:1" in done.stderr
    assert checkout.library.read_text() == "library\n"


# ---- the C++ library ----


def test_what_the_library_lacks_is_told(checkout: Checkout) -> None:
    done = checkout.build("library")
    assert done.returncode == 3
    assert done.stderr.startswith("The C++ library cannot be built: there is no cmake. Install it")
    checkout.has_tools()
    done = checkout.build("library", ONNXRUNTIME_INCLUDE_DIR="/nowhere")
    assert done.returncode == 3
    assert "ONNXRUNTIME_INCLUDE_DIR" in done.stderr


@pytest.mark.parametrize(
    ("message", "status", "shown"),
    [
        ("downloading 'https://index/sentencepiece.tar.gz' failed", 3, "docs/embed-cpp.md"),
        ("it is broken", 1, "it is broken"),
    ],
)
def test_packages_that_cannot_be_fetched(
    message: str, status: int, shown: str, checkout: Checkout, headers: str
) -> None:
    checkout.has(cmake=f'#!/bin/bash\necho "error: {message}"; exit 1\n', ninja="", cxx="")
    done = checkout.build("library", ONNXRUNTIME_INCLUDE_DIR=headers)
    assert done.returncode == status
    assert shown in done.stderr


# ---- CMake ----


needs_tools = pytest.mark.skipif(
    not all(map(shutil.which, ("cmake", "c++", "make", "ninja"))),
    reason="there is no cmake, make, ninja or C++ compiler",
)
# In place of runtime/cpp/CMakeLists.txt: it compiles nothing.
PROJECT = f"""
cmake_minimum_required(VERSION 3.18)
project(library NONE)
add_custom_target(library ALL COMMAND ${{CMAKE_COMMAND}} -E touch {NAME})
"""


@needs_tools
def test_a_build_folder_outlives_its_ninja_and_its_checkout(
    checkout: Checkout, headers: str
) -> None:
    """As after two installations by pip, whose environments for builds are temporary."""
    source = checkout.root / "runtime/cpp/CMakeLists.txt"
    source.parent.mkdir(parents=True)
    source.write_text(PROJECT)
    checkout.has(cxx="")
    checkout.has_real("cmake", "make")

    def build(ninja: Path | None = None) -> bool:
        """Return whether the build folder has been kept."""
        kept = checkout.root / "build/native/kept"
        path = f"{checkout.bin}:{ninja}" if ninja else str(checkout.bin)
        done = checkout.build(ONNXRUNTIME_INCLUDE_DIR=headers, PATH=path)
        assert done.returncode == 0, done.stderr
        if kept.exists():
            return True
        kept.touch()
        return False

    for name, kept in (("first", False), ("second", True)):
        ninja = checkout.root.parent / name
        ninja.mkdir()
        (ninja / "ninja").symlink_to(shutil.which("ninja") or "")
        assert build(ninja) == kept
        shutil.rmtree(ninja)
    assert not build()  # with make
    assert build()
    checkout.root = checkout.root.rename(checkout.root.with_name("moved"))
    assert not build()


@pytest.mark.nightly
@needs_tools
def test_a_wheel_is_a_compiler(checkout: Checkout, compiled_bundle: Path) -> None:
    """Zig's library has the kernels of the system compiler's, and finds the same to the bit."""
    pytest.importorskip("ziglang", reason="ziglang, of the extra `nightly`, is not installed")
    for name in ("runtime/cpp", ".cache/onnxruntime"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, checkout.root / name, symlinks=True)
    shutil.copy(ROOT / "pyproject.toml", checkout.root)
    (checkout.root / "runtime/native").mkdir()
    checkout.has_real("cmake", "ninja", "chmod", "flock", "getconf", "sh")
    done = checkout.run(
        "bash scripts/build_library.sh", timeout=1800,
        PYTHON=sys.executable, HOME=os.environ.get("HOME", "/"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    built = checkout.root / "runtime"
    libraries = {
        "TRANSLATE_TRT_LIBRARY": str(built / "native/libtranslate_trt.so"),
        "TRANSLATE_TRT_KERNELS": str(built / "kernels" / NAME),
    }
    assert _found(compiled_bundle, libraries) == _found(compiled_bundle, {})


def _found(bundle: Path, environment: dict[str, str]) -> str:
    """Kernels and hypotheses of a process with these variables."""
    program = (
        "import sys; from translate_trt.runtime import SearchOptions, Translator, kernels\n"
        "print(kernels.status())\n"
        "for target in ('onnx-fp32', 'onnx-int8'):\n"
        "    translator = Translator(sys.argv[1], target, threads=1)\n"
        "    sources = [[*range(4, n)] for n in range(5, 25)]\n"
        "    print(translator.translate_ids(sources, SearchOptions(num_hypotheses=4)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, bundle], env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_other_scripts_go_on_where_it_cannot_be_built(checkout: Checkout, headers: str) -> None:
    command = 'source scripts/environment.sh; make_libraries "They will be skipped."; echo going on'
    done = checkout.run(command)
    assert (done.returncode, done.stdout) == (0, "going on\n")
    assert done.stderr.endswith("\nThey will be skipped.\n")
    checkout.has_tools()
    done = checkout.run(command, ONNXRUNTIME_INCLUDE_DIR=headers, BROKEN="1")
    assert (done.returncode, done.stdout) == (1, "")
