"""Compiled kernels: choice of the library, its status, and equal translations."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from support.paths import ROOT

from translate_trt.runtime import Translation, Translator, kernels
from translate_trt.runtime.backends import Settings, load_graphs
from translate_trt.runtime.backends import onnxruntime as ort_backend
from translate_trt.runtime.backends.nvidia_driver import Gpu
from translate_trt.runtime.bundle.manifest import FORMAT_VERSION, read_manifest
from translate_trt.runtime.errors import BackendError, BundleError

LINES = [
    "the cat runs.",
    "a big green house by the river.",
    "the dog walks over the small tree and the cat sleeps under the big green house.",
    "Haus",
    "the river runs under the tree, and a dog eats.",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the library, which is missing, without an environment variable."""
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    monkeypatch.setattr(kernels, "__file__", str(tmp_path / "place/__init__.py"))
    (tmp_path / "place").mkdir()
    return tmp_path / "place" / kernels.FILE_NAME


def load(bundle: Path, target: str = "onnx-fp32", **settings: str) -> None:
    entry = read_manifest(bundle).target(target)
    files = {role: file.locate(bundle) for role, file in entry.files.items()}
    load_graphs("onnxruntime", files, entry.contract, Settings(**settings))  # type: ignore[arg-type]


def test_the_library_that_is_built(
    place: Path, make_library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (kernels.library(), kernels.describe()) == (None, "")
    assert kernels.status() == "none (not built; run bash scripts/build_kernels.sh)"
    make_library("avx512_vnni").rename(place)
    assert kernels.library() == place
    assert kernels.describe() == kernels.status() == "avx512_vnni"
    monkeypatch.setenv(kernels.VARIABLE, "none")
    assert kernels.library() is None
    assert kernels.status() == "none (disabled by TRANSLATE_TRT_KERNELS)"


def test_a_file_that_is_no_such_library(
    place: Path, make_library: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    for path in (text, make_library("foreign", source="int translate(void) {{ return 1; }}\n")):
        monkeypatch.setenv(kernels.VARIABLE, str(path))
        with pytest.raises(BackendError, match=f"{path} is no library of compiled kernels"):
            kernels.describe()


def test_a_library_for_bundles_of_another_format(
    make_library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    version = FORMAT_VERSION - 1
    source = 'const char* translate_trt_kernels(void) {{ return "{name}"; }}\n'
    source += f"int translate_trt_kernels_format(void) {{{{ return {version}; }}}}\n"
    path = make_library("old", source=source)
    monkeypatch.setenv(kernels.VARIABLE, str(path))
    with pytest.raises(BackendError, match=f"{path} was built for bundles of format {version}, "):
        kernels.describe()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the libraries registered with ONNX Runtime."""
    given: list[str] = []

    class Options(ort.SessionOptions):  # type: ignore[misc]
        def register_custom_ops_library(self, path: str) -> None:
            given.append(path)
            super().register_custom_ops_library(path)

    monkeypatch.setattr(ort, "SessionOptions", Options)
    return given


def test_onnxruntime_is_given_the_library_for_both_graphs(
    place: Path,
    compiled_bundle: Path,
    make_library: Callable[..., Path],
    registered: list[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "translate_trt")
    load(compiled_bundle)
    assert registered == []
    make_library("avx512_vnni").rename(place)
    load(compiled_bundle, device="cpu")
    assert registered == [str(place)] * 2
    assert "compiled kernels: avx512_vnni" in caplog.text


def test_another_processor(
    place: Path, compiled_bundle: Path, make_library: Callable[..., Path], registered: list[str]
) -> None:
    make_library("").rename(place)
    assert (kernels.describe(), kernels.status()) == ("", "none (no kernels for this CPU)")
    load(compiled_bundle)
    assert registered == []


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_gpu_s_sessions_get_none(
    place: Path,
    compiled_bundle: Path,
    make_library: Callable[..., Path],
    registered: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make_library("avx512_vnni").rename(place)
    monkeypatch.setattr(
        ort, "get_available_providers", lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    monkeypatch.setattr(ort_backend, "find_gpu", lambda index: Gpu("NVIDIA A10", "8.6", 72))
    # Nearly nowhere it is there; what counts is that it is asked for, and without the library.
    with contextlib.suppress(BackendError, BundleError):
        load(compiled_bundle, device="cuda")
    assert registered == []


def translations(bundle: Path, target: str) -> list[Translation]:
    translator = Translator(bundle, target, threads=1)
    return translator.translate(LINES * 3, translator.default_options)


# What the order of a sum changes; in 8 bits it can move a number to the next step of its scale.
TOLERANCE = {"onnx-fp32": 1e-4, "onnx-int8": 2e-2}


@pytest.mark.parametrize("target", list(TOLERANCE))
def test_translations_are_the_same_with_and_without(
    search_kernels: str, compiled_bundle: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_kernels = translations(compiled_bundle, target)
    monkeypatch.setenv(kernels.VARIABLE, "none")
    without = translations(compiled_bundle, target)
    assert [one.text for one in with_kernels] == [one.text for one in without]
    np.testing.assert_allclose(
        [one.score for one in with_kernels], [one.score for one in without], atol=TOLERANCE[target]
    )


@pytest.fixture(scope="module")
def objects() -> tuple[list[Path], list[Path]]:
    """Object files of the library: portable ones, and those for special instructions."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm")
    chosen = {
        name: value for name, value in os.environ.items() if name not in ("SANITIZE", "TILES")
    }
    done = subprocess.run(
        ["bash", ROOT / "scripts/build_kernels.sh"],
        env=chosen, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    folder = ROOT / "build/native/kernels/CMakeFiles/translate_trt_kernels.dir"
    special = sorted(
        path
        for suffix in ("avx2", "avxvnni", "avx512", "amx")
        for path in folder.glob(f"*_{suffix}.cc.o")
    )
    if not special:
        pytest.skip("there are no kernels for special instructions of this processor's kind")
    return sorted(set(folder.rglob("*.o")) - set(special)), special


def symbols(path: Path) -> list[tuple[str, str]]:
    """Return type (of nm) and name of every symbol that an object file defines."""
    found = subprocess.run(
        ["nm", "-P", "--defined-only", path], capture_output=True, text=True, check=True
    )
    words = [line.split() for line in found.stdout.splitlines()]
    return [(kind, name) for name, kind, *_ in words]


def may_leak(kind: str, name: str) -> bool:
    """True if the linker may use a file's copy of a symbol for files with other instructions.

    Local symbols (lower case) never leave their file. Weak ones (V, W, u) must be in a namespace
    that such files alone use, the others in ours.
    """
    if name == "DW.ref.__gxx_personality_v0":  # a pointer, alike in all files
        return False
    namespaces = "(4avx2|8avx_vnni|6avx512|3amx)" if kind in "VWu" else ""
    ours = re.match(f"_Z(T[ISV]|GV)?Z*NK?13translate_trt{namespaces}", name)
    return (kind.isupper() or kind == "u") and ours is None


def test_files_for_special_instructions_share_no_function(
    objects: tuple[list[Path], list[Path]],
) -> None:
    """The linker keeps one copy of a function in several files, which must run on every CPU."""
    leaks = {
        path.name: [name for kind, name in symbols(path) if may_leak(kind, name)]
        for path in objects[1]
    }
    assert {path: names for path, names in leaks.items() if names} == {}
    portable = {name for path in objects[0] for kind, name in symbols(path) if kind.isupper()}
    special = {name for path in objects[1] for kind, name in symbols(path) if kind.isupper()}
    assert portable & special <= {"DW.ref.__gxx_personality_v0"}


def test_portable_code_has_no_instructions_of_one_processor(
    objects: tuple[list[Path], list[Path]],
) -> None:
    """Code for all CPUs must not be compiled for AVX."""
    if shutil.which("objdump") is None:
        pytest.skip("there is no objdump")
    names = {name for path in objects[0] for kind, name in symbols(path) if kind in "TtWwVv"}
    code = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", ROOT / "build/native" / kernels.FILE_NAME],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    seen, wrong = 0, []
    for part in code.split("\n\n"):
        name = re.match(r"[0-9a-f]+ <(\S+)>:", part.strip())
        if name is not None and name[1] in names:
            seen += 1
            # Names of AVX's instructions and all later ones begin with v.
            wrong += [name[1]] * bool(re.search(r"\tv[a-z]", part))
    assert seen > 50
    assert wrong == []


def test_kernels_take_the_place_of_the_functions_bodies(
    compiled_kernels: str, compiled_bundle: Path, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx")
    step = read_manifest(compiled_bundle).target("onnx-fp32").files["step"]
    for register in (True, False):
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        if register:
            options.register_custom_ops_library(str(kernels.library()))
        path = str(step.locate(compiled_bundle))
        ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        nodes = onnx.load(options.optimized_model_filepath).graph.node
        assert ("translate_trt" in {node.domain for node in nodes}) == register


@pytest.mark.nightly
def test_kernels_of_emulated_processors(tmp_path: Path) -> None:
    command = ["bash", ROOT / "scripts/emulate_aarch64.sh", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cortex-a72: all passed: plain",
        "cortex-a76: all passed: plain neon_dotprod",
        "neoverse-n1: all passed: plain neon_dotprod",
        "max: all passed: plain neon_dotprod neon_i8mm",
    ]
