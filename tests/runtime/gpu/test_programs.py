"""Torch targets whose fused operators run their kernels, from end to end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from support.compiled import compile_once
from support.models import lively_model, save_model
from support.plans import MODELS
from support.shared import SharedFiles
from support.translations import assert_same, random_sources

pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime import native
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.backends.pytorch import torch_device, torch_engines
from translate_trt.runtime.backends.pytorch.fused_operators import operators
from translate_trt.runtime.backends.pytorch.onnx_program import Plan, Program
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import open_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(
    scope="module",
    params=[
        "post-norm",
        pytest.param("pre-norm", marks=pytest.mark.nightly),
        pytest.param("ssru", marks=pytest.mark.nightly),  # test_plan_searches.py has its kernels
    ],
)
def bundle(request: pytest.FixtureRequest, shared: SharedFiles, tokenizer_model: Path) -> Path:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    path = shared.once(
        f"gpu-{request.param}",
        lambda path: save_model(lively_model(size, **MODELS[request.param]), path, tokenizer_model),
    )
    options = BuildOptions(
        ("onnx-fp32", "torch-fp32", "torch-fp16"), attention=True,
        engines=EngineOptions(profiles=(Profile(3, 48),)),
    )  # fmt: skip
    return compile_once(shared, open_checkpoint(path), options)


@pytest.fixture
def with_kernels(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> str:
    """Run kernels in the interpreter where there is no GPU, and return the name of the device."""
    monkeypatch.setattr(torch_engines, "have_kernels", lambda _: True)
    return str(device)


def test_searches_are_those_of_onnx_runtime(
    bundle: Path, with_kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels also write the next state where the device wants it: no output is copied."""
    if native.library() is None:
        pytest.skip(native.status())
    copied: list[int] = []
    write = torch_device._write

    def counting(outputs: list[Any], results: list[Any]) -> None:
        pairs = zip(outputs, results, strict=True)
        copied.append(sum(x is not None and x is not y for x, y in pairs))
        write(outputs, results)

    monkeypatch.setattr(torch_device, "_write", counting)
    reference = Translator(bundle, "onnx-fp32", threads=1)
    translator = Translator(bundle, "torch-fp32", threads=1, device=with_kernels)
    options = SearchOptions(num_hypotheses=4, return_attention=True, max_length=5)
    sources = random_sources(2, seed=1, longest=9)
    assert_same(
        translator.translate_ids(sources, options), reference.translate_ids(sources, options)
    )
    assert min(copied) == 0  # first runs copy


def program_of(bundle: Path, target: str, graph: str, kernels: bool = True) -> Program:
    specs = read_manifest(bundle).targets[target].contract.graphs[graph]
    path = bundle / "targets" / target / f"{graph}.onnx"
    return Program(path, *specs, torch.device("cpu"), kernels)


@pytest.mark.parametrize("graph", ["encoder", "step"])
@pytest.mark.parametrize("target", ["torch-fp32", "torch-fp16"])
def test_a_graph_is_fused_operators_and_matmuls(bundle: Path, target: str, graph: str) -> None:
    names = {node.operator for node in program_of(bundle, target, graph).nodes}
    assert names - set(operators()) <= {"MatMul", "GpuLinear", "GpuLinearRelu"}


def test_an_encoder_in_fp16_with_and_without_kernels(bundle: Path, with_kernels: str) -> None:
    if with_kernels != "cpu":
        pytest.skip("the interpreter runs kernels on the CPU")
    lengths = torch.tensor([9, 1, 4])
    is_token = torch.arange(9) < lengths[:, None]
    sources = torch.randint(4, 40, (3, 9)).masked_fill(~is_token, 0)
    inputs = {"source_ids": sources, "source_lengths": lengths}
    found, expected = (
        dict(zip(plan.outputs, outputs, strict=True))
        for plan, outputs in (
            Plan.record(program_of(bundle, "torch-fp16", "encoder", kernels), inputs)
            for kernels in (True, False)
        )
    )
    assert torch.equal(found.pop("source_bias"), expected.pop("source_bias"))
    for name, heads in expected.items():  # [N, H, S, D]; nothing reads those of padding
        kept = [x.transpose(1, 2)[is_token].float() for x in (found[name], heads)]
        torch.testing.assert_close(*kept, rtol=0, atol=4e-3 * float(kept[1].abs().max()))


def test_launches_of_an_encoder(bundle: Path) -> None:
    """Four launches and seven of each layer, so 46 with the six layers of base.

    GELU and the norm after an embedding have launches of their own.
    """
    nodes = program_of(bundle, "torch-fp16", "encoder").nodes
    names = Counter(node.operator for node in nodes)
    layers = names["GpuSelfAttention"]
    more = names["GpuBiasGelu"] + names["GpuNorm"] + names["GpuNormCast"]
    assert (layers, names["SourceBias"], names["GpuSplitHeads"]) == (2, 1, 1)
    assert sum(node.launches for node in nodes) == 4 + 7 * layers + more
