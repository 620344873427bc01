"""Whole searches by plans: the loop of libtranslate_trt on a fake driver.

Its kernels are those of Triton's interpreter, and its cuBLASLt multiplies on the CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_driver import FakeDriver
from support.plans import BEAMS, plan_bundle, run_kernel
from support.shared import SharedFiles
from support.translations import assert_same, random_sources

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "model",
    [
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("post-norm", "pre-norm")),
        "ssru",
    ],
)
def test_searches_are_those_of_onnx_runtime(
    model: str, shared: SharedFiles, tokenizer_model: Path, interpreted: bool,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if not interpreted:
        pytest.skip("kernels run on a GPU")
    driver: FakeDriver = request.getfixturevalue("driver")
    driver.run_kernels(run_kernel)
    bundle = plan_bundle(shared, tokenizer_model, model, ("onnx-fp32", "cuda-fp32"))
    options = SearchOptions(BEAMS, num_hypotheses=2, return_attention=True, max_length=5)
    sources = random_sources(2, seed=1, longest=9)
    reference = Translator(bundle, "onnx-fp32", threads=1)
    with Translator(bundle, "cuda-fp32", threads=1) as translator:
        found = translator.translate_ids(sources, options)
    assert_same(found, reference.translate_ids(sources, options))
    assert driver.calls("cuGraphLaunch")
