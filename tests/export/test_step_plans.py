"""Execution plans of the step: what an engine of base copies, and its kernel launches."""

from __future__ import annotations

import pytest
from support.engine_plans import Plan, read_plans
from support.engines import attention, transformer_graphs

from translate_trt.export.engines.builder import build_engine
from translate_trt.export.engines.network import Graph, load_builder
from translate_trt.export.engines.options import EngineOptions
from translate_trt.runtime.backends.engines import Profile
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.train.config import ModelConfig

pytestmark = pytest.mark.slow

LIMITS, BEAMS = Limits(256, 306), 4
CAPACITY = BEAMS * LIMITS.max_target_length
SHORT = BEAMS * 32
PROFILES = (
    Profile(64, LIMITS.max_source_length, SHORT),
    Profile(64, LIMITS.max_source_length, CAPACITY),
)
# The decoder of base: vocabulary and encoder have no influence on a step's launches.
MODEL = ModelConfig(vocabulary_size=8000, encoder_layers=1)


def elements(slots: int) -> int:
    """Return the number of elements of that many slots of a cache, or of source positions."""
    return 64 * MODEL.heads * slots * MODEL.d_k


def plans_of(graph: Graph, *profiles: Profile) -> list[Plan]:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    options = EngineOptions(cache=None, compute_capabilities=("8.9",))
    return read_plans(build_engine(load_builder("tensorrt_rtx"), graph, profiles, options).plan)


def step_plans(*disabled_passes: str) -> list[Plan]:
    _, graphs = transformer_graphs(
        MODEL, "tensorrt-rtx-fp16", LIMITS, BEAMS, disabled_passes=disabled_passes
    )
    return plans_of(graphs["step"], *PROFILES)


def test_plans_show_the_copies_of_fused_attention() -> None:
    cache = 8 * 64 * 64  # elements of a sentence's cache
    graph = attention("float16", "float16", slots=64)
    single, batch = plans_of(graph, Profile(1, 32), Profile(8, 32))
    # The update in place covers new elements only.
    assert [kernel.operations for kernel in single.copies(cache)] == [["Resh"], ["Resh"]]
    assert single.copies(cache + 1) == []
    assert len(single.kernels) == 4
    assert len(batch.copies(8 * cache)) == 2
    # Dynamic shapes: sizes are computed on the host and copied to the GPU.
    assert (single.shape_commands, batch.shape_commands > 0) == (0, True)


@pytest.mark.nightly
def test_a_step_copies_no_cache_and_reads_only_the_slots_in_use() -> None:
    short, whole = step_plans()
    assert short.covering(elements(CAPACITY)) == []
    for plan, slots in ((short, SHORT), (whole, LIMITS.max_source_length)):
        assert plan.copies(elements(slots)) == []
        assert len(plan.kernels) <= 121
        assert plan.shape_commands == 0
    # With all slots in use, the kernels that read them compute sums.
    reading = whole.covering(elements(CAPACITY))
    assert len(reading) >= MODEL.decoder_layers
    assert all("Sum" in kernel.operations for kernel in reading)


@pytest.mark.nightly
def test_the_attention_operator_copies_keys_and_values() -> None:
    # The form that `--disable-pass attention-sums` keeps, for comparisons on a GPU.
    short, whole = step_plans("attention-sums")
    assert len(short.copies(elements(SHORT))) >= 2 * MODEL.decoder_layers
    assert len(whole.copies(elements(CAPACITY))) >= 2 * MODEL.decoder_layers
    assert len(short.kernels) > 121
