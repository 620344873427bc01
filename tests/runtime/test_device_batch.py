"""The device loop of libtranslate_trt through Python's callbacks, on an emulated device.

Nothing on it happens before it is waited for. runtime/cpp/tests/test_device_batch.cc has the unit
tests of the loop.
"""

from __future__ import annotations

import dataclasses
import logging
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.host_device import HostDevice, StandInEngines, violations, with_slots
from support.static_bundles import BEAMS, static_bundle
from support.translations import assert_same, random_sources

from translate_trt.export.contract import GraphLayout, make_contract
from translate_trt.runtime import native
from translate_trt.runtime.backends.device import Engines
from translate_trt.runtime.backends.engines import EngineRecord, Profile
from translate_trt.runtime.bundle.contract import Contract
from translate_trt.runtime.bundle.manifest import read_manifest, write_manifest
from translate_trt.runtime.errors import BackendError, BundleError, OptionError
from translate_trt.runtime.native.core import engine_memory
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

SEARCH = SearchOptions(num_hypotheses=4)
PROFILES = (Profile(1, 48), Profile(3, 16), Profile(6, 24), Profile(6, 48))
LENGTHS = (8, 24)  # of translations, beside the longest
TARGET_LENGTHS = len(LENGTHS) + 1


@dataclass
class Machine:
    """Factory of emulated devices and of the translators that run on them."""

    static: Callable[[str], Path]
    monkeypatch: pytest.MonkeyPatch
    settings: dict[str, Any] = field(default_factory=dict)
    devices: list[HostDevice] = field(default_factory=list)
    before_device: Callable[[], None] = lambda: None
    memory: Callable[[], tuple[int, int]] | None = None
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
            emulated = StandInEngines.load(files, contract, {"encoder": profiles, "step": step})

            def device() -> HostDevice:
                self.before_device()
                self.devices.append(HostDevice(emulated, **self.settings))
                return self.devices[-1]

            return Engines(
                device, profiles, step, poll_every, cuda_graphs, memory=self.memory,
                scratch_bytes=self.scratch_bytes,
            )  # fmt: skip

        self.monkeypatch.setattr("translate_trt.runtime.translator.load_engines", load)
        more.setdefault("workers", 1)
        return Translator(self.static(target), threads=1, **more)

    @property
    def device(self) -> HostDevice:
        (only,) = self.devices
        return only


@pytest.fixture
def machine(static: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    if native.library() is None:
        pytest.skip(native.status())
    violations.clear()
    yield Machine(static, monkeypatch)
    assert violations == []


@pytest.fixture(scope="module")
def reference(compiled_bundle: Path) -> Translator:
    return Translator(compiled_bundle, "onnx-fp32", threads=1)


@pytest.mark.parametrize("eager", [False, True], ids=["late", "early"])
@pytest.mark.parametrize("poll_every", [1, 2, 3, 4])
def test_the_same_as_onnx_runtime(
    machine: Machine, reference: Translator, poll_every: int, eager: bool
) -> None:
    machine.settings["eager"] = eager
    sources = random_sources(24)
    found = machine.translator(poll_every=poll_every).translate_ids(sources, SEARCH)
    assert_same(found, reference.translate_ids(sources, SEARCH))
    assert machine.device.counts["capture"] > 0
    assert machine.device.counts["replay"] > machine.device.counts["capture"]


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(num_hypotheses=4, max_length=5, length_penalty=1.5),
        SearchOptions(num_hypotheses=2, length_penalty_form="length", early_stopping=True),
        SearchOptions(num_hypotheses=3, min_length=12, max_length=30),
    ],
    ids=["short", "early", "long"],
)
def test_other_options_on_the_same_memory(
    machine: Machine, reference: Translator, options: SearchOptions
) -> None:
    translator, sources = machine.translator(), random_sources(12)
    translator.translate_ids(sources, SEARCH)
    captured = machine.device.counts["capture"]
    assert_same(
        translator.translate_ids(sources, options), reference.translate_ids(sources, options)
    )
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert machine.device.counts["capture"] <= captured + 1  # a bucket that ran once before


def test_each_sentence_has_options_of_its_own(machine: Machine, reference: Translator) -> None:
    options = [
        dataclasses.replace(SEARCH, **changes)
        for changes in (
            {},
            {"length_penalty": 1.5, "max_length": 9},
            {"length_penalty_form": "length", "early_stopping": True},
            {"min_length": 12, "max_length": 30, "num_hypotheses": 1},
        )
    ]
    sources = random_sources(24)
    own = [options[index % len(options)] for index in range(len(sources))]
    translator = machine.translator()
    with TranslationService(translator) as service:
        futures = [service.submit(*given) for given in zip(sources, own, strict=True)]
        found = [[one.segments[0] for one in future.result().hypotheses] for future in futures]
    for one, source, options_of in zip(found, sources, own, strict=True):
        assert_same([one], reference.translate_ids([source], options_of))
    statistics = translator.core.statistics()  # type: ignore[union-attr]
    assert statistics.rows > statistics.steps  # they shared batches


def test_prefixes(machine: Machine, reference: Translator) -> None:
    sources = random_sources(14)
    prefixes = [[5, 6, 7, 8, 9][: index % 6] for index in range(len(sources))]
    found = machine.translator().translate_ids(sources, SEARCH, prefixes)
    assert_same(found, reference.translate_ids(sources, SEARCH, prefixes))


def test_scores(machine: Machine, reference: Translator) -> None:
    """Of given translations, with the beam size that the engines are made for."""
    sources, targets = random_sources(9, seed=15, longest=14), random_sources(9, seed=16, longest=9)
    found = machine.translator().score_ids(sources, targets[::-1])
    expected = reference.score_ids(sources, targets[::-1])
    assert_same([[one] for one in found], [[one] for one in expected])


@pytest.mark.parametrize("poll_every", [1, 4])
def test_looping_beams_are_dropped(
    machine: Machine, looping_model: Checkpoint, looping_bundle: Path, tmp_path: Path,
    poll_every: int,
) -> None:  # fmt: skip
    """After steps in flight, so that other beams may survive than on a host."""
    options = dataclasses.replace(SEARCH, loop_guard=True, max_length=40)
    sources = random_sources(12, seed=6, longest=30)  # some beams of sentences loop before others
    machine.static = lambda target: static_bundle(
        looping_model, looping_bundle, tmp_path / target, target
    )
    found = machine.translator(poll_every=poll_every).translate_ids(sources, options)
    assert any(line[0].looped for line in found)
    # A beam that lived on would be found again, with the same phrase.
    assert all(len({one.tokens for one in line}) == len(line) for line in found)


def test_attention(machine: Machine, reference: Translator) -> None:
    options = dataclasses.replace(SEARCH, return_attention=True)
    sources = random_sources(10)
    found = machine.translator().translate_ids(sources, options)
    assert found[0][0].attention is not None
    assert_same(found, reference.translate_ids(sources, options))


@pytest.mark.parametrize("batch_tokens", [1, 64, 4096])
def test_batches_of_any_size(machine: Machine, reference: Translator, batch_tokens: int) -> None:
    sources = random_sources(20)
    translator = machine.translator(batch_tokens=batch_tokens)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    used = {launch.profile for launch in machine.device.launches if launch.role == "step"}
    buckets = {index // TARGET_LENGTHS for index in used}
    assert len(buckets) == 1 if batch_tokens == 1 else len(buckets) > 1


def best_of_most(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> float:
    pairs = [(a[0], b[0]) for a, b in zip(found, expected, strict=True)]
    return sum(a.tokens == b.tokens for a, b in pairs) / len(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_caches_of_two_bytes(machine: Machine, reference: Translator, precision: str) -> None:
    sources = random_sources(24, longest=12)
    found = machine.translator(f"tensorrt-rtx-{precision}").translate_ids(sources, SEARCH)
    share = best_of_most(found, reference.translate_ids(sources, SEARCH))
    assert share >= (0.9 if precision == "fp16" else 0.6)


def test_several_workers(machine: Machine, reference: Translator) -> None:
    sources = random_sources(40)
    translator = machine.translator(workers=3, batch_tokens=128)
    for _ in range(2):
        found = translator.translate_ids(sources, SEARCH)
        assert_same(found, reference.translate_ids(sources, SEARCH))
    assert 1 <= len(machine.devices) <= 3  # stream contexts are reused


def test_defaults_are_those_of_a_gpu(machine: Machine, reference: Translator) -> None:
    sources = random_sources(40)
    translator = machine.translator(workers=None)
    assert (translator.workers, translator.batch_tokens) == (2, 6 * 48)
    assert "workers=2, batch_tokens=288" in repr(translator)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert len(machine.devices) == 2


def test_memory_and_captured_steps_serve_one_call_after_another(machine: Machine) -> None:
    translator = machine.translator(profiles=(Profile(2, 48),), lengths=())
    translator.translate_ids(random_sources(2), SEARCH)
    counts = dict(machine.device.counts)
    assert counts["capture"] == 1
    for _ in range(3):
        translator.translate_ids(random_sources(2), SEARCH)
    for what in ("allocate", "capture", "step"):  # the step fails within a capture
        assert machine.device.counts[what] == counts[what], what
    assert machine.device.counts["replay"] > counts["replay"]


def test_nothing_large_leaves_the_device(machine: Machine) -> None:
    translator = machine.translator(profiles=(Profile(6, 48),))
    translator.translate_ids(random_sources(12), SEARCH)
    slots = translator.target.contract.slots
    assert slots is not None
    result = 6 * BEAMS * (8 + 8 + 4 + 4 + 8 + 8) + 6  # of what the host reads
    padding = 256 * 7  # tensors
    assert max(machine.device.copied_out) <= 4 * (result + padding)
    assert max(machine.device.copied_out) < 6 * slots * 8  # one column of one cache


# ---- failures ----


def test_without_a_cuda_graph(
    machine: Machine, reference: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    machine.settings["refuse_capture"] = True
    sources = random_sources(16)
    translator = machine.translator(profiles=(Profile(4, 48),), lengths=())
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = translator.translate_ids(sources, SEARCH)
            assert_same(found, reference.translate_ids(sources, SEARCH))
    told = [record.message for record in caplog.records if "CUDA graph" in record.message]
    assert told == [
        "steps of 4x48 with 392 slots run without a CUDA graph, which is slower: operation not "
        "permitted when stream is capturing."
    ]
    assert machine.device.counts["replay"] == 0


def test_cuda_graphs_can_be_left_out(machine: Machine, reference: Translator) -> None:
    sources = random_sources(12)
    translator = machine.translator(cuda_graphs=False)
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert machine.device.counts["capture"] == 0


def test_out_of_memory(machine: Machine) -> None:
    machine.settings["capacity"] = 1 << 12
    with pytest.raises(BackendError, match="out of memory"):
        machine.translator().translate_ids(random_sources(2), SEARCH)


def test_what_does_not_fit_is_refused_before_it_is_allocated(machine: Machine) -> None:
    translator = machine.translator()
    translator.translate_ids(random_sources(2), SEARCH)
    library = native.library()
    assert library is not None
    each = (1 << 40) - machine.device.capacity  # what the device has allocated
    machine.memory = lambda: (2 * each + 99, 10**9)
    machine.scratch_bytes = 100
    with pytest.raises(
        BackendError,
        match=rf"1000 MB are free, and 2 workers need {-(-2 * (each + 100) // 10**6)} MB \(each "
        r"\d+ MB of state and 1 MB of scratch memory for the engines\)\. Lower workers, or export "
        r"engines with a smaller --max-batch or --profiles",
    ):
        machine.translator(workers=2)
    assert len(machine.devices) == 1  # none was opened
    machine.translator(workers=1)


def test_memory_that_others_take_later(machine: Machine, reference: Translator) -> None:
    machine.memory = lambda: (10**9, 10**9)
    translator, sources = machine.translator(), random_sources(3)
    machine.memory = None
    engines = translator.core._device_functions._engines  # type: ignore[union-attr]
    object.__setattr__(engines, "memory", lambda: (1, 10**9))
    with pytest.raises(BackendError, match=r"1 MB.*batch"):
        translator.translate_ids(sources, SEARCH)
    assert machine.devices == []
    object.__setattr__(engines, "memory", lambda: (10**9, 10**9))
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))


def test_a_second_batch_per_worker_is_given_up_where_memory_is_short(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    translator = machine.translator()
    translator.translate_ids(random_sources(2), SEARCH)
    each = (1 << 40) - machine.device.capacity
    with caplog.at_level(logging.INFO):
        machine.memory = lambda: (2 * each, 10**9)
        machine.translator(workers=1)
        assert "batches per worker" not in caplog.text
        machine.translator(workers=2)
    assert "batches" in caplog.text


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
    assert found.device_bytes == (1 << 40) - machine.device.capacity
    assert (found.workers, found.batches) == (2, 2)
    assert 0 < found.pinned_bytes < found.device_bytes


def test_a_device_that_failed_is_not_used_again(machine: Machine, reference: Translator) -> None:
    translator, sources = machine.translator(), random_sources(1)[:1]
    machine.settings["fail_after"] = 5
    with pytest.raises(BackendError, match="RuntimeError"):
        translator.translate_ids(sources, SEARCH)
    del machine.settings["fail_after"]
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert len(machine.devices) == 2


def test_a_batch_that_fails_is_retried(machine: Machine, reference: Translator) -> None:
    sources = random_sources(6)
    translator = machine.translator()

    def device() -> None:
        """The first device fails in its fourth step."""
        machine.settings["fail_after"] = None if machine.devices else 4

    machine.before_device = device
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert len(machine.devices) > 1


def test_a_line_that_is_cancelled(machine: Machine, reference: Translator) -> None:
    sources = random_sources(8)
    long = dataclasses.replace(SEARCH, min_length=90, max_length=90)
    with TranslationService(machine.translator()) as service:
        futures = [service.submit(source, long) for source in sources]
        assert all(future.cancel() for future in futures[::2])
        found = [[one.segments[0] for one in f.result().hypotheses] for f in futures[1::2]]
    assert_same(found, reference.translate_ids(sources[1::2], long))


def test_without_the_library(machine: Machine, without_library: None) -> None:
    with pytest.raises(BackendError, match="libtranslate_trt"):
        machine.translator()


def test_options_that_need_all_options_are_refused(machine: Machine) -> None:
    with pytest.raises(OptionError, match="disable_unk"):
        machine.translator().translate_ids([[7]], SearchOptions(disable_unk=True))


def test_graphs_with_all_options_need_their_profiles(machine: Machine, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(machine.static("tensorrt-rtx-fp32"), bundle)
    manifest = read_manifest(bundle)
    ((name, entry),) = manifest.targets.items()
    free = make_contract(1, 1, 1, 1, layout=GraphLayout(beams=entry.contract.beams))
    assert free.marks
    contract = dataclasses.replace(entry.contract, request=free.request)
    changed = {name: dataclasses.replace(entry, contract=contract)}
    write_manifest(bundle, dataclasses.replace(manifest, targets=changed))
    machine.static = lambda target: bundle
    with pytest.raises(BundleError, match="all options"):
        machine.translator()
