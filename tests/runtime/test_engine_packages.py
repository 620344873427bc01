"""The table of packages and GPUs, and what depends on it."""

from __future__ import annotations

import sys
import tomllib
import types
from typing import Any

import pytest
from support.paths import ROOT

from translate_trt.export.targets import TARGETS
from translate_trt.runtime.backends import gpu_package, packages
from translate_trt.runtime.backends.gpu_package import main
from translate_trt.runtime.backends.packages import (
    PACKAGES,
    SUPPORT,
    capabilities,
    check_driver,
    cubin_for,
    extra,
    import_package,
    package_for,
    portable_capabilities,
    precisions,
    supports,
    target_for,
    unsupported,
)
from translate_trt.runtime.errors import BackendError, TranslateTrtError
from translate_trt.runtime.version import version_numbers


@pytest.mark.parametrize(
    ("capability", "package"),
    [
        *((name, "tensorrt_rtx") for name in ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1")),
        *((name, "tensorrt") for name in ("8.7", "9.0", "10.0", "10.3", "11.0", "13.0")),
        *((name, None) for name in ("5.2", "7.0", "")),
    ],
)
def test_the_package_of_a_gpu(
    capability: str,
    package: str | None,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(packages.importlib.util, "find_spec", lambda name: name in PACKAGES or None)
    assert package_for(capability) == package
    assert main([capability]) == (1 if package is None else 0)
    printed = capsys.readouterr()
    assert printed.out == ("" if package is None else f"{extra(package)}\n")
    assert bool(printed.err) == (package is None)


def test_plans_are_the_default_from_hopper_on_without_tensorrt() -> None:
    for capability in ("9.0", "10.0", "10.3", "12.0", "12.1"):
        assert package_for(capability, installed=()) == "cuda"
        assert package_for(capability, installed=("tensorrt",)) != "cuda"
    assert package_for("9.0", installed=("tensorrt_rtx",)) == "cuda"  # which does not support it
    for capability in ("8.0", "8.9", "11.0", "13.0"):
        assert package_for(capability, installed=()) in PACKAGES


def test_cubins_run_on_later_minor_capabilities_before_hopper() -> None:
    found = [cubin_for(name) for name in ("8.0", "8.7", "9.0", "10.3", "12.1", "7.5", "11.0", "")]
    assert found == ["8.0", "8.6", "9.0", "10.3", "12.1", None, None, None]
    assert cubin_for("10.3", ("9.0", "10.0")) is None
    assert cubin_for("8.9", ("8.6", "9.0")) == "8.6"


def test_a_target_keeps_its_precision_with_another_package() -> None:
    for name, target in TARGETS.items():
        if target.package is not None:
            for other in PACKAGES:
                renamed = target_for(name, target.package, other)
                assert (TARGETS[renamed].package, TARGETS[renamed].precision) == (
                    other, target.precision
                )  # fmt: skip


def test_precisions() -> None:
    assert precisions("tensorrt_rtx", "7.5") == ("fp16",)
    assert "bf16" not in precisions("tensorrt", "7.5")
    assert set(precisions("tensorrt", "9.0")) == {"fp16", "bf16", "fp32"}


def test_an_unsupported_gpu_without_any_package() -> None:
    message = unsupported("tensorrt-fp16", "tensorrt", "NVIDIA V100", "7.0")
    assert "tensorrt-fp16" in message
    assert "'translate-trt[torch,export]'" in message


def test_the_machine_is_asked_last(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_package, "compute_capability", lambda: "9.0")
    monkeypatch.setattr(gpu_package, "package_for", lambda _: "tensorrt_rtx")
    assert main([]) == 0
    assert capsys.readouterr().out == "tensorrt-rtx\n"
    monkeypatch.setattr(gpu_package, "compute_capability", lambda: None)
    assert main([]) == 3
    assert "nvidia-smi" in capsys.readouterr().err


# ---- one table ----


def test_the_extras_ask_for_the_versions_of_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    for package, support in SUPPORT.items():
        assert f"{extra(package)}>={support.since}" in extras[extra(package)]


def test_the_installed_tensorrt_rtx() -> None:
    module = pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    assert version_numbers(module.__version__) >= version_numbers(SUPPORT["tensorrt_rtx"].since)
    assert capabilities("tensorrt_rtx", module) == capabilities("tensorrt_rtx")
    assert portable_capabilities(module) == portable_capabilities()


def test_the_list_of_an_installed_package_counts() -> None:
    members = {"NONE": 0, "CURRENT": 1, "SM75": 75, "SM90": 90, "SM130": 130}
    newer: Any = types.SimpleNamespace(
        ComputeCapability=types.SimpleNamespace(__members__=members), __version__="2.0"
    )
    assert capabilities("tensorrt_rtx", newer) == ("7.5", "9.0", "13.0")
    assert portable_capabilities(newer) == ("9.0", "13.0")
    assert supports("tensorrt_rtx", "9.0", newer)
    assert "TensorRT-RTX 2.0 does not support" in unsupported(
        "tensorrt-rtx-fp16", "tensorrt_rtx", "NVIDIA A10", "8.6", newer
    )


# ---- drivers ----


@pytest.mark.parametrize(
    ("driver", "installed", "parts"),
    [
        (None, {"tensorrt-cu13": "11.4"}, ()),
        ("13.0", {"tensorrt-cu13": "11.4"}, ()),
        ("13.1", {"tensorrt-cu12": "11.4"}, ()),
        ("12.8", {}, ()),
        ("12.8", {"tensorrt-cu13": "11.4"}, ("(to 580 or newer)", "pip install tensorrt-cu12")),
        ("11.4", {"tensorrt-cu12": "11.4"}, ("(to 525.60.13 or newer)",)),
    ],
)  # fmt: skip
def test_drivers_and_builds(
    driver: str | None, installed: dict[str, str], parts: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(packages, "driver_version", lambda: driver)
    monkeypatch.setattr(packages, "_installed", installed.get)
    if not parts:
        check_driver("tensorrt")
        return
    with pytest.raises(BackendError) as caught:
        check_driver("tensorrt")
    for part in parts:
        assert part in str(caught.value)
    assert ("build for" in str(caught.value)) == (driver != "11.4")


def test_the_installed_build() -> None:
    pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx is not installed")
    assert packages._installed_build("tensorrt_rtx") in (12, 13)


# ---- imports ----


def test_a_package_that_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> None:
        raise OSError("libnvinfer.so.11: cannot open shared object file")

    monkeypatch.setattr(packages.importlib, "import_module", broken)
    with pytest.raises(TranslateTrtError, match=r"libnvinfer.*11"):
        import_package("tensorrt", required=False)


@pytest.mark.parametrize("package", PACKAGES)
def test_a_missing_package(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert import_package(package, required=False) is None
    with pytest.raises(TranslateTrtError) as caught:
        import_package(package)
    assert f"pip install 'translate-trt[{extra(package)}]'" in str(caught.value)
