"""Loading of cuBLASLt from its packages; no library is there."""

from __future__ import annotations

import ctypes
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.paths import ROOT

from translate_trt.runtime.backends import cublas
from translate_trt.runtime.backends.cublas import load_cublas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of Linux")

CUDA12, CUDA13 = "cublas/lib/libcublasLt.so.12", "cu13/lib/libcublasLt.so.13"


@pytest.mark.parametrize(
    ("installed", "driver", "broken", "loaded"),
    [
        ((CUDA12, CUDA13), "13.0", (), CUDA13),
        ((CUDA12, CUDA13), "12.8", (), CUDA12),
        ((CUDA12, CUDA13), None, (), CUDA13),
        ((CUDA12, CUDA13), "13.0", (CUDA13,), CUDA12),
        ((CUDA13,), "12.8", (), None),
        ((), "13.0", (), None),
    ],
)
def test_the_newest_library_that_the_driver_supports(
    installed: tuple[str, ...],
    driver: str | None,
    broken: tuple[str, ...],
    loaded: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in installed:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    opened: list[str] = []

    def load(path: str, mode: int) -> None:
        assert mode == ctypes.RTLD_GLOBAL
        if any(path.endswith(name) for name in broken):
            raise OSError("invalid ELF header")
        opened.append(path)

    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(cublas.importlib.util, "find_spec", lambda _: spec)
    monkeypatch.setattr(cublas, "driver_version", lambda: driver)
    monkeypatch.setattr(cublas.ctypes, "CDLL", load)
    expected = None if loaded is None else tmp_path / loaded
    assert load_cublas() == expected
    assert opened == ([] if expected is None else [str(expected)])


def test_the_extra_installs_it() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (package,) = project["project"]["optional-dependencies"]["cuda"]
    assert package.startswith("nvidia-cublas-cu12>=")
