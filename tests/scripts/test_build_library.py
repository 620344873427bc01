"""scripts/build_library.sh where something lacks; test_cpp_library.py builds with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from support.paths import ROOT


def build(
    tmp_path: Path, *programs: str, cmake: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a copy of it with nothing on the path but a few programs, and others that do nothing.

    cmake: what that does instead.
    """
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "scripts", checkout / "scripts", dirs_exist_ok=True)
    path.mkdir(exist_ok=True)
    for name in ("bash", "cat", "dirname", "grep", "mkdir"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(shutil.which(name) or f"there is no {name}")
    for name in (*programs, *(["cmake"] if cmake else [])):
        (path / name).write_text(f"#!/bin/bash\n{cmake if name == 'cmake' else ''}\n")
        (path / name).chmod(0o755)
    return subprocess.run(
        [path / "bash", checkout / "scripts/build_library.sh"],
        env={"PATH": str(path), "TRANSLATE_TRT_VENV": "none", **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_it_says_what_is_missing(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("The C++ library cannot be built: there is no cmake. Install it")
    done = build(tmp_path, "cmake", "ninja", "c++", ONNXRUNTIME_INCLUDE_DIR="/nowhere")
    assert done.returncode == 3
    assert "ONNXRUNTIME_INCLUDE_DIR" in done.stderr


def test_packages_that_cannot_be_fetched(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_cxx_api.h").write_text("")
    done = build(
        tmp_path, "ninja", "c++", ONNXRUNTIME_INCLUDE_DIR=str(tmp_path),
        cmake="echo \"error: downloading 'https://index/sentencepiece.tar.gz' failed\"; exit 1",
    )  # fmt: skip
    assert done.returncode == 3
    assert "docs/embed-cpp.md" in done.stderr
    done = build(
        tmp_path, "ninja", "c++", ONNXRUNTIME_INCLUDE_DIR=str(tmp_path),
        cmake='echo "service.cc:1: error: it is broken"; exit 1',
    )  # fmt: skip
    assert done.returncode == 1
    assert "it is broken" in done.stderr
