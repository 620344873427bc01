"""Compatibility of engine records with machines, without an engine or a GPU."""

from __future__ import annotations

import json
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from translate_trt.runtime.backends import engine_log, engines
from translate_trt.runtime.backends.engines import (
    ChangeSizes,
    EngineRecord,
    Machine,
    Profile,
    check_engine,
    load_engine,
    refit_engine,
)
from translate_trt.runtime.backends.nvidia_driver import Gpu, compute_capability
from translate_trt.runtime.backends.packages import portable_capabilities
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import BundleError

RECORD = EngineRecord(
    package="tensorrt",
    version="10.15.1.29",
    system="linux-x86_64",
    compute_capabilities=("8.6",),
    hardware_compatibility="none",
    version_compatible=False,
    weights_stripped=False,
    profiles=(Profile(1, 64), Profile(8, 64)),
    layers={"MATRIX_MULTIPLY": 3},
    tensors={"x": "float32 [?, 4]"},
    options={"tf32": "false"},
)
A10, H100, H200 = (
    Gpu("NVIDIA A10", "8.6", 72),
    Gpu("NVIDIA H100 PCIe", "9.0", 114),
    Gpu("NVIDIA H200", "9.0", 132),
)
PORTABLE = replace(RECORD, package="tensorrt_rtx", version="1.7.1.116",
                   compute_capabilities=portable_capabilities())  # fmt: skip
MACHINE = Machine("10.15.1.29", "linux-x86_64", A10)
RTX_MACHINE = replace(MACHINE, version="1.7.1.116")
REBUILD = "translate-trt export CHECKPOINT --target tensorrt-fp16 --output bundle --force"


def check(record: EngineRecord, machine: Machine) -> None:
    check_engine(record, machine, "tensorrt-fp16", "bundle")


def refusal(record: EngineRecord, machine: Machine, target: str = "tensorrt-fp16") -> str:
    with pytest.raises(BundleError) as caught:
        check_engine(record, machine, target, "bundle")
    return str(caught.value)


def with_gpu(machine: Machine, capability: str) -> Machine:
    return replace(machine, gpu=Gpu("NVIDIA Some", capability, 80))


# ---- the record ----


def test_a_record_survives_the_manifest() -> None:
    changed = (*RECORD.profiles, Profile(8, 32, 128, ChangeSizes(344, 0, 0, 64)))
    for record in (RECORD, PORTABLE, replace(RECORD, gpu=A10), replace(RECORD, profiles=changed)):
        value = json.loads(json.dumps(record.to_json()))
        assert EngineRecord.from_json(Fields(value, Path("manifest.json"), "engine")) == record


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("package", "onnx", "tensorrt_rtx"),
        ("version", 11, "string"),
        ("hardware_compatibility", "some", "same_compute_capability"),
        ("version_compatible", "yes", "false"),
        ("weights_stripped", None, "false"),
        ("compute_capabilities", "8.6", "strings"),
        ("profiles", {}, "is empty"),
        ("profiles", {"0": {"batch": 0, "source_length": 4}}, "at least 1"),
        (
            "profiles",
            {"0": {"batch": 1, "source_length": 4, "slots": 8, "changes": {"marked_tokens": 8}}},
            "sampled_ranks",
        ),
        ("layers", {"CAST": "many"}, "whole number"),
        ("gpu", "NVIDIA A10", "an object"),
        ("gpu", {"name": "NVIDIA A10", "compute_capability": "8.6"}, "missing"),
    ],
)
def test_a_record_that_cannot_be_read(name: str, value: object, match: str) -> None:
    fields = {**RECORD.to_json(), name: value}
    with pytest.raises(BundleError, match=match) as caught:
        EngineRecord.from_json(Fields(fields, Path("manifest.json"), "engine"))
    assert name in str(caught.value)


# ---- versions ----


def test_the_machine_it_was_made_on() -> None:
    check(RECORD, MACHINE)
    check(PORTABLE, RTX_MACHINE)


@pytest.mark.parametrize("version", ["10.15.1.30", "10.14.0.1", "11.0.0.1", "10.15.1"])
def test_another_version_is_refused(version: str) -> None:
    message = refusal(RECORD, replace(MACHINE, version=version))
    assert f"installed is {version}" in message
    assert REBUILD in message


@pytest.mark.parametrize(
    ("level", "machine", "fits"),
    [
        *(
            ("version", replace(MACHINE, version=version), fits)
            for version, fits in (
                ("10.15.1.29", True), ("10.15.2", True), ("10.16.0.1.post1", True),
                ("10.14.9.9", False), ("9.99.0.0", False), ("11.0.0.0", False),
            )
        ),
        *(
            ("ampere_plus", with_gpu(MACHINE, gpu), gpu != "7.5")
            for gpu in ("8.0", "9.0", "12.0", "7.5")
        ),
        *(("portable", with_gpu(RTX_MACHINE, gpu), True) for gpu in ("8.0", "8.9", "12.1")),
        *(
            ("portable", with_gpu(RTX_MACHINE, gpu), False)
            for gpu in ("7.0", "7.5", "8.7", "9.0", "10.3", "13.0")
        ),
    ],
)  # fmt: skip
def test_compatible_engines(level: str, machine: Machine, fits: bool) -> None:
    record = {
        "version": replace(RECORD, version_compatible=True),
        "ampere_plus": replace(RECORD, hardware_compatibility="ampere_plus"),
        "portable": PORTABLE,
    }[level]
    if fits:
        check(record, machine)
    else:
        refusal(record, machine)


def test_a_package_that_is_not_installed() -> None:
    message = refusal(PORTABLE, replace(MACHINE, version=None))
    assert "'translate-trt[tensorrt-rtx]'" in message


# ---- GPUs and systems ----


@pytest.mark.parametrize("gpu", ["8.0", "8.9", "9.0"])
@pytest.mark.parametrize("level", ["none", "same_compute_capability"])
def test_another_gpu_is_refused(gpu: str, level: str) -> None:
    refusal(replace(RECORD, hardware_compatibility=level), with_gpu(MACHINE, gpu))


@pytest.mark.parametrize("installed", [None, "1.7.1.116"])
def test_a_gpu_that_the_package_does_not_support(installed: str | None) -> None:
    machine = replace(RTX_MACHINE, version=installed, gpu=H100)
    message = refusal(PORTABLE, machine, "tensorrt-rtx-fp16")
    assert "capability" in message
    assert "'translate-trt[cpu,export,cuda]'" in message
    assert "Rebuild" not in message


def test_a_turing_gpu_needs_engines_of_its_own() -> None:
    assert "Rebuild it: translate-trt export" in refusal(PORTABLE, with_gpu(RTX_MACHINE, "7.5"))


def test_another_model_of_the_same_compute_capability() -> None:
    machine = replace(MACHINE, gpu=H200)
    record = replace(RECORD, compute_capabilities=("9.0",), gpu=H100)
    check(record, replace(machine, gpu=H100))
    assert "--hardware-compatible" in refusal(record, machine)
    refusal(record, replace(machine, gpu=replace(H100, multiprocessors=57)))  # a part of it (MIG)
    check(replace(record, gpu=None), machine)  # a level was chosen


def test_another_system_or_no_gpu() -> None:
    windows = replace(MACHINE, system="win32-amd64")
    assert "win32-amd64" in refusal(RECORD, windows)
    check(PORTABLE, replace(windows, version=PORTABLE.version))
    assert "onnx target" in refusal(RECORD, replace(MACHINE, gpu=None))


def test_named_gpus() -> None:
    record = replace(PORTABLE, compute_capabilities=("7.5", "8.9"))
    check(record, with_gpu(RTX_MACHINE, "7.5"))
    assert "for compute capability 7.5, 8.9" in refusal(record, RTX_MACHINE)


def test_the_present_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    package = types.ModuleType("tensorrt")
    package.__dict__["__version__"] = "10.15.1.29"
    monkeypatch.setitem(sys.modules, "tensorrt", package)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    monkeypatch.setattr(engines, "find_gpu", {0: H100, 6: A10}.get)
    assert Machine.present("tensorrt", 6) == Machine("10.15.1.29", engines.system_name(), A10)
    assert Machine.present("tensorrt_rtx").version is None


# ---- loading, with a fake of the package ----


class StandIn(types.ModuleType):
    """Fake of the TensorRT classes that loading and refitting use."""

    def __init__(self, loads: bool = True, refits: bool = True) -> None:
        super().__init__("tensorrt")
        self.loads, self.refits = loads, refits
        self.calls: list[object] = []
        fake = self

        class ILogger:
            pass

        class Runtime:
            engine_host_code_allowed = False

            def __init__(self, logger: Any) -> None:
                self.logger = logger

            def deserialize_cuda_engine(self, plan: bytes) -> object:
                fake.calls.append(("deserialize", plan, self.engine_host_code_allowed))
                if fake.loads:
                    return "engine"
                self.logger.log(types.SimpleNamespace(name="ERROR"), "version tag does not match")
                return None

        class Refitter:
            def __init__(self, engine: object, logger: Any) -> None:
                fake.calls.append(("refitter", engine))

            def refit_cuda_engine(self) -> bool:
                fake.calls.append("refitted")
                return fake.refits

        class OnnxParserRefitter:
            def __init__(self, refitter: object, logger: Any) -> None:
                pass

            def refit_from_file(self, path: str) -> bool:
                fake.calls.append(("weights", path))
                return True

        self.__dict__.update(ILogger=ILogger, Runtime=Runtime, Refitter=Refitter,
                             OnnxParserRefitter=OnnxParserRefitter)  # fmt: skip


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "step.engine"
    path.write_bytes(b"plan")
    return path


def install(monkeypatch: pytest.MonkeyPatch, package: StandIn) -> StandIn:
    monkeypatch.setitem(sys.modules, "tensorrt", package)
    # The logger belongs to the package; the one kept for the real one stays out of this.
    monkeypatch.setattr(engines, "logger", engine_log.logger.__wrapped__)
    return package


def test_loading(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    package = install(monkeypatch, StandIn())
    assert load_engine(plan, RECORD) == "engine"
    assert package.calls == [("deserialize", b"plan", False)]


def test_an_engine_that_does_not_load(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    install(monkeypatch, StandIn(loads=False))
    with pytest.raises(BundleError, match="version tag"):
        load_engine(plan, RECORD)


def test_code_in_an_engine_is_run_only_when_trusted(
    monkeypatch: pytest.MonkeyPatch, plan: Path
) -> None:
    package = install(monkeypatch, StandIn())
    record = replace(RECORD, version_compatible=True)
    with pytest.raises(BundleError, match="brings machine code"):
        load_engine(plan, record)
    assert package.calls == []
    load_engine(plan, record, trust_code=True)
    assert package.calls == [("deserialize", b"plan", True)]


def test_stripped_weights_are_put_back(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    package = install(monkeypatch, StandIn())
    record = replace(RECORD, weights_stripped=True)
    with pytest.raises(BundleError, match="ONNX"):
        load_engine(plan, record)
    assert package.calls == []
    load_engine(plan, record, weights=Path("step.onnx"))
    assert package.calls[1:] == [("refitter", "engine"), ("weights", "step.onnx"), "refitted"]


def test_weights_of_another_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, StandIn(refits=False))
    with pytest.raises(BundleError, match="engine"):
        refit_engine("engine", Path("other.onnx"), "tensorrt")


@pytest.mark.skipif(compute_capability() is not None, reason="with a GPU the plan is looked at")
def test_the_real_package_without_a_driver(plan: Path) -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    plan.write_bytes(b"no plan")
    with pytest.raises(BundleError, match="tensorrt_rtx says: ") as caught:
        load_engine(plan, PORTABLE)
    assert "no reason given" not in str(caught.value)
