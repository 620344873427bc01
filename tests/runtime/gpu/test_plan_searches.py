"""Whole searches by plans: the loop of libtranslate_trt on a fake driver.

Its kernels are those of Triton's interpreter, and its cuBLASLt multiplies on the CPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cpp_library import Library
from support.plans import BEAMS, plan_bundle, run_kernel
from support.shared import SharedFiles
from support.translations import assert_same, random_sources

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.runtime import native
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.slow

_KERNEL = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint * 3), ctypes.c_uint,
    ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t,
)  # fmt: skip


@pytest.fixture
def driver(
    interpreted: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ctypes.CDLL]:
    """Let the library load the fake driver, whose kernels Triton interprets."""
    if native.library() is None:
        pytest.skip(native.status())
    if not interpreted:
        pytest.skip("kernels run on a GPU")
    library: Library = request.getfixturevalue("library")  # built only now
    path = library.folder / "tests/libfake_cuda_driver.so"
    for name in ("TRANSLATE_TRT_CUDA_DRIVER", "TRANSLATE_TRT_CUBLASLT"):
        monkeypatch.setenv(name, str(path))
    loaded = ctypes.CDLL(str(path))
    failures: list[BaseException] = []

    @_KERNEL
    def run(image: bytes, _: bytes, grid: object, *rest: int) -> None:
        *_, parameters, size = rest
        try:
            run_kernel(image, list(grid.contents), ctypes.string_at(parameters, size))  # type: ignore[attr-defined]
        except BaseException as error:
            failures.append(error)

    loaded.fake_driver_run_kernels(run)
    yield loaded
    loaded.fake_driver_run_kernels(_KERNEL())
    assert not failures, failures[0]
    assert loaded.fake_driver_violations() == 0


@pytest.mark.parametrize(
    "model", ["post-norm", pytest.param("pre-norm", marks=pytest.mark.nightly), "ssru"]
)
def test_searches_are_those_of_onnx_runtime(
    model: str, shared: SharedFiles, tokenizer_model: Path, driver: ctypes.CDLL
) -> None:
    bundle = plan_bundle(shared, tokenizer_model, model, ("onnx-fp32", "cuda-fp32"))
    options = SearchOptions(BEAMS, num_hypotheses=2, return_attention=True, max_length=5)
    sources = random_sources(2, seed=1, longest=9)
    reference = Translator(bundle, "onnx-fp32", threads=1)
    translator = Translator(bundle, "cuda-fp32", threads=1)
    assert_same(
        translator.translate_ids(sources, options), reference.translate_ids(sources, options)
    )
    assert driver.fake_driver_calls(b"cuGraphLaunch") > 0
