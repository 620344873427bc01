"""GEMM with emulated AMX tiles: the micro-kernel alone, and in the operators that use it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.kernels import build_kernels
from support.paths import ROOT

from translate_trt.runtime import kernels

pytestmark = pytest.mark.slow

SOURCES = ROOT / "runtime/cpp"
PROGRAM = Path(__file__).with_name("tile_product.cc")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run(command: Sequence[object], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.fixture(scope="session")
def compile_command() -> list[object]:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        pytest.skip("there is no C++ compiler")
    return [compiler, "-std=c++17", "-O2", "-Wall", "-Wextra", "-DTRANSLATE_TRT_EMULATED_TILES",
            "-I", SOURCES / "kernels"]  # fmt: skip


@pytest.fixture(scope="session")
def program(compile_command: list[object], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled test program, with sanitizers if the compiler supports them."""
    path = tmp_path_factory.mktemp("tiles") / "tile_product"
    command = [*compile_command, PROGRAM, SOURCES / "kernels/gemm8_amx.cc", "-o", path]
    if run([*command, *SANITIZERS]).returncode != 0:
        done = run(command)
        assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize("inputs", [4, 64, 68, 164])
def test_tiles_multiply(program: Path, inputs: int) -> None:
    done = run([program, str(inputs)])
    assert done.returncode == 0, done.stdout + done.stderr


def test_tiles_that_are_not_configured_stop_the_program(
    compile_command: list[object], tmp_path: Path
) -> None:
    """Like a CPU, so that the operators' test detects tasks that do not configure tiles."""
    source, path = tmp_path / "forgotten.cc", tmp_path / "forgotten"
    source.write_text('#include "tiles.h"\nint main() { translate_trt::amx::zero<0>(); }\n')
    built = run([*compile_command, source, "-o", path])
    assert built.returncode == 0, built.stderr
    assert run([path]).returncode < 0


@pytest.fixture(scope="session")
def emulating_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernel library with emulated tiles, if kernels are built and the CPU has AVX-512."""
    if not kernels.describe().startswith(("avx512_vnni", "amx_int8")):
        pytest.skip(f"compiled kernels: {kernels.status()}")
    return build_kernels(tmp_path_factory.mktemp("emulating"), "-D", "TRANSLATE_TRT_TILES=emulated")


@pytest.mark.nightly
def test_operators_by_tiles(emulating_library: Path) -> None:
    chosen = {kernels.VARIABLE: str(emulating_library)}
    code = "from translate_trt.runtime import kernels; print(kernels.status())"
    assert run([sys.executable, "-c", code], **chosen).stdout == "amx_int8 (emulated)\n"
    tests = Path(__file__).with_name("kernels")
    # With several threads, each of which configures its own tiles; floats need none.
    part = ["-k", "three and not floats"]
    done = run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *part, tests], **chosen
    )
    assert done.returncode == 0, done.stdout
    assert "skipped" not in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("model", "last"),
    [
        ("corei7_icelake_u", "avx512_vnni"),
        ("arrow_lake", "avx_vnni"),
        ("sapphire_rapids", "amx_int8"),
    ],
)
def test_kernels_on_emulated_processors(model: str, last: str) -> None:
    """C++ tests in Bochs, whose build scripts/emulate_avx512.sh describes.

    Takes minutes. Nothing else runs the instructions where the processor lacks them, nor finds
    tiles that do not survive Linux's switches between threads.
    """
    if "BOCHS" not in os.environ:
        pytest.skip("BOCHS is not set")
    done = run(["bash", ROOT / "scripts/emulate_avx512.sh"], MODEL=model)
    assert done.stdout.endswith(f" {last}\n"), done.stdout + done.stderr
