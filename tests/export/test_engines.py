"""Builds of real engines with tensorrt_rtx, which needs a GPU only to run them."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper
from support.engines import GRAPH_BEAMS, addition, attention, crafted, transformer_graphs
from tqdm import tqdm

from translate_trt.export.engines import builder as builder_module
from translate_trt.export.engines.builder import build_engine, check_gpus
from translate_trt.export.engines.cache import Engine, engine_key
from translate_trt.export.engines.network import Builder, EngineError, Graph, load_builder
from translate_trt.export.engines.options import (
    EngineOptions,
    change_sizes,
    parse_lengths,
    parse_profiles,
)
from translate_trt.export.engines.progress import Progress
from translate_trt.runtime.backends.engine_log import logger
from translate_trt.runtime.backends.engines import ChangeSizes, EngineRecord, Profile
from translate_trt.runtime.backends.nvidia_driver import Gpu, compute_capability
from translate_trt.runtime.backends.packages import capabilities, portable_capabilities
from translate_trt.runtime.bundle.contract import Contract, TensorSpec
from translate_trt.runtime.bundle.manifest import Limits
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.io.cache_files import load_cached, store_cached
from translate_trt.train.checkpoint import Checkpoint

pytestmark = pytest.mark.slow

LIMITS = Limits(32, 82)
CHECKPOINTS = Limits(48, 98)  # of all bundles of the checkpoint, whose graphs are traced once
PROFILES = (Profile(1, 32), Profile(8, 32))
A10, A100 = Gpu("NVIDIA A10", "8.6", 72), Gpu("NVIDIA A100/40 GB", "8.0", 108)
H100, T4 = Gpu("NVIDIA H100 PCIe", "9.0", 114), Gpu("Tesla T4", "7.5", 40)
V100 = Gpu("Tesla V100", "7.0", 80)


@pytest.fixture(scope="module")
def rtx() -> Builder:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    return load_builder("tensorrt_rtx")


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the GPU of this machine, so that engines do not depend on it."""
    monkeypatch.setattr(builder_module, "find_gpu", lambda: None)


@pytest.fixture
def options(tmp_path: Path) -> EngineOptions:
    return EngineOptions(cache=tmp_path / "cache")


@pytest.fixture(scope="module")
def tiny(checkpoint: Checkpoint) -> tuple[Contract, dict[str, Graph]]:
    return transformer_graphs(checkpoint.model, "tensorrt-rtx-fp32", CHECKPOINTS)


def uncached(**fields: Any) -> EngineOptions:
    return EngineOptions(cache=None, **fields)


def described(spec: TensorSpec) -> str:
    axes = ", ".join("?" if isinstance(axis, str) else str(axis) for axis in spec.axes)
    return f"{spec.dtype} [{axes}]"


# ---- real models ----


@pytest.mark.parametrize(
    "precision",
    ["fp16", *(pytest.param(one, marks=pytest.mark.nightly) for one in ("fp32", "bf16"))],
)
def test_a_tiny_model_builds(rtx: Builder, precision: str, checkpoint: Checkpoint) -> None:
    _, graphs = transformer_graphs(checkpoint.model, f"tensorrt-rtx-{precision}", CHECKPOINTS)
    layers = {}
    for graph in graphs.values():
        profiles = profiles_of(graph, CHECKPOINTS)
        engine = build_engine(rtx, graph, profiles, uncached())
        assert_engine_keeps_the_contract(engine, graph)
        assert engine.record.profiles == profiles
        assert engine.record.compute_capabilities == portable_capabilities()
        assert engine.record.gpu is None
        assert f"{graph.outputs[0].name} [profile {len(profiles) - 1}]" in engine.log
        assert f"[profile {len(profiles)}]" not in engine.log
        layers[graph.name] = engine.record.layers
    # Keys and values of both layers are updated in place.
    assert layers["step"]["KV_CACHE_UPDATE"] == 4
    assert layers["encoder"]["ATTENTION_INPUT"] == 2
    assert "ATTENTION_INPUT" not in layers["step"]


def test_a_recurrent_model_builds(rtx: Builder, checkpoint: Checkpoint) -> None:
    config = replace(checkpoint.model, decoder_mixer="ssru")
    _, graphs = transformer_graphs(config, "tensorrt-rtx-fp16", CHECKPOINTS)
    step = graphs["step"]
    profiles = profiles_of(step, CHECKPOINTS)
    assert [one.slots for one in profiles] == [0, 0]
    engine = build_engine(rtx, step, profiles, uncached())
    assert_engine_keeps_the_contract(engine, step)
    assert "KV_CACHE_UPDATE" not in engine.record.layers


def profiles_of(graph: Graph, limits: Limits) -> tuple[Profile, ...]:
    longest = limits.max_source_length
    profiles = (Profile(1, longest), Profile(8, longest))
    options = EngineOptions(profiles=profiles, target_lengths=(16,))
    if graph.name == "encoder":
        return options.encoder_profiles(limits)
    caches = any(spec.name == "ancestry" for spec in graph.inputs)
    return options.step_profiles(limits, GRAPH_BEAMS, caches)


def assert_engine_keeps_the_contract(engine: Engine, graph: Graph) -> None:
    specs = (*graph.inputs, *graph.outputs)
    assert engine.record.tensors == {spec.name: described(spec) for spec in specs}
    assert "Engine Layer Information" in engine.log
    assert engine.plan[:4] == b"vtrt"
    assert not engine.cached


@pytest.mark.parametrize(
    ("dtype", "mask"),
    [
        ("float32", "float32"),
        ("float32", "bool"),
        ("float16", "float16"),
        ("float16", "bool"),
        ("bfloat16", "bfloat16"),
    ],
)
def test_fused_attention_builds_or_is_taken_apart(rtx: Builder, dtype: str, mask: str) -> None:
    # FP32 has no fused kernel: the build fails unless the layers are decomposable.
    engine = build_engine(rtx, attention(dtype, mask), PROFILES[:1], uncached())
    assert engine.record.layers["ATTENTION_INPUT"] == 1


# ---- build errors ----


def test_a_mask_of_another_type_is_refused_with_the_reason(rtx: Builder) -> None:
    with pytest.raises(EngineError, match="element type") as caught:
        build_engine(rtx, attention("float16", "float32"), PROFILES[:1], uncached())
    assert "Cast both inputs" in str(caught.value)


def test_all_unknown_operators_are_named_at_once(rtx: Builder) -> None:
    x = TensorSpec("x", "int8", ("N", 4))
    y = TensorSpec("y", "int8", (4, 4))
    nodes = [
        helper.make_node("MatMulInteger", ["x", "y"], ["z"], name="matmul"),
        helper.make_node("Invented", ["z"], ["w"], name="stranger", domain="elsewhere"),
    ]
    graph = crafted(nodes, [x, y], [TensorSpec("w", "int32", ("N", 4))], domain="elsewhere")
    with pytest.raises(EngineError) as caught:
        build_engine(rtx, graph, PROFILES[:1], uncached())
    message = str(caught.value)
    assert "'stranger'" in message
    assert "tensorrt target" in message
    assert "Invented: replace it" in message


def test_a_parse_error_names_node_operator_and_remedy(rtx: Builder) -> None:
    with pytest.raises(EngineError) as caught:
        build_engine(rtx, addition("float32", "float16"), PROFILES[:1], uncached())
    message = str(caught.value)
    assert "Add at 'sum'" in message
    assert "same input types" in message
    assert "never implicit" in message
    assert "catchCudaError" not in message


@pytest.mark.parametrize("content", [b"no model at all", b""], ids=["text", "empty"])
def test_a_file_that_is_not_a_model(rtx: Builder, content: bytes) -> None:
    with pytest.raises(EngineError, match=r"not an ONNX model|is missing"):
        build_engine(rtx, replace(addition(), model=content), PROFILES[:1], uncached())


def test_contract_violations_are_listed(rtx: Builder) -> None:
    graph = replace(
        addition(),
        inputs=[TensorSpec("x", "float16", ("N", 4)), TensorSpec("q", "float32", ("N", 4))],
        outputs=[TensorSpec("z", "float32", ("N", "S"))],
    )
    with pytest.raises(EngineError) as caught:
        build_engine(rtx, graph, PROFILES[:1], uncached())
    message = str(caught.value)
    for part in (
        "input x is float32, not float16",
        "input q is missing",
        "input y is unexpected",
        "output z has axes [?, 4], not ['N', 'S']",
    ):
        assert part in message


def test_swapped_axes(rtx: Builder) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = TensorSpec("x", "float32", ("S", "N")), TensorSpec("y", "float32", ("N", "S"))
    graph = replace(crafted([node], [x], [y]), inputs=[replace(x, axes=("N", "S"))])
    with pytest.raises(EngineError, match=r"named \['S'"):
        build_engine(rtx, graph, PROFILES[:1], uncached())


def test_a_growing_cache_is_refused(rtx: Builder) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    x, y = TensorSpec("x", "float32", ("N", "P")), TensorSpec("y", "float32", ("N", "P"))
    with pytest.raises(EngineError, match=r"axes P.*N"):
        build_engine(rtx, crafted([node], [x], [y]), PROFILES[:1], uncached())


def test_a_workspace_too_small(rtx: Builder, tiny: tuple[Contract, dict[str, Graph]]) -> None:
    with pytest.raises(EngineError, match=r"workspace_mib.*now 1"):
        build_engine(rtx, tiny[1]["encoder"], (Profile(64, 32),), uncached(workspace_mib=1))


def test_float32_matmuls_are_refused_for_turing(
    rtx: Builder, tiny: tuple[Contract, dict[str, Graph]]
) -> None:
    options = uncached(compute_capabilities=("7.5",))
    with pytest.raises(EngineError, match="choose tensorrt-rtx-fp16"):
        build_engine(rtx, tiny[1]["encoder"], PROFILES[:1], options)


@pytest.mark.skipif(compute_capability() is not None, reason="with a GPU this builds")
def test_stripping_weights_without_a_gpu(
    rtx: Builder, tiny: tuple[Contract, dict[str, Graph]]
) -> None:
    with pytest.raises(EngineError, match=r"strip_weights.*GPU"):
        build_engine(rtx, tiny[1]["encoder"], PROFILES[:1], uncached(strip_weights=True))


def test_an_unknown_package() -> None:
    with pytest.raises(OptionError, match="tensorrt_rtx"):
        load_builder("tensorflow")


# ---- GPUs to build for ----


def test_the_present_gpu_is_the_default(rtx: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "find_gpu", lambda: A10)
    record = builder_module._record(rtx, uncached(), PROFILES)
    assert record.compute_capabilities == ("8.6",)
    # An engine for a named 8.6 has another key: it can be built on any machine.
    named = builder_module._record(rtx, uncached(compute_capabilities=("8.6",)), PROFILES)
    assert named.compute_capabilities == ("8.6",)
    assert engine_key(b"", named.to_json()) != engine_key(b"", record.to_json())


@pytest.mark.parametrize(
    ("gpu", "target", "fields", "match"),
    [
        (H100, "tensorrt-rtx-fp16", {}, r"capability 9\.0.*'translate-trt\[cpu,export,cuda\]'"),
        (H100, "tensorrt-rtx-fp16", {"compute_capabilities": ("current",)}, "does not support"),
        (A10, "tensorrt-rtx-fp16", {"compute_capabilities": ("9.0",)}, "tensorrt target"),
        (V100, "tensorrt-fp32", {}, r"V100.*torch-fp16"),
        (T4, "tensorrt-rtx-bf16", {}, r"fp16.*tensorrt-rtx-fp16"),
        (T4, "tensorrt-bf16", {}, r"fp16.*tensorrt-fp32"),
        (None, "tensorrt-fp16", {}, "tensorrt-rtx target"),
        (None, "tensorrt-rtx-fp16", {"compute_capabilities": ("current",)}, "or portable"),
        (H100, "tensorrt-bf16", {}, None),
        (H100, "tensorrt-rtx-bf16", {"compute_capabilities": ("portable",)}, None),
        (H100, "tensorrt-rtx-bf16", {"compute_capabilities": ("8.9", "12.0")}, None),
        (A10, "tensorrt-rtx-fp32", {}, None),
        (T4, "tensorrt-rtx-fp16", {}, None),
        (None, "tensorrt-rtx-bf16", {}, None),
    ],
)  # fmt: skip
def test_gpus_that_are_refused_or_supported(
    gpu: Gpu | None, target: str, fields: dict[str, Any], match: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(builder_module, "find_gpu", lambda: gpu)
    package, _, precision = target.rpartition("-")
    refusal = pytest.raises((OptionError, EngineError), match=match) if match else nullcontext()
    with refusal:
        check_gpus(target, package.replace("-", "_"), precision, uncached(**fields))


def test_a_portable_engine_is_for_the_gpus_of_the_table(rtx: Builder) -> None:
    # The header of a plan has one bit for each compute capability (tensorrt_rtx 1.7.1).
    def bits(*names: str) -> int:
        options = uncached(compute_capabilities=names)
        plan = build_engine(rtx, addition(), PROFILES[:1], options).plan
        return int.from_bytes(plan[32:36], "little")

    single = {name: bits(name) for name in capabilities("tensorrt_rtx")}
    assert sum(single.values()) == bits(*single)
    portable = bits("portable")
    assert tuple(name for name, bit in single.items() if portable & bit) == portable_capabilities()


# ---- the cache ----


def refuse(*_: object) -> None:
    raise AssertionError("the builder was called")


def test_a_second_build_comes_from_the_cache(
    rtx: Builder, options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = build_engine(rtx, addition(), PROFILES, options)
    monkeypatch.setattr(builder_module, "_build", refuse)
    again = build_engine(rtx, addition(), PROFILES, options)
    assert again == replace(first, cached=True)
    others = [
        (addition("float16"), PROFILES, options),
        (addition(), PROFILES[:1], options),
        (addition(), PROFILES, replace(options, tf32=True)),
        (addition(), PROFILES, replace(options, optimization_level=2)),
        (addition(), PROFILES, replace(options, compute_capabilities=("8.6",))),
    ]
    for graph, profiles, chosen in others:
        with pytest.raises(AssertionError, match="builder"):
            build_engine(rtx, graph, profiles, chosen)
    newer = replace(rtx, version="99.0")
    with pytest.raises(AssertionError, match="builder"):
        build_engine(newer, addition(), PROFILES, options)


@pytest.mark.parametrize("damage", ["flipped", "cut", "emptied", "foreign"])
def test_a_damaged_entry_is_rebuilt(
    damage: str, rtx: Builder, options: EngineOptions, caplog: pytest.LogCaptureFixture
) -> None:
    build_engine(rtx, addition(), PROFILES[:1], options)
    assert options.cache is not None
    (entry,) = options.cache.glob("*.engine")
    content = entry.read_bytes()
    if damage == "foreign":  # whole, but of another shape
        store_cached(entry, b'{"record": {}, "log": ""}\nplan')
    else:
        middle = len(content) // 2
        flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        entry.write_bytes({"flipped": flipped, "cut": content[:middle], "emptied": b""}[damage])
    with caplog.at_level(logging.WARNING, "translate_trt"):
        engine = build_engine(rtx, addition(), PROFILES[:1], options)
    assert not engine.cached
    assert ("rebuilding" if damage == "foreign" else "is damaged") in caplog.text
    assert build_engine(rtx, addition(), PROFILES[:1], options).plan == engine.plan


# ---- progress and Ctrl-C ----


def test_ctrl_c_stops_the_build_and_leaves_nothing(
    rtx: Builder, options: EngineOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGINT)
    step = Progress.step

    def interrupted(self: Progress, name: str, index: int) -> bool:
        signal.raise_signal(signal.SIGINT)
        return step(self, name, index)

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            build_engine(rtx, addition(), PROFILES[:1], options)
    assert signal.getsignal(signal.SIGINT) is before
    assert options.cache is not None
    assert not options.cache.exists()
    assert not build_engine(rtx, addition(), PROFILES[:1], options).cached


def test_a_broken_bar_does_not_end_the_process(
    rtx: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(tqdm, "set_postfix_str", broken)
    with pytest.raises(BrokenPipeError):
        build_engine(rtx, addition(), PROFILES[:1], uncached())


def test_progress_counts_phases_inside_phases() -> None:
    progress = Progress(tqdm(total=100, disable=True))
    progress.start("build", None, 4)
    assert progress.fraction() == 0
    assert progress.step("build", 0)
    progress.start("inner", "build", 2)
    progress.step("inner", 0)
    assert progress.fraction() == pytest.approx(1 / 4 + 1 / 8)
    progress.finish("inner")
    assert progress.fraction() == pytest.approx(1 / 4)
    progress.stopped = signal.SIGINT
    assert not progress.step("build", 1)


# ---- options ----


def test_profiles_as_the_command_line_writes_them() -> None:
    assert parse_profiles("1x64, 8X64,64x256") == (Profile(1, 64), Profile(8, 64), Profile(64, 256))
    assert str(Profile(8, 64)) == "8x64"
    assert Profile(8, 63).ranges() == {"N": (1, 8, 8), "S": (1, 32, 63)}
    assert Profile(1, 1).ranges() == {"N": (1, 1, 1), "S": (1, 1, 1)}


def test_buckets() -> None:
    assert EngineOptions().encoder_profiles(LIMITS) == (Profile(1, 32), Profile(64, 32))
    assert EngineOptions(max_batch=1).encoder_profiles(LIMITS) == (Profile(1, 32),)
    given = EngineOptions(profiles=parse_profiles("8x32,1x16"))
    assert given.encoder_profiles(LIMITS) == (Profile(1, 16), Profile(8, 32))


def test_profiles_of_a_step_are_exact_shapes() -> None:
    slots = [one.slots for one in EngineOptions(max_batch=1).step_profiles(LIMITS, 4)]
    assert slots == [4 * length for length in (32, 64, 82)]
    given = EngineOptions(profiles=parse_profiles("8x32,1x16"), target_lengths=(9,))
    profiles = given.step_profiles(LIMITS, 2)
    assert profiles == (
        Profile(1, 16, 18), Profile(1, 16, 164), Profile(8, 32, 18), Profile(8, 32, 164)
    )  # fmt: skip
    assert str(profiles[2]) == "8x32 with 18 slots"
    exact = {"N": (8, 8, 8), "S": (32, 32, 32), "P": (18, 18, 18)}
    assert profiles[2].ranges() == exact | dict.fromkeys("BRDU", (0, 0, 0))
    # Of the default lengths, those beyond the longest translation are left out.
    assert [one.slots for one in EngineOptions(max_batch=1).step_profiles(Limits(8, 20), 4)] == [80]


def test_profiles_of_a_step_with_all_options_come_twice() -> None:
    given, changes = EngineOptions(max_batch=2), ChangeSizes(344, 0, 0, 64)
    plain, changed = given.step_profiles(LIMITS, 4), given.step_profiles(LIMITS, 4, True, changes)
    assert changed[: len(plain)] == plain
    assert changed[len(plain) :] == tuple(replace(one, changes=changes) for one in plain)
    ranges = changed[-1].ranges()
    assert [ranges[axis] for axis in "NBRDU"] == [
        (2, 2, 2), (0, 16, 344), (0, 0, 0), (0, 0, 0), (0, 16, 64)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("beams", "expected"),
    [
        (1, ChangeSizes(344, 1024, 1160, 0)),
        (4, ChangeSizes(344, 0, 0, 64)),
        (40, ChangeSizes(344, 0, 0, 8)),  # TensorRT orders no more than 3,840 candidates
        (100, ChangeSizes(344, 0, 0, 0)),
    ],
)
def test_sizes_of_the_inputs_of_all_options(beams: int, expected: ChangeSizes) -> None:
    assert change_sizes(LIMITS, beams, vocabulary_size=37_000) == expected
    assert change_sizes(Limits(4000, 4050), beams, 37_000).marked_tokens < 3_840


@pytest.mark.nightly
@pytest.mark.parametrize("beams", [1, GRAPH_BEAMS])
def test_a_step_with_all_options_builds(rtx: Builder, checkpoint: Checkpoint, beams: int) -> None:
    _, graphs = transformer_graphs(
        checkpoint.model, "tensorrt-rtx-fp16", CHECKPOINTS, beams=beams, all_options=True
    )
    step = graphs["step"]
    _, others = transformer_graphs(checkpoint.model, "tensorrt-rtx-fp16", CHECKPOINTS, beams=beams)
    nodes, fewer = (
        len(onnx.load_model_from_string(graph.content()).graph.node)
        for graph in (step, others["step"])
    )
    assert 160 <= nodes - fewer <= 180  # as docs/engines.md says
    changes = change_sizes(CHECKPOINTS, beams, checkpoint.model.vocabulary_size)
    options = EngineOptions(profiles=(Profile(8, 48),), target_lengths=(16,))
    profiles = options.step_profiles(CHECKPOINTS, beams, changes=changes)
    engine = build_engine(rtx, step, profiles, uncached())
    assert_engine_keeps_the_contract(engine, step)
    assert [one.changes for one in engine.record.profiles] == [None, None, changes, changes]


def test_target_lengths_as_the_command_line_writes_them() -> None:
    assert parse_lengths("32, 64,128") == (32, 64, 128)


@pytest.mark.parametrize(
    ("read", "texts"),
    [
        (parse_profiles, ["", "8", "8x", "x8", "1x2x3", "1x64,", "-1x64", "1.5x64"]),
        (parse_lengths, ["", "32,", "many", "-1", "1.5", "1x2"]),
    ],
)
def test_texts_that_cannot_be_read(read: Callable[[str], object], texts: list[str]) -> None:
    for text in texts:
        with pytest.raises(OptionError, match="length"):
            read(text)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_batch": 0}, "max_batch is 0"),
        ({"profiles": (Profile(0, 4),)}, "least 1"),
        ({"profiles": (Profile(9, 4),), "max_batch": 8}, "max_batch"),
        ({"profiles": (Profile(1, 4),), "max_batch": 8}, "many sentences"),
        ({"profiles": (Profile(9, 4),) * 2}, "profiles contain duplicates"),
        ({"profiles": (Profile(1, 33),)}, "max_source_length, 32"),
        ({"profiles": (Profile(8, 31), Profile(1, 8))}, "supports max_source_length"),
        ({"target_lengths": (0,)}, "at least 1"),
        ({"target_lengths": (8, 8)}, "duplicates: 8,8"),
        ({"target_lengths": (83,)}, "max_target_length, 82"),
        ({"optimization_level": 6}, "at least 0 and at most 5"),
        ({"workspace_mib": 0}, "workspace_mib is 0"),
        ({"hardware_compatible": "all"}, "same_compute_capability"),
        ({"compute_capabilities": ("sm86",)}, "write 8.6"),
        ({"compute_capabilities": ("8.6", "8.6")}, "contain duplicates"),
        ({"compute_capabilities": ("8.6", "current")}, "cannot be combined"),
        ({"plugins": True, "strip_weights": True}, "strip_weights"),
        ({"plugins": True, "version_compatible": True}, "version_compatible"),
    ],
)
def test_options_out_of_range(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        EngineOptions(**fields).step_profiles(LIMITS, 4)


@pytest.mark.parametrize(
    ("package", "fields", "message"),
    [
        ("tensorrt", {"compute_capabilities": ("8.6",)}, "use hardware_compatible"),
        ("tensorrt_rtx", {"hardware_compatible": "ampere_plus"}, "use compute_capabilities"),
        ("tensorrt_rtx", {"version_compatible": True}, "lean runtime"),
        ("tensorrt_rtx", {"plugins": True}, "cuda target"),
        ("tensorrt", {"plugins": True}, None),
    ],
)
def test_options_of_the_other_package(
    package: str, fields: dict[str, Any], message: str | None
) -> None:
    refusal = pytest.raises(OptionError, match=message) if message else nullcontext()
    with refusal:
        EngineOptions(**fields).check_package(package)


# ---- tensorrt, emulated by tensorrt_rtx ----


@pytest.fixture
def played(rtx: Builder, monkeypatch: pytest.MonkeyPatch) -> Builder:
    """Run the branches of `tensorrt` with the package tensorrt_rtx, which has the same API."""
    monkeypatch.setitem(sys.modules, "tensorrt", rtx.module)
    monkeypatch.setattr(builder_module, "find_gpu", lambda: A100)
    return load_builder("tensorrt")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_timings_are_kept_per_version_and_gpu(played: Builder, options: EngineOptions) -> None:
    engine = build_engine(played, addition(), PROFILES[:1], options)
    assert engine.record.package == "tensorrt"
    assert engine.record.compute_capabilities == ("8.0",)
    assert engine.record.gpu == A100
    assert options.cache is not None
    (timings,) = options.cache.glob("timings-*.cache")
    assert played.version in timings.name
    assert timings.name.endswith("-NVIDIA-A100-40-GB-8.0-108-SMs.cache")
    assert load_cached(timings)
    timings.write_bytes(b"damaged")
    build_engine(played, addition("float16"), PROFILES[:1], options)
    assert load_cached(timings)


class FakeTimings:
    """Fake of ITimingCache."""

    def __init__(self, content: bytes, fits: bool) -> None:
        self.content, self.fits = content, fits
        self.combined: list[bytes] = []

    def combine(self, other: FakeTimings, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if other.fits:
            self.combined.append(other.content)
        return other.fits

    def serialize(self) -> bytes:
        return b"timings of this GPU"


class FakeConfig:
    """Fake of the IBuilderConfig methods of timing caches, for a GPU of its own.

    Content that begins with "foreign" is of another GPU, "damaged" cannot be read.
    """

    def __init__(self, takes_any: bool = True) -> None:
        self.takes_any = takes_any
        self.attached: FakeTimings | None = None

    def create_timing_cache(self, content: bytes) -> FakeTimings | None:
        if content.startswith(b"damaged"):
            return None
        return FakeTimings(content, not content.startswith(b"foreign"))

    def set_timing_cache(self, timings: FakeTimings, ignore_mismatch: bool) -> bool:
        assert not ignore_mismatch
        if timings.fits and self.takes_any:
            self.attached = timings
        return timings.fits and self.takes_any

    def get_timing_cache(self) -> FakeTimings | None:
        return self.attached


@pytest.mark.parametrize("kind", ["own", "foreign", "damaged"])
def test_timings_that_do_not_fit_are_replaced(
    kind: str, played: Builder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    builder_module._TimingCache(played, first := FakeConfig(), tmp_path).save()
    (path,) = tmp_path.iterdir()
    assert first.attached is not None
    assert load_cached(path) == b"timings of this GPU"
    store_cached(path, kind.encode())
    timings = builder_module._TimingCache(played, config := FakeConfig(), tmp_path)
    assert config.attached is not None
    assert config.attached.content == (b"own" if kind == "own" else b"")
    # Meanwhile, another process stores timings of the same kind.
    timings.save()
    assert config.attached.combined == ([b"own"] if kind == "own" else [])
    assert load_cached(path) == b"timings of this GPU"
    assert ("GPU" in caplog.text) == (kind != "own")


def test_a_build_without_timings_ends_well(played: Builder, tmp_path: Path) -> None:
    timings = builder_module._TimingCache(played, FakeConfig(takes_any=False), tmp_path)
    timings.save()
    assert list(tmp_path.iterdir()) == []


def test_engines_of_another_gpu_model_have_another_key(
    played: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(gpu: Gpu, **fields: Any) -> EngineRecord:
        monkeypatch.setattr(builder_module, "find_gpu", lambda: gpu)
        return builder_module._record(played, uncached(**fields), PROFILES)

    other = replace(H100, name="NVIDIA H200", multiprocessors=132)
    level = {"hardware_compatible": "same_compute_capability"}
    assert record(H100).gpu == H100
    assert record(H100, **level).gpu is None
    keys = [
        engine_key(b"", record(gpu, **fields).to_json())
        for fields in ({}, level)
        for gpu in (H100, other)
    ]
    assert len(set(keys)) == 3
    assert keys[2] == keys[3]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compatibility_reaches_the_builder(played: Builder) -> None:
    module = played.module
    network_builder = module.Builder(logger("tensorrt_rtx"))
    config = network_builder.create_builder_config()
    flags = module.BuilderFlag
    assert config.get_flag(flags.TF32)
    builder_module._configure(played, config, uncached(version_compatible=True, strip_weights=True))
    assert not config.get_flag(flags.TF32)
    assert config.get_flag(flags.VERSION_COMPATIBLE)
    assert config.get_flag(flags.STRIP_PLAN)
