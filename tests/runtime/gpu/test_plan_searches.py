"""Whole searches by plans: the loop of libtranslate_trt on a fake driver.

Its kernels are those of Triton's interpreter, and its cuBLASLt multiplies on the CPU.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_driver import FakeDriver
from support.plans import BEAMS, plan_bundle, run_kernel
from support.shared import SharedFiles
from support.translations import assert_same, random_sources, share_of_same

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("model", "target"),
    [
        *(
            pytest.param(*names, marks=pytest.mark.nightly)
            for names in (
                ("post-norm", "cuda-fp32"), ("pre-norm", "cuda-fp32"), ("t5 1.0", "cuda-fp32"),
                ("t5 1.1", "cuda-fp16"), ("t5 1.1", "cuda-bf16"),
            )
        ),
        ("ssru", "cuda-fp32"),
        ("t5 1.1", "cuda-fp32"),
    ],
)  # fmt: skip
def test_searches_are_those_of_onnx_runtime(
    model: str, target: str, shared: SharedFiles, tokenizer_model: Path, interpreted: bool,
    request: pytest.FixtureRequest,
) -> None:  # fmt: skip
    if not interpreted:
        pytest.skip("kernels run on a GPU")
    request.getfixturevalue("device")  # which repairs the interpreter
    driver: FakeDriver = request.getfixturevalue("driver")
    driver.run_kernels(run_kernel)
    bundle = plan_bundle(shared, tokenizer_model, model, ("onnx-fp32", target))
    options = SearchOptions(BEAMS, num_hypotheses=2, return_attention=True, max_length=5)
    count = 2 if target == "cuda-fp32" else 8
    sources = random_sources(count, seed=1, longest=9)
    reference = Translator(bundle, "onnx-fp32", threads=1)
    with Translator(bundle, target, threads=1) as translator:
        found = translator.translate_ids(sources, options)
    expected = reference.translate_ids(sources, options)
    if target == "cuda-fp32":
        assert_same(found, expected)
    else:
        assert share_of_same(found, expected) >= {"cuda-fp16": 0.9, "cuda-bf16": 0.5}[target]
    assert driver.calls("cuGraphLaunch")
