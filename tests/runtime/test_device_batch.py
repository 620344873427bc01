"""The loop on a device, everything but the calls into CUDA and TensorRT: on a device that the host
plays, where nothing happens before it is waited for."""

from __future__ import annotations

import dataclasses
import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.host_device import HostDevice, StandInEngines, ViolationError
from support.static_bundles import BEAMS
from support.translations import assert_same, random_sources

from translate_trt.runtime import backends
from translate_trt.runtime.backends import Sources
from translate_trt.runtime.backends.buffers import RESULTS
from translate_trt.runtime.backends.device import Upload
from translate_trt.runtime.backends.device_batch import DeviceBackend, DeviceBatch
from translate_trt.runtime.contract import FREE, GraphShape
from translate_trt.runtime.engines import Profile
from translate_trt.runtime.errors import BackendError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis
from translate_trt.runtime.search import Sentence, Waiting
from translate_trt.runtime.translator import Translator

SEARCH = SearchOptions(num_hypotheses=4)
PROFILES = (Profile(1, 48), Profile(3, 16), Profile(6, 24), Profile(6, 48))


@dataclass
class Machine:
    """Devices as they are asked for, and the translators that run on them."""

    static: Callable[[str], Path]
    monkeypatch: pytest.MonkeyPatch
    settings: dict[str, Any] = field(default_factory=dict)
    devices: list[HostDevice] = field(default_factory=list)

    def translator(
        self,
        target: str = "tensorrt-rtx-fp32",
        profiles: tuple[Profile, ...] = PROFILES,
        poll_every: int = 4,
        **more: Any,
    ) -> Translator:
        cuda_graphs = more.pop("cuda_graphs", True)

        def load(files: Any, shape: GraphShape, settings: Any, records: Any) -> DeviceBackend:
            engines = StandInEngines.load(files, shape, profiles)

            def device() -> HostDevice:
                self.devices.append(HostDevice(engines, **self.settings))
                return self.devices[-1]

            return DeviceBackend(device, shape, profiles, poll_every, cuda_graphs)

        self.monkeypatch.setitem(backends.BACKENDS, "tensorrt_rtx", load)
        return Translator(self.static(target), threads=1, **more)

    @property
    def device(self) -> HostDevice:
        (only,) = self.devices
        return only


@pytest.fixture
def machine(static: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(static, monkeypatch)


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
    found: dict[int, list[Hypothesis]] = {}
    given = enumerate(zip(sources, own, strict=True))
    machine.translator().new_search(SEARCH).run(
        Waiting([Sentence(index, source, (), one) for index, (source, one) in given]),
        lambda one, best: found.update({one.index: best}),
    )
    for index, (source, one) in enumerate(zip(sources, own, strict=True)):
        assert_same([found[index]], reference.translate_ids([source], one))


def test_prefixes(machine: Machine, reference: Translator) -> None:
    sources = random_sources(14)
    prefixes = [[5, 6, 7, 8, 9][: index % 6] for index in range(len(sources))]
    found = machine.translator().translate_ids(sources, SEARCH, prefixes)
    assert_same(found, reference.translate_ids(sources, SEARCH, prefixes))


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
    assert len(used) == 1 if batch_tokens == 1 else len(used) > 1


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
    assert 1 <= len(machine.devices) <= 3  # lanes are used again


def test_memory_and_captured_steps_serve_one_call_after_another(machine: Machine) -> None:
    translator = machine.translator(profiles=(Profile(2, 48),))
    translator.translate_ids(random_sources(2), SEARCH)
    counts = dict(machine.device.counts)
    assert counts["capture"] == 1
    for _ in range(3):
        translator.translate_ids(random_sources(2), SEARCH)
    for what in ("allocate", "capture", "step"):  # a step inside a capture is asked for then
        assert machine.device.counts[what] == counts[what], what
    assert machine.device.counts["replay"] > counts["replay"]


def test_nothing_large_leaves_the_device(machine: Machine) -> None:
    translator = machine.translator(profiles=(Profile(6, 48),))
    translator.translate_ids(random_sources(12), SEARCH)
    form = translator.target.form
    assert form.slots is not None
    result = 6 * BEAMS * (8 + 8 + 4 + 4 + 8 + 8) + 6  # of RESULTS
    padding = 256 * len(RESULTS)
    assert max(machine.device.copied_out) <= 4 * (result + padding)
    assert max(machine.device.copied_out) < 6 * form.slots * 8  # one column of one cache


def test_results_of_steps_that_are_not_waited_for_cannot_be_seen() -> None:
    device = HostDevice(StandInEngines({}, GraphShape(0, 1, 1, 1), ()))
    address, pinned = device.allocate(256), device.pinned(256)
    device.fill(address, 7, 256)
    device.copy_out(pinned, address)
    assert (pinned == 0xFF).all()
    device.record().wait()
    assert (pinned == 7).all()
    with pytest.raises(ViolationError, match="not pinned"):
        device.copy_out(np.zeros(256, np.uint8), address)
    with pytest.raises(ViolationError, match="257 bytes at 0 of 256"):
        device.fill(address, 0, 257)


def test_an_array_on_its_way_is_not_overwritten() -> None:
    device = HostDevice(StandInEngines({}, GraphShape(0, 1, 1, 1), ()))
    first, second, pinned = device.allocate(256), device.allocate(256), device.pinned(256)
    upload = Upload(device, first, 256)
    upload.send(np.full(32, 5, dtype=np.int64))
    device.copy(second, first, 256)
    upload.send(np.full(32, 6, dtype=np.int64))
    device.copy_out(pinned, second)
    device.record().wait()
    assert (pinned.view(np.int64) == 5).all()


# ---- the protocol ----


@pytest.fixture
def batch(machine: Machine) -> DeviceBatch:
    return machine.translator()._backend.batch(SEARCH, 2)  # type: ignore[return-value]


def sources_of(*lengths: int, most: int = 20) -> Sources:
    tokens = [[*range(4, 4 + length - 1), 3] for length in lengths]
    return Sources(tokens, [most] * len(tokens))


def test_rows_stay_where_they_are_as_far_as_they_can(batch: DeviceBatch) -> None:
    assert batch.rows == 0
    assert batch.update([], sources_of(20, 12, 9, 7)) == ([], [0, 1, 2, 3])
    assert batch.rows == 6
    batch.step(None), batch.drain()
    assert batch.update([1, 3], sources_of(5, 5, 5)) == ([1, 3], [0, 2, 4])
    batch.step(None), batch.drain()
    assert batch.update([1, 3, 4], None) == ([1, 0, 2], [])  # into the bucket of three
    assert batch.rows == 3
    batch.step(None), batch.drain()
    assert batch.update([2], sources_of(40, 30)) == ([2], [0, 1])  # wider again
    assert batch.rows == 6


def test_idle_rows_are_done(batch: DeviceBatch) -> None:
    batch.update([], sources_of(20, 12))
    assert batch.rows == 6
    for result in [*batch.step(None), *batch.drain()]:
        assert result.done.tolist() == [False, False, True, True, True, True]
    assert batch.update([1], None) == ([0], [])  # into the bucket of one
    assert batch.step(None)[0].done.tolist() == [False]


def test_sentences_go_on_in_other_rows_and_buckets(machine: Machine) -> None:
    backend = machine.translator()._backend
    options = dataclasses.replace(SEARCH, min_length=40)  # nobody is done before

    def log_probs(batch: Any, row: int) -> list[list[float]]:
        results = [*batch.step(None), *batch.drain()]
        return [result.log_probs[row].tolist() for result in results]

    alone = backend.batch(options, 2)
    alone.update([], sources_of(15, most=40))
    expected = [log_probs(alone, 0) for _ in range(5)]
    moved = backend.batch(options, 2)
    moved.update([], sources_of(40, 9, 9, 9, 9, 15, most=40))
    found = [log_probs(moved, 5)]  # of 6x48
    assert moved.update([2, 5], None) == ([2, 0], [])
    found.append(log_probs(moved, 0))  # of 3x16: another row, narrower
    assert moved.update([0], sources_of(9, 20, 9, 9, most=40)) == ([0], [1, 2, 3, 4])
    found.append(log_probs(moved, 0))  # of 6x24: wider
    assert moved.update([0], sources_of(48, most=40)) == ([0], [1])
    found.append(log_probs(moved, 0))  # of 6x48
    assert moved.update([0], None) == ([0], [])
    found.append(log_probs(moved, 0))  # of 1x48
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_room_by_length(batch: DeviceBatch) -> None:
    assert [batch.room(length) for length in (10, 24, 48, 49)] == [6, 6, 6, 0]


def test_more_than_the_engines_take(batch: DeviceBatch) -> None:
    with pytest.raises(BackendError, match=r"takes 7 sentences of 9 tokens; they have 1x48, 3x16"):
        batch.update([], sources_of(*[9] * 7))


def test_steps_ahead_must_be_fetched_first(batch: DeviceBatch) -> None:
    batch.update([], sources_of(12, 12))
    assert len(batch.step(None)) == 4
    with pytest.raises(RuntimeError, match="cannot update: steps were taken ahead"):
        batch.update([0], None)
    assert len(batch.drain()) == 4
    assert batch.drain() == []
    assert len(batch.step(np.full(batch.rows, FREE))) == 1  # forced or not: one, and none ahead
    assert batch.drain() == []


def test_no_steps_ahead_beyond_the_longest_translation(batch: DeviceBatch) -> None:
    batch.update([], sources_of(12, 12, most=6))
    assert len(batch.step(None)) == 4
    assert len(batch.step(None)) == 4  # of which two do nothing
    assert batch.drain() == []


# ---- failures ----


def test_without_a_cuda_graph(
    machine: Machine, reference: Translator, caplog: pytest.LogCaptureFixture
) -> None:
    machine.settings["refuse_capture"] = True
    sources = random_sources(16)
    translator = machine.translator(profiles=(Profile(4, 48),))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            found = translator.translate_ids(sources, SEARCH)
            assert_same(found, reference.translate_ids(sources, SEARCH))
    told = [record.message for record in caplog.records if "CUDA graph" in record.message]
    assert told == [
        "steps of 4x48 run without a CUDA graph, which is slower: operation not permitted when "
        "stream is capturing."
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


def test_a_device_that_failed_is_not_used_again(machine: Machine, reference: Translator) -> None:
    translator, sources = machine.translator(), random_sources(6)
    machine.settings["fail_after"] = 5
    with pytest.raises(BackendError, match="failed twice: an illegal memory access"):
        translator.translate_ids(sources, SEARCH)
    gc.collect()
    del machine.settings["fail_after"]
    assert_same(translator.translate_ids(sources, SEARCH), reference.translate_ids(sources, SEARCH))
    assert len(machine.devices) == 3  # two died
