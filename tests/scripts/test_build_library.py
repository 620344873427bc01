"""scripts/build_library.sh where something lacks; test_cpp_library.py builds with it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = "sentencepiece_processor.h", "nlohmann/json.hpp"


def build(tmp_path: Path, *programs: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a copy of it with nothing on the path but a few programs, and others that do nothing."""
    checkout, path = tmp_path / "checkout", tmp_path / "bin"
    shutil.copytree(ROOT / "scripts", checkout / "scripts", dirs_exist_ok=True)
    path.mkdir(exist_ok=True)
    for name in ("bash", "dirname", "mkdir"):
        (path / name).unlink(missing_ok=True)
        (path / name).symlink_to(shutil.which(name) or f"there is no {name}")
    for name in programs:
        (path / name).write_text("#!/bin/bash\n")
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
    assert "ONNXRUNTIME_INCLUDE_DIR is /nowhere" in done.stderr


@pytest.mark.skipif(
    all((Path("/usr/include") / name).exists() for name in PACKAGES),
    reason="the system has the packages",
)
def test_packages_that_cannot_be_had(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime_cxx_api.h").write_text("")
    done = build(tmp_path, "cmake", "ninja", "c++", ONNXRUNTIME_INCLUDE_DIR=str(tmp_path))
    assert done.returncode == 3
    assert "Install libsentencepiece-dev and nlohmann-json3-dev" in done.stderr
    assert not (tmp_path / "checkout/build").exists()
