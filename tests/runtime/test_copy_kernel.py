"""The PTX of libtranslate_trt, which the driver of a GPU compiles."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.paths import ROOT
from support.scripts import load_script

from translate_trt.runtime.gpu.cubins import ARCHITECTURES


@pytest.fixture
def script() -> Any:
    return load_script("copy_kernel")


def ptx(script: Any) -> str:
    """Content of the string literal."""
    found = re.fullmatch(r'//.*\nR"\(\n(.*)\)"\n', (ROOT / script.PTX).read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def test_every_gpu_can_run_it(script: Any, tmp_path: Path) -> None:
    """NVIDIA's assembler, which is in Triton's package, does what the driver does."""
    triton = pytest.importorskip("triton", reason="triton is not installed")
    assembler = triton.knobs.nvidia.ptxas.path
    source = tmp_path / "copy_kernel.ptx"
    source.write_text(ptx(script))
    for architecture in (75, *ARCHITECTURES):
        subprocess.run(
            [assembler, f"-arch=sm_{architecture}", source, "-o", tmp_path / "cubin"], check=True
        )


def test_it_is_what_nvcc_makes_of_the_source(script: Any) -> None:
    compiler = script.nvcc()
    if compiler is None:
        pytest.skip("there is no nvcc")
    made, kept = script.literal(compiler), (ROOT / script.PTX).read_text()
    if made.partition("\n")[0] != kept.partition("\n")[0]:
        pytest.skip("nvcc is of another release")
    assert made == kept
