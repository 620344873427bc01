"""Torch targets from end to end on the CPU, and the choice of a device."""

from __future__ import annotations

import dataclasses
import logging
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from support.compiled import compile_once
from support.graph_contexts import with_slots
from support.models import lively_model, save_model
from support.shared import SharedFiles
from support.translations import assert_same, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.engines.options import EngineOptions
from translate_trt.export.verify.cpu_emulation import why_engine_cannot_run
from translate_trt.export.verify.parity import verify
from translate_trt.runtime import native
from translate_trt.runtime.backends import Settings, load_engines, load_graphs, needs_gpu
from translate_trt.runtime.backends.engines import EngineRecord, Profile, check_engines
from translate_trt.runtime.backends.pytorch import memory_bound, torch_device, torch_engines
from translate_trt.runtime.backends.pytorch.onnx_program import Program
from translate_trt.runtime.backends.pytorch.torch_device import TorchDevice
from translate_trt.runtime.backends.pytorch.torch_engines import can_capture, choose_device, load
from translate_trt.runtime.bundle.manifest import MANIFEST_NAME, TargetEntry, read_manifest
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import BackendError, OptionError, TranslateTrtError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Translation
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint

pytestmark = pytest.mark.slow

PRECISIONS = ("fp32", "fp16", "bf16")
PROFILES = (Profile(1, 48), Profile(3, 16), Profile(6, 48))
SEARCH = SearchOptions(num_hypotheses=4, return_attention=True)

#: Options of rules 13 and 14: of searches with several beams, and with one.
CHANGES: tuple[list[dict[str, Any]], list[dict[str, Any]]] = (
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2, "suppress_sequences": "7, 12 9", "disable_unk": True},
        {"suppress_sequences": ", ".join(map(str, range(4, 24))), "max_length": 30},
    ],
    [
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3},
        {"sampling_top_k": 5, "seed": 3},
        {"sampling_top_k": 0, "seed": 4, "max_length": 9},
        {"sampling_top_k": 20, "sampling_top_p": 0.9, "no_repeat_ngram_size": 1, "max_length": 9},
    ],
)


@pytest.fixture(scope="module")
def bundle(shared: SharedFiles, checkpoint: Checkpoint) -> Path:
    options = BuildOptions(
        ("onnx-fp32", *(f"torch-{precision}" for precision in PRECISIONS)),
        attention=True,
        engines=EngineOptions(profiles=PROFILES),
    )
    return compile_once(shared, checkpoint, options)


@pytest.fixture(
    scope="module",
    params=[
        (4, False),
        pytest.param((1, False), marks=pytest.mark.nightly),
        pytest.param((4, True), marks=pytest.mark.nightly),
    ],
    ids=["beam 4", "beam 1", "ssru"],
)
def all_options_bundle(
    request: pytest.FixtureRequest,
    shared: SharedFiles,
    checkpoint: Checkpoint,
    recurrent_checkpoint: Checkpoint,
) -> Path:
    """Bundle with the inputs of rules 13 to 15 in its torch target."""
    beams, is_recurrent = request.param
    options = BuildOptions(
        ("onnx-fp32", "torch-fp32"), attention=True, beam_size=beams, all_options=True,
        engines=EngineOptions(profiles=PROFILES),
    )  # fmt: skip
    model = recurrent_checkpoint if is_recurrent else checkpoint
    return compile_once(shared, model, options)


@pytest.fixture(scope="module")
def recurrent_checkpoint(shared: SharedFiles, tokenizer_model: Path) -> Checkpoint:
    size = Tokenizer(tokenizer_model, tokenizer_model).vocabulary_size
    path = shared.once(
        "recurrent-checkpoint",
        lambda path: save_model(lively_model(size, decoder_mixer="ssru"), path, tokenizer_model),
    )
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def reference(bundle: Path) -> Translator:
    return Translator(bundle, "onnx-fp32", threads=1)


@pytest.fixture
def library() -> None:
    if native.library() is None:
        pytest.skip(native.status())


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count captures and replays, and make uninitialized memory wrong instead of zero."""
    found = {"capture": 0, "replay": 0}
    end = TorchDevice.end_capture

    def counting(self: TorchDevice) -> Any:
        found["capture"] += 1
        replay = end(self)

        def counted() -> None:
            found["replay"] += 1
            replay()

        return counted

    def unwritten(self: TorchDevice, size: int) -> torch.Tensor:
        return torch.full((size,), 0xFF, dtype=torch.uint8)

    monkeypatch.setattr(TorchDevice, "end_capture", counting)
    monkeypatch.setattr(TorchDevice, "_allocate", unwritten)
    monkeypatch.setattr(TorchDevice, "_pin", unwritten)
    return found


def test_the_same_as_onnx_runtime(
    library: None, counts: dict[str, int], bundle: Path, reference: Translator
) -> None:
    translator = Translator(bundle, "torch-fp32", threads=1, device="cpu")
    for number in range(2):
        sources = random_sources(20, seed=number)
        found = translator.translate_ids(sources, SEARCH)
        assert_same(found, reference.translate_ids(sources, SEARCH))
    assert counts["replay"] > counts["capture"] > 0
    texts = ["the cat runs.", "", "a small dog sleeps."]
    assert [line.text for line in translator.translate(texts)] == [
        line.text for line in reference.translate(texts)
    ]


def test_all_options_are_the_same_as_with_onnx_runtime(
    library: None, counts: dict[str, int], all_options_bundle: Path
) -> None:
    """Each alone, then with other options in the same batches."""
    translator = Translator(
        all_options_bundle, "torch-fp32", threads=1, device="cpu", batch_tokens=150
    )
    expected = Translator(all_options_bundle, "onnx-fp32", threads=1)
    beams = expected.manifest.target("torch-fp32").contract.beams
    assert beams is not None
    plain = SearchOptions(beam_size=beams, num_hypotheses=beams)
    changed = [replace(plain, **changes) for changes in CHANGES[beams == 1]]
    sources = random_sources(12, seed=4, longest=20)
    for options in (plain, *changed, plain):
        found = translator.translate_ids(sources, options)
        assert_same(found, expected.translate_ids(sources, options))
    # Sentences of all options in one batch, with and without constraints.
    lines = ["the cat runs.", "a small dog sleeps.", "the house is big.", "a dog eats green."] * 4
    terms: list[list[str]] = [[], ["Haus"], ["Hund", "eine Katze"]]

    def mixed(translator: Translator) -> list[Translation]:
        with TranslationService(translator) as service:
            jobs = [
                service.submit(
                    line,
                    (plain, *changed)[index % (1 + len(changed))],
                    constraints=terms[index % 3] if beams > 1 else [],
                )
                for index, line in enumerate(lines)
            ]
            return [job.result() for job in jobs]

    for one, other in zip(mixed(translator), mixed(expected), strict=True):
        assert one.text == other.text
        assert one.hypotheses[0].score == pytest.approx(other.hypotheses[0].score, abs=1e-4)
    assert counts["replay"] > 0  # in steps without these inputs
    shown = CliRunner().invoke(main, ["info", str(all_options_bundle)]).stdout
    assert shown.count("attention, all options") == 1


def test_options_that_a_target_was_not_compiled_for(library: None, bundle: Path) -> None:
    translator = Translator(bundle, "torch-fp32", threads=1, device="cpu")
    with pytest.raises(OptionError, match=r"no_repeat_ngram_size.*--all-options"):
        translator.translate(["the cat runs."], SearchOptions(no_repeat_ngram_size=2))
    with pytest.raises(OptionError, match="--all-options"):
        translator.translate(["the cat runs."], constraints=[["Haus"]])


def test_constraints_of_more_tokens_than_a_step_takes_are_refused(
    library: None, all_options_bundle: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(all_options_bundle, tmp_path / "bundle"))
    path = copy / MANIFEST_NAME
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace('"constraint_tokens": 64', '"constraint_tokens": 8'), "utf-8")
    translator = Translator(copy, "torch-fp32", threads=1, device="cpu")
    options = SearchOptions(beam_size=translator.target.contract.beams or 0)
    refusal = r"have 9 different tokens, .* take 8; give fewer"
    with pytest.raises(TranslateTrtError, match=refusal if options.beam_size > 1 else "set it to"):
        translator.translate_ids([[4, 5, 6]], options, constraints=[[range(4, 13)]])


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_two_bytes(
    library: None, counts: dict[str, int], precision: str, bundle: Path, reference: Translator
) -> None:
    sources = random_sources(20, longest=12)
    translator = Translator(bundle, f"torch-{precision}", threads=1, device="cpu")
    found = translator.translate_ids(sources, SEARCH)
    pairs = list(zip(found, reference.translate_ids(sources, SEARCH), strict=True))
    same = [(ours[0], best[0]) for ours, best in pairs if ours[0].tokens == best[0].tokens]
    assert len(same) >= (0.9 if precision == "fp16" else 0.6) * len(pairs)
    for one, other in same:
        np.testing.assert_allclose(
            one.score, other.score, atol=0.02 if precision == "fp16" else 0.2
        )


def test_what_a_bundle_says(bundle: Path) -> None:
    manifest = read_manifest(bundle)
    for precision in PRECISIONS:
        entry = manifest.target(f"torch-{precision}")
        assert (entry.backend, entry.precision) == ("torch", precision)
        assert entry.files.keys() == {"encoder", "step"}
        assert (entry.contract.beams, entry.contract.slots) == (4, 4 * 98)
        records = check_engines(entry, bundle)
        assert {record.package for record in records.values()} == {"torch"}
        assert records["encoder"].profiles == PROFILES
        assert records["step"].profiles == with_slots(PROFILES, 32, 64, 98, beams=4)
        assert needs_gpu(entry, None)
        assert needs_gpu(entry, "xpu")
        assert not needs_gpu(entry, "cpu")
    fp32 = manifest.target("onnx-fp32")
    assert [needs_gpu(fp32, device) for device in (None, "cpu", "cuda:1")] == [False, False, True]
    assert needs_gpu(dataclasses.replace(fp32, engine={}), "cpu")


def test_verify_runs_it_on_the_cpu_and_says_so(
    library: None, bundle: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    lines = ["the cat runs.", "a small dog sleeps.", "the house is big."]
    found = verify(copy, checkpoint, lines, lines, ["torch-fp32"], threads=1)["torch-fp32"]
    assert found.passed
    assert found.identical_percent == 100
    assert found.engine_not_run == "PyTorch finds no GPU"
    shown = CliRunner().invoke(main, ["info", str(copy)]).stdout
    note = "on a CPU, because the target did not run on a GPU: PyTorch finds no GPU"
    assert note in " ".join(shown.split())


def test_verify_uses_a_gpu_that_pytorch_finds(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = read_manifest(bundle).target("torch-fp32")
    found = SimpleNamespace(is_available=lambda: True, device_count=lambda: 1)
    monkeypatch.setattr(torch, "xpu", found)
    assert why_engine_cannot_run(entry, bundle) is None


# ---- devices ----


def accelerator(count: int) -> Any:
    return SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)


@pytest.mark.parametrize(
    ("cuda", "xpu", "name", "expected"),
    [
        (2, 1, None, "cuda:0"),
        (0, 1, None, "xpu:0"),
        (2, 0, "cuda:1", "cuda:1"),
        (2, 1, "xpu", "xpu:0"),
        (2, 1, "cpu", "cpu"),
    ],
)
def test_the_device(
    cuda: int, xpu: int, name: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "cuda", accelerator(cuda))
    monkeypatch.setattr(torch, "xpu", accelerator(xpu))
    device, module = choose_device(name)
    assert str(device) == expected
    assert module is {"cuda": torch.cuda, "xpu": torch.xpu, "cpu": None}[device.type]


@pytest.mark.parametrize(
    ("cuda", "name", "message"),
    [
        (0, None, "GPU"),
        (0, "cuda", r"PyTorch.*\(CUDA"),
        (2, "cuda:2", r"cuda:2.*finds 2"),
        (2, "xpu", r"finds none \(XPU\)"),
    ],
)
def test_devices_that_are_missing(
    cuda: int, name: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "cuda", accelerator(cuda))
    monkeypatch.setattr(torch, "xpu", accelerator(0))
    with pytest.raises(BackendError, match=message):
        choose_device(name)


def test_an_old_pytorch_without_graphs_for_intel(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert can_capture(torch.device("xpu"))
    monkeypatch.setattr(torch, "xpu", accelerator(1))
    with caplog.at_level(logging.WARNING):
        assert not can_capture(torch.device("xpu"))
    assert caplog.text.count("has no graphs for Intel GPUs") == 1
    assert can_capture(torch.device("cuda"))
    assert can_capture(torch.device("cpu"))


def files_of(entry: TargetEntry, bundle: Path) -> dict[str, Path]:
    return {role: file.locate(bundle) for role, file in entry.files.items()}


def test_too_many_threads_on_the_cpu(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entry = read_manifest(bundle).target("torch-fp32")
    arguments = files_of(entry, bundle), entry.contract
    module = "translate_trt.runtime.backends.pytorch.torch_engines"
    monkeypatch.setattr(f"{module}.available_cores", lambda: 4)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    records = check_engines(entry, bundle)
    load(*arguments, Settings(device="cpu", workers=2), records)
    assert caplog.text == ""
    load(*arguments, Settings(device="cpu", workers=4), records)
    assert "workers" in caplog.text
    assert "OMP_NUM_THREADS" in caplog.text


# ---- what is refused ----


def test_other_backends_have_no_xpu(bundle: Path) -> None:
    entry = read_manifest(bundle).target("onnx-fp32")
    settings = Settings(device="xpu:1")
    assert settings.gpu == 1
    with pytest.raises(BackendError, match="xpu:1"):
        load_graphs("onnxruntime", {}, entry.contract, settings)
    with pytest.raises(BackendError, match="torch targets"):
        load_engines({}, entry.contract, settings, {})
    with pytest.raises(BackendError, match="torch targets"):
        Translator(bundle, "onnx-fp32", device="xpu")
    with pytest.raises(OptionError, match="cuda:1"):
        Settings(device="rocm")


@pytest.mark.parametrize("missing", ["torch", "onnx"])
def test_without_the_packages_the_extra_is_named(
    missing: str, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = read_manifest(bundle).target("torch-fp32")
    records: dict[str, EngineRecord] = check_engines(entry, bundle)
    for name in [name for name in sys.modules if ".backends.pytorch." in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # makes its import fail
    with pytest.raises(BackendError, match=r"'translate-trt\[torch\]'"):
        load_engines({}, entry.contract, Settings(), records)


def test_memory_of_a_gpu_is_freed_with_its_device(bundle: Path) -> None:
    entry = read_manifest(bundle).target("torch-fp32")
    engines = load(
        files_of(entry, bundle), entry.contract, Settings(device="cpu"),
        check_engines(entry, bundle),
    )  # fmt: skip
    freed: list[int] = []

    class Block(torch.Tensor):
        def __del__(self) -> None:
            freed.append(1)

    assert callable(engines.device)
    device = engines.device()
    assert isinstance(device, TorchDevice)
    device._memory._blocks.append(torch.zeros(1).as_subclass(Block))
    del device
    assert freed  # at once, not by the garbage collector
    assert torch_device.OUT_OF_MEMORY.startswith("the GPU is out of memory")


# ---- memory beside the state ----


@pytest.fixture
def gpu_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fake of `torch.cuda` with the memory of a GPU; the device is the CPU."""
    module = SimpleNamespace(
        synchronize=lambda device: None, mem_get_info=lambda device: (9**9, 9**9)
    )
    found = (torch.device("cpu"), module)
    monkeypatch.setattr(torch_engines, "choose_device", lambda name: found)


@pytest.mark.parametrize("target", ["torch-fp32", "torch-fp16"])
@pytest.mark.parametrize("role", ["encoder", "step"])
def test_the_meta_device_counts_what_a_run_allocates(role: str, target: str, bundle: Path) -> None:
    entry = read_manifest(bundle).target(target)
    specs = entry.contract.graphs[role]
    profile = check_engines(entry, bundle)[role].profiles[-1]
    peaks = {}
    for device in ("meta", "cpu"):
        program = Program(files_of(entry, bundle)[role], *specs, torch.device(device))
        inputs = memory_bound._inputs(program, profile, entry.contract)
        given = {
            name: torch.zeros_like(value, device=device) for name, value in inputs.items()
        }  # fmt: skip
        if "source_lengths" in given:
            given["source_lengths"] += profile.source_length
        peaks[device] = memory_bound.activation_bytes(program, given)
    # On the CPU, numbers of the host count as well.
    # On a CPU, a matmul with ReLU in its epilogue makes a copy.
    assert peaks["meta"] == pytest.approx(peaks["cpu"], rel=0.2)
    if role == "step":
        vocabulary = max(len(one) for one in program.weights.values() if one.ndim == 2)
        logits = profile.batch * (entry.contract.beams or 1) * vocabulary
        assert peaks["meta"] > 4 * logits  # of FP32


def scratch_bytes(path: Path, **settings: Any) -> int:
    entry = read_manifest(path).target("torch-fp32")
    records = check_engines(entry, path)
    engines = load(files_of(entry, path), entry.contract, Settings(**settings), records)
    assert engines.memory is not None
    return engines.scratch_bytes


@pytest.mark.usefixtures("gpu_on_the_host")
def test_the_memory_check_counts_activations_and_the_pool_of_graphs(bundle: Path) -> None:
    captured, uncaptured = scratch_bytes(bundle), scratch_bytes(bundle, cuda_graphs=False)
    assert captured > uncaptured > memory_bound._WORKSPACE_BYTES


@pytest.mark.usefixtures("gpu_on_the_host")
def test_the_memory_check_counts_inputs_of_all_options(
    bundle: Path, all_options_bundle: Path
) -> None:
    assert scratch_bytes(all_options_bundle) > scratch_bytes(bundle)
