"""The device loop of libtranslate_trt with engines in Python, on the fake CUDA driver.

runtime/cpp/tests/test_device_batch.cc has the unit tests of the loop.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.fake_driver import ILLEGAL_ADDRESS, FakeDriver
from support.graph_contexts import GraphContexts, StandInEngines, with_slots
from support.static_bundles import BEAMS, static_bundle
from support.translations import assert_same, random_sources, share_of_same

from translate_trt.runtime.backends.device import CudaContexts, Engines, Launch
from translate_trt.runtime.backends.engines import EngineRecord, Profile
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.native.collector_pause import CollectorPause
from translate_trt.runtime.native.core import engine_memory
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

SEARCH = SearchOptions(num_hypotheses=4)
PROFILES = (Profile(1, 48), Profile(3, 16), Profile(6, 24), Profile(6, 48))
LENGTHS = (8, 24)  # of translations, beside the longest


@dataclass
class Machine:
    """Factory of translators with emulated engines."""

    static: Callable[[str], Path]
    monkeypatch: pytest.MonkeyPatch
    driver: FakeDriver
    scratch_bytes: int = 0

    def translator(
        self,
        target: str = "tensorrt-rtx-fp32",
        profiles: tuple[Profile, ...] = PROFILES,
        lengths: tuple[int, ...] = LENGTHS,
        poll_every: int = 4,
        **more: Any,
    ) -> Translator:
        cuda_graphs = more.pop("cuda_graphs", True)

        def load(files: Any, contract: Contract, settings: Any, records: Any) -> Engines:
            assert contract.slots is not None
            step = with_slots(profiles, *lengths, contract.slots // BEAMS, beams=BEAMS)
            graphs = StandInEngines.load(files, contract, {"encoder": profiles, "step": step})
            contexts = CudaContexts(0, lambda stream, _: GraphContexts(graphs, self.driver, stream))
            return Engines(
                contexts, profiles, step, poll_every, cuda_graphs, scratch_bytes=self.scratch_bytes
            )

        self.monkeypatch.setattr("translate_trt.runtime.loaded_target.load_engines", load)
        more.setdefault("workers", 1)
        return Translator(self.static(target), threads=1, **more)

    @property
    def devices(self) -> int:
        """Number of devices that were opened so far."""
        return len(self.driver.calls("cuStreamCreate"))


@pytest.fixture
def machine(
    driver: FakeDriver, static: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Machine:
    return Machine(static, monkeypatch, driver)


@pytest.fixture(scope="module")
def reference(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-fp32", threads=1)


@pytest.mark.parametrize("eager", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("poll_every", [1, 4])
def test_the_same_as_onnx_runtime(
    machine: Machine, reference: Translator, poll_every: int, eager: bool
) -> None:
    machine.driver.c.set_eager(eager)
    sources = random_sources(24)
    found = machine.translator(poll_every=poll_every).translate_ids(sources, SEARCH)
    assert_same(found, reference.translate_ids(sources, SEARCH))
    calls = machine.driver.calls
    assert len(calls("cuGraphLaunch")) > len(calls("cuStreamBeginCapture")) > 0


def test_each_sentence_has_options_and_a_prefix_of_its_own(
    machine: Machine, reference: Translator
) -> None:
    options = [
        dataclasses.replace(SEARCH, **changes)
        for changes in (
            {},
            {"length_penalty": 1.5, "max_length": 9, "return_attention": True},
            {"length_penalty_form": "length", "early_stopping": True},
            {"min_length": 12, "max_length": 30, "num_hypotheses": 1},
        )
    ]
    asked = [
        (source, options[index % len(options)], [5, 6, 7, 8, 9][: index % 6])
        for index, source in enumerate(random_sources(24))
    ]
    translator = machine.translator(batch_tokens=128, workers=2)
    with TranslationService(translator) as service:
        futures = [service.submit(*given) for given in asked]
        found = [[one.segments[0] for one in future.result().hypotheses] for future in futures]
    for one, (source, own, prefix) in zip(found, asked, strict=True):
        assert_same([one], reference.translate_ids([source], own, [prefix]))
    statistics = translator.core.statistics()  # type: ignore[union-attr]
    assert statistics.rows > statistics.steps  # they shared batches


def test_scores(machine: Machine, reference: Translator) -> None:
    """Of given translations, with the beam size that the engines are made for."""
    sources, targets = random_sources(9, seed=15, longest=14), random_sources(9, seed=16, longest=9)
    found = machine.translator().score_ids(sources, targets[::-1])
    expected = reference.score_ids(sources, targets[::-1])
    assert_same([[one] for one in found], [[one] for one in expected])


def test_looping_beams_are_dropped(
    machine: Machine, looping_model: Checkpoint, looping_bundle: Path, tmp_path: Path
) -> None:
    """After steps in flight, so that other beams may survive than on a host."""
    options = dataclasses.replace(SEARCH, loop_guard=True, max_length=40)
    sources = random_sources(12, seed=6, longest=30)  # some beams of sentences loop before others
    machine.static = lambda target: static_bundle(
        looping_model, looping_bundle, tmp_path / target, target
    )
    found = machine.translator().translate_ids(sources, options)
    assert any(line[0].looped for line in found)
    # A beam that lived on would be found again, with the same phrase.
    assert all(len({one.tokens for one in line}) == len(line) for line in found)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_caches_of_two_bytes(machine: Machine, reference: Translator, precision: str) -> None:
    sources = random_sources(24, longest=12)
    found = machine.translator(f"tensorrt-rtx-{precision}").translate_ids(sources, SEARCH)
    share = share_of_same(found, reference.translate_ids(sources, SEARCH))
    assert share >= (0.9 if precision == "fp16" else 0.6)


def test_defaults_are_those_of_a_gpu(machine: Machine, reference: Translator) -> None:
    sources = random_sources(40)
    translator = machine.translator(workers=None)
    assert (translator.workers, translator.batch_tokens) == (2, 6 * 48)
    assert "workers=2, batch_tokens=288" in repr(translator)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert machine.devices == 2


def test_nothing_large_leaves_the_device(machine: Machine) -> None:
    translator = machine.translator(profiles=(Profile(6, 48),))
    translator.translate_ids(random_sources(12), SEARCH)
    slots = translator.target.contract.slots
    assert slots is not None
    result = 6 * BEAMS * (8 + 8 + 4 + 4 + 8 + 8) + 6  # of what the host reads
    padding = 256 * 7  # tensors
    most = max(int(size) for _, _, size, _ in machine.driver.calls("cuMemcpyDtoHAsync"))
    assert most <= 4 * (result + padding)
    assert most < 6 * slots * 8  # one column of one cache


# ---- captures and the garbage collector ----


def test_the_collector_does_not_run_in_a_capture(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[tuple[bool, bool]] = set()
    launch = GraphContexts.launch

    def spied(contexts: GraphContexts, work: Launch) -> None:
        seen.add((work.capturing, gc.isenabled()))
        launch(contexts, work)

    monkeypatch.setattr(GraphContexts, "launch", spied)
    machine.translator().translate_ids(random_sources(3), SEARCH)
    assert (True, False) in seen  # other workers may run meanwhile
    assert (True, True) not in seen
    assert gc.isenabled()


def test_captures_of_several_threads_pause_the_collector_once() -> None:
    pause = CollectorPause()
    pause.begin()
    pause.begin()
    pause.end()
    assert not gc.isenabled()
    pause.end()
    assert gc.isenabled()
    gc.disable()
    try:
        pause.begin()
        pause.end()
        assert not gc.isenabled()  # the program had disabled it
    finally:
        gc.enable()


# ---- failures ----


def test_cuda_graphs_can_be_left_out(machine: Machine, reference: Translator) -> None:
    sources = random_sources(12)
    translator = machine.translator(cuda_graphs=False)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert not machine.driver.calls("cuStreamBeginCapture")


def test_what_does_not_fit_is_refused_before_it_is_allocated(machine: Machine) -> None:
    with machine.translator() as translator:
        translator.translate_ids(random_sources(2), SEARCH)
    each = machine.driver.allocated
    machine.driver.c.set_memory(2 * each + 99)
    machine.scratch_bytes = 100
    with pytest.raises(BackendError, match=f"2 workers need {-(-2 * (each + 100) // 10**6)} MB"):
        machine.translator(workers=2)
    assert machine.devices == 1  # no other was opened
    machine.translator(workers=1)


def test_memory_without_a_device(machine: Machine) -> None:
    translator = machine.translator()
    translator.translate_ids(random_sources(2), SEARCH)
    path = machine.static("tensorrt-rtx-fp32")
    with pytest.raises(BundleError, match="engine"):  # no record has profiles
        engine_memory(path, "tensorrt-rtx-fp32")
    manifest = read_manifest(path)
    entry = manifest.targets["tensorrt-rtx-fp32"]
    assert entry.contract.slots is not None
    profiles = with_slots(PROFILES, *LENGTHS, entry.contract.slots // BEAMS, beams=BEAMS)
    record = EngineRecord(
        "tensorrt_rtx", "1.0", "linux-x86_64", (), "none", False, False, profiles
    ).to_json()
    write_manifest(
        path,
        dataclasses.replace(
            manifest, targets={entry.name: dataclasses.replace(entry, engine={"step": record})}
        ),
    )
    try:
        found = engine_memory(path, entry.name)
    finally:
        write_manifest(path, manifest)
    assert found.device_bytes == machine.driver.allocated
    assert (found.workers, found.batches) == (2, 2)
    assert 0 < found.pinned_bytes < found.device_bytes


def test_a_device_that_failed_is_not_used_again(machine: Machine, reference: Translator) -> None:
    translator, sources = machine.translator(), random_sources(1)[:1]
    machine.driver.c.fail(b"cuEventSynchronize", ILLEGAL_ADDRESS)
    with pytest.raises(BackendError, match="cuEventSynchronize"):
        translator.translate_ids(sources, SEARCH)
    machine.driver.c.fail(b"cuEventSynchronize", 0)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert machine.devices == 2


def test_an_exception_of_an_engine_is_an_error(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(GraphContexts, "launch")
    with pytest.raises(BackendError, match="AttributeError"):
        machine.translator().translate_ids([[7]], SEARCH)


def test_without_the_library(machine: Machine, without_library: None) -> None:
    with pytest.raises(BackendError, match="libtranslate_trt"):
        machine.translator()


def test_options_that_need_all_options_are_refused(machine: Machine) -> None:
    with pytest.raises(OptionError, match="disable_unk"):
        machine.translator().translate_ids([[7]], SearchOptions(disable_unk=True))
