from __future__ import annotations

from pathlib import Path

import pytest

from translate_trt.runtime import Translator


@pytest.fixture(scope="module")
def translator(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, threads=1)
