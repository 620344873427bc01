"""Scripts of the repository, as modules and as processes."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.paths import ROOT


def load_script(name: str) -> ModuleType:
    """Return scripts/NAME.py as a module; it may import other scripts."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"scripts/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


def run_script(
    script: str, *arguments: object, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of scripts/ with this Python's programs."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    given = {"PATH": path, "TRANSLATE_TRT_VENV": "none", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", ROOT / "scripts" / script, *map(str, arguments)],
        env={**os.environ, **given, **environment}, capture_output=True, text=True, check=False,
        timeout=550,
    )  # fmt: skip
