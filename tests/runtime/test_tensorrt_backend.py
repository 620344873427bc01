"""Calls of CUDA and TensorRT on fakes; scripts/gpu_check.sh runs them on a GPU."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.fake_driver import CAPTURE_UNSUPPORTED, NO_DEVICE, FakeDriver
from support.fake_tensorrt import FakeContext, FakeEngine, FakeRuntimeCache, fake_load_engine
from support.graph_contexts import StandInEngines, with_slots
from support.static_bundles import BEAMS
from support.translations import assert_same, random_sources

from translate_trt.export.contract import make_contract
from translate_trt.runtime import loaded_target
from translate_trt.runtime.backends import Settings, load_engines, runtime_cache, tensorrt
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import ChangeSizes, EngineRecord, Profile
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import TargetEntry, read_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.io.cache_files import load_cached, store_cached
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.slow

trt = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")

SEARCH = SearchOptions(num_hypotheses=4)
PROFILES = (Profile(1, 48), Profile(4, 48))
STEP_PROFILES = with_slots(PROFILES, 16, 98, beams=BEAMS)
TARGET = "tensorrt-rtx-fp32"
A10 = Gpu("NVIDIA A10", "8.6", 72)


def record(**changes: Any) -> EngineRecord:
    made = EngineRecord("tensorrt_rtx", trt.__version__, "linux-x86_64", (), "none", False, False,
                        PROFILES)  # fmt: skip
    return dataclasses.replace(made, **changes)


def records_of(**changes: Any) -> dict[str, EngineRecord]:
    return {"encoder": record(**changes), "step": record(**{"profiles": STEP_PROFILES, **changes})}


@dataclass
class Loaded:
    """Arguments of `load` and the fakes that it uses."""

    bundle: Path
    files: dict[str, Path]
    contract: Contract
    driver: FakeDriver
    engines: dict[str, FakeEngine]

    def engines_of(self, settings: Settings | None = None, **changes: Any) -> Engines:
        records = records_of(**changes)
        return load_engines(self.files, self.contract, settings or Settings(), records)

    def translate(self, sources: list[list[int]], options: SearchOptions = SEARCH) -> Any:
        with Translator(self.bundle, threads=1, workers=1) as translator:
            return translator.translate_ids(sources, options)


@pytest.fixture
def loaded(
    driver: FakeDriver, static: Callable[[str], Path], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Loaded:  # fmt: skip
    bundle = static(TARGET)
    manifest = read_manifest(bundle)
    entry: TargetEntry = manifest.target()
    files = {role: file.locate(bundle) for role, file in entry.files.items()}
    profiles = {"encoder": PROFILES, "step": STEP_PROFILES}
    graphs = StandInEngines.load(files, entry.contract, profiles)
    engines = {role: FakeEngine(role, graphs, driver) for role in ("encoder", "step")}
    monkeypatch.setattr(tensorrt, "import_package", lambda name: trt)
    monkeypatch.setattr(tensorrt, "load_engine", fake_load_engine(engines))
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime_cache, "find_gpu", lambda device: A10)
    monkeypatch.setattr(runtime_cache, "driver_version", lambda: "13.0")
    loaded = Loaded(bundle, files, entry.contract, driver, engines)
    # The manifest of a bundle of graphs has no records of engines.
    monkeypatch.setattr(loaded_target, "load_engines", lambda *_: loaded.engines_of())
    return loaded


@pytest.fixture(scope="module")
def reference(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-fp32", threads=1)


def test_the_same_as_onnx_runtime(loaded: Loaded, reference: Translator) -> None:
    sources = random_sources(12)
    expected = reference.translate_ids(sources, SEARCH)
    assert_same(loaded.translate(sources), expected)
    calls = loaded.driver.calls
    assert len(calls("cuGraphLaunch")) > len(calls("cuStreamBeginCapture")) > 0
    launches = loaded.engines["step"].graphs.launches
    used = {launch.profile for launch in launches if launch.role == "step"}
    for role, engine in loaded.engines.items():
        assert engine.created == engine.freed > 0, role
    assert loaded.engines["step"].created == len(used)  # one for each captured graph


def test_contexts_of_tensorrt_rtx(loaded: Loaded) -> None:
    loaded.translate(random_sources(3))
    kinds = trt.DynamicShapesKernelSpecializationStrategy
    for role, kind in (("encoder", kinds.LAZY), ("step", kinds.EAGER)):
        configs = loaded.engines[role].configs
        assert len({id(config.cache) for config in configs}) == 1
        for config in configs:
            assert config.dynamic_shapes_kernel_specialization_strategy == kind
            assert config.memory == trt.ExecutionContextAllocationStrategy.USER_MANAGED


def test_steps_of_varying_shapes_compile_no_kernels_for_each(loaded: Loaded) -> None:
    inputs, outputs = loaded.contract.graphs["step"]
    changed = dataclasses.replace(STEP_PROFILES[0], changes=ChangeSizes(8, 0, 0, 8))
    profiles = (STEP_PROFILES[0], changed, *STEP_PROFILES[2:])
    fake = loaded.engines["step"]
    engine = tensorrt.Engine(
        fake, record(profiles=profiles), inputs, outputs, runtime_cache.RuntimeCache(None)
    )
    for profile in (0, 1):
        engine.context("step", profile, stream=1)
    kinds = trt.DynamicShapesKernelSpecializationStrategy
    found = [config.dynamic_shapes_kernel_specialization_strategy for config in fake.configs]
    assert found == [kinds.EAGER, kinds.LAZY]


@pytest.mark.parametrize("how", ["engine", "driver"])
def test_steps_that_cannot_be_captured_run_all_the_same(
    how: str, loaded: Loaded, reference: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    if how == "engine":
        loaded.engines["step"].capturable = False
    else:
        loaded.driver.c.fail(b"cuGraphInstantiateWithFlags", CAPTURE_UNSUPPORTED)
    sources = random_sources(6)
    with caplog.at_level(logging.WARNING):
        assert_same(loaded.translate(sources), reference.translate_ids(sources, SEARCH))
    assert "CUDA" in caplog.text
    assert loaded.driver.calls("cuStreamEndCapture")
    assert not loaded.driver.calls("cuGraphLaunch")
    assert gc.isenabled()


def test_the_current_gpu_of_the_caller_stays(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines = loaded.engines_of(Settings(device="cuda:1"))
    monkeypatch.setattr(loaded_target, "load_engines", lambda *_: engines)
    loaded.translate(random_sources(3))
    assert [engine.gpus for engine in loaded.engines.values()] == [{1}, {1}]
    assert not loaded.driver.c.has_set_context()


# ---- the runtime cache of TensorRT-RTX ----


def stored(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "engines").glob("kernels-*.cache"))


def test_compiled_kernels_serve_the_next_process(loaded: Loaded, tmp_path: Path) -> None:
    loaded.translate(random_sources(3))
    files = stored(tmp_path)
    assert len(files) == 2  # of two engines
    caches = [engine.configs[0].cache for engine in loaded.engines.values()]
    assert not any(cache.loaded for cache in caches)
    before = {file: file.read_bytes() for file in files}
    for engine in loaded.engines.values():  # another process
        engine.configs.clear()
    loaded.translate(random_sources(3))
    caches = [engine.configs[0].cache for engine in loaded.engines.values()]
    assert all(cache.loaded == cache.kernels for cache in caches)
    assert {file: file.read_bytes() for file in stored(tmp_path)} == before


def test_a_process_that_is_killed_has_stored_its_kernels(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "_store_kernels", capture_calls := [].append)
    loaded.translate(random_sources(3))
    assert capture_calls.__self__  # at captures, before the device is closed
    assert stored(tmp_path) == []


@pytest.mark.parametrize("kind", ["damaged", "foreign"])
def test_stored_kernels_that_do_not_fit_are_replaced(
    kind: str, loaded: Loaded, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loaded.translate(random_sources(3))
    for file in stored(tmp_path):
        if kind == "damaged":
            file.write_bytes(b"damaged")
        else:
            store_cached(file, b"another GPU\nkernel")
    for engine in loaded.engines.values():
        engine.configs.clear()
    with caplog.at_level(logging.WARNING):
        loaded.translate(random_sources(3))
    assert caplog.text.count("is ignored") == 2
    for file in stored(tmp_path):
        assert (load_cached(file) or b"").startswith(b"this GPU\n")


def test_no_kernels_are_stored_where_that_is_not_possible(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        loaded.translate(random_sources(6))
    assert caplog.text.count("the cache is not used") == 2  # once for each engine
    caplog.clear()
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", "none")
    loaded.translate(random_sources(3))
    assert caplog.text == ""


def test_kernels_that_cannot_be_serialized_run_all_the_same(
    loaded: Loaded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    def broken(cache: FakeRuntimeCache) -> bytes:
        raise RuntimeError("no context is current")

    monkeypatch.setattr(FakeRuntimeCache, "serialize", broken)
    with caplog.at_level(logging.WARNING):
        loaded.translate(random_sources(6))
    assert caplog.text.count("compiled kernels are not stored: no context is current") == 2
    assert "without a CUDA graph" not in caplog.text
    assert stored(tmp_path) == []


def test_the_file_of_kernels_depends_on_all_that_they_depend_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = tmp_path / "step.engine"
    monkeypatch.setenv("TRANSLATE_TRT_CACHE", str(tmp_path))

    def path(content: str = "plan", version: str = "1.7.1", gpu: Gpu | None = A10,
             driver: str | None = "13.0") -> Path | None:  # fmt: skip
        engine.write_text(content)
        monkeypatch.setattr(runtime_cache, "find_gpu", lambda device: gpu)
        monkeypatch.setattr(runtime_cache, "driver_version", lambda: driver)
        return runtime_cache.runtime_cache_path(engine, version)

    same = path()
    assert same is not None
    assert same.parent == tmp_path / "engines"
    other = dataclasses.replace(A10, name="NVIDIA A40")
    variants = [path("other"), path(version="1.7.2"), path(gpu=other), path(driver="13.1")]
    assert len({same, *variants}) == 5
    assert path() == same
    assert path(gpu=None) is None
    assert path(driver=None) is None


def test_engines_of_tensorrt_have_no_runtime_cache(loaded: Loaded, tmp_path: Path) -> None:
    engines = loaded.engines_of(package="tensorrt")
    engines.store()
    assert stored(tmp_path) == []


# ---- failures ----


def test_tensorrt_has_what_the_fakes_have() -> None:
    fakes_alone = ("capturable", "broken", "note_gpu", "note_freed")
    for name in vars(FakeEngine):
        if not name.startswith("_") and name not in fakes_alone:
            assert hasattr(trt.ICudaEngine, name), name
    for name in vars(FakeContext):
        if not name.startswith("_"):
            assert hasattr(trt.IExecutionContext, name), name
    for name in ("create_runtime_cache", "set_runtime_cache",
                 "set_execution_context_allocation_strategy",
                 "dynamic_shapes_kernel_specialization_strategy"):  # fmt: skip
        assert hasattr(trt.IRuntimeConfig, name), name
    for name in vars(FakeRuntimeCache):
        if not name.startswith("_"):
            assert hasattr(trt.IRuntimeCache, name), name


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda loaded: setattr(loaded.engines["encoder"], "broken", True), "encoder engine"),
        (lambda loaded: loaded.engines["step"].refused.add("tokens"), r", 4\]"),
        (lambda loaded: loaded.driver.c.fail(b"cuDeviceGetCount", NO_DEVICE), "nvidia-smi"),
    ],
    ids=["engine", "shape", "driver"],
)
def test_translations_that_fail(
    loaded: Loaded, damage: Callable[[Loaded], object], message: str
) -> None:
    damage(loaded)
    with pytest.raises(BackendError, match=message):
        loaded.translate(random_sources(2))


def test_engines_that_do_not_fit(loaded: Loaded) -> None:
    step = loaded.engines["step"]
    step.tensors["slots"] = ("INPUT", "int64")
    with pytest.raises(BundleError, match="bundle again"):  # of another version
        loaded.engines_of()
    del step.tensors["slots"], step.in_place["next_self_value_1"]
    with pytest.raises(BundleError, match="self_value_1"):  # a cache not written in place
        loaded.engines_of()
    with pytest.raises(BundleError, match="encoder"):  # no record
        load_engines(loaded.files, loaded.contract, Settings(), {})
    loaded.contract = make_contract(1, 1, 1, 1)
    with pytest.raises(BundleError, match="number"):
        loaded.engines_of()


def test_settings(loaded: Loaded) -> None:
    with pytest.raises(BackendError, match="GPU"):
        loaded.engines_of(Settings(device="cpu"))
    assert [Settings(device=name).gpu for name in (None, "cpu", "cuda", "cuda:3")] == [
        None, None, 0, 3
    ]  # fmt: skip
    for changes in ({"device": "gpu"}, {"device": "cuda:x"}, {"poll_every": 0}):
        with pytest.raises(OptionError):
            Settings(**changes)


def test_onnx_runtime_for_cpus_has_no_gpu(compiled_bundle: Path) -> None:
    ort = importlib.import_module("onnxruntime")
    if "CUDAExecutionProvider" in ort.get_available_providers():
        pytest.skip("this onnxruntime is the one for GPUs")
    with pytest.raises(BackendError, match="-y onnxruntime"):
        Translator(compiled_bundle, device="cuda")
    assert Translator(compiled_bundle, device="cpu", threads=1).translate_ids([[5]])


def test_onnx_runtime_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = importlib.import_module("translate_trt.runtime.backends.onnxruntime")
    both = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    preloaded: list[str] = []
    monkeypatch.setattr(backend.ort, "get_available_providers", lambda: both)
    monkeypatch.setattr(backend.ort, "preload_dlls", lambda: preloaded.append("cuda"))
    monkeypatch.setattr(backend, "find_gpu", {1: A10}.get)
    (provider, options), cpu = backend._providers(Settings(device="cuda:1"))
    assert (provider, options, cpu) == (both[0], {"device_id": 1, "use_tf32": 0}, both[1])
    assert preloaded == ["cuda"]
    with pytest.raises(BackendError, match="NVIDIA"):
        backend._providers(Settings(device="cuda"))
