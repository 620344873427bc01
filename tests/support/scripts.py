"""Scripts of the repository as modules."""

from __future__ import annotations

import importlib.util
import sys
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
