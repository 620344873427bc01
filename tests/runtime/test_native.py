"""Python on libtranslate_trt and the Python reference give equal results."""

from __future__ import annotations

import ctypes
import importlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.cpp_library import ROOT, SEARCHES, Library
from support.kernels import LIBRARY_SOURCE
from support.prompts import SOURCE, TARGET, with_prompt
from support.translations import random_sources, rounding

from translate_trt.runtime import SearchOptions, TranslationService, Translator, native
from translate_trt.runtime.errors import BackendError, BundleError, InputError, OptionError
from translate_trt.runtime.line_search import LineSearch
from translate_trt.runtime.native import abi, device_functions
from translate_trt.runtime.native import core as native_core
from translate_trt.runtime.results import Hypothesis

pytestmark = pytest.mark.slow

HEADER = ROOT / "runtime/cpp/include/translate_trt/translate_trt.h"
LINES = [
    "the cat runs.", "", "a dog eats green", "   ", "Haus Hund läuft.", "the big tree sleeps",
    "漢字 \U0001f600 é", "a\0b\tc\x0bd\u2028e", "one \ud800 half", "x" * 300,
    "The cat sleeps under the big tree. A dog walks over the river! " * 8,
]  # fmt: skip


@pytest.fixture
def core(library: Library, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make translators run on the library, and return its path."""
    path = library.folder / native.FILE_NAME
    monkeypatch.setenv(native.VARIABLE, str(path))
    return path


def on_python(bundle: Path, *arguments: Any, **settings: Any) -> Translator:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(native.VARIABLE, "none")
        translator = Translator(bundle, *arguments, **settings)
    assert translator.core is None
    return translator


def on_core(bundle: Path, *arguments: Any, **settings: Any) -> Translator:
    translator = Translator(bundle, *arguments, **settings)
    assert translator.core is not None
    return translator


def assert_same(found: Hypothesis, expected: Hypothesis, tolerance: float = 0) -> None:
    assert found.tokens == expected.tokens
    assert found.score == pytest.approx(expected.score, abs=tolerance)
    assert found.token_log_probs == pytest.approx(expected.token_log_probs, abs=tolerance)
    assert found.truncated == expected.truncated
    assert (found.attention is None) == (expected.attention is None)
    if expected.attention is not None and found.attention is not None:
        np.testing.assert_allclose(found.attention, expected.attention, rtol=0, atol=tolerance)


# ---- what is found ----


@pytest.mark.parametrize("target", ["onnx-fp32", "onnx-int8"])
@pytest.mark.parametrize("search", SEARCHES)
def test_it_finds_what_python_finds(
    core: Path, compiled_bundle: Path, target: str, search: dict[str, Any]
) -> None:
    """Line by line: there both have the same batches, but not the same groups of the encoder."""
    options, tolerance = SearchOptions(**search), rounding()
    ours, theirs = (make(compiled_bundle, target, threads=1) for make in (on_core, on_python))
    for line in LINES:
        found, expected = ours.translate(line, options), theirs.translate(line, options)
        assert [one.text for one in found.hypotheses] == [one.text for one in expected.hypotheses]
        for one, other in zip(found.hypotheses, expected.hypotheses, strict=True):
            assert one.score == pytest.approx(other.score, rel=1e-12, abs=9 * tolerance)  # a sum
            for segment, right in zip(one.segments, other.segments, strict=True):
                assert_same(segment, right, tolerance)


def test_all_lines_at_once(core: Path, compiled_bundle: Path, compiled_kernels: str) -> None:
    ours = on_core(compiled_bundle, threads=1, workers=2, batch_tokens=60)
    expected = on_python(compiled_bundle, threads=1).translate(LINES * 5)
    assert ours.translate(LINES * 5) == expected
    assert list(ours.translate_iter(iter(LINES * 5), chunk_lines=7)) == expected


def test_token_ids_and_prefixes(core: Path, compiled_bundle: Path) -> None:
    ours, theirs = on_core(compiled_bundle, threads=1), on_python(compiled_bundle, threads=1)
    prefixes = [[5, 6], [], [7], [5], [], [6, 7], []]
    for source, prefix in zip([*random_sources(6, seed=8), []], prefixes, strict=True):
        (found,) = ours.translate_ids([source], target_prefixes=[prefix])
        (expected,) = theirs.translate_ids([source], target_prefixes=[prefix])
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    given = "the cat runs.", None, "Haus"
    assert ours.translate(*given) == theirs.translate(*given)


def test_languages(core: Path, compiled_bundle: Path, tmp_path: Path) -> None:
    several = with_prompt(compiled_bundle, TARGET, tmp_path / "several")
    ours, theirs = on_core(several, threads=1), on_python(several, threads=1)
    for target in ("de", "nl"):
        options = SearchOptions(source_language="en", target_language=target)
        for line in LINES[:6]:
            assert ours.translate(line, options) == theirs.translate(line, options)
    lines = with_prompt(compiled_bundle, SOURCE, tmp_path / "lines")
    ours, theirs = on_core(lines, threads=1), on_python(lines, threads=1)
    for line in (">>deu<< the cat", ">>nld<< the cat"):
        assert ours.translate(line) == theirs.translate(line)


def test_shortlists(core: Path, shortlist_bundle: Path) -> None:
    ours = on_core(shortlist_bundle, "onnx-int8", shortlist=True, threads=1)
    theirs = on_python(shortlist_bundle, "onnx-int8", shortlist=True, threads=1)
    assert ours.target.name == theirs.target.name
    for line in LINES[:6]:
        assert ours.translate(line) == theirs.translate(line)


# ---- what is refused ----


@pytest.mark.parametrize(
    "call",
    [
        lambda t: t.translate(["a", 5]),
        lambda t: t.translate(["a"], target_prefixes=["b", "c"]),
        lambda t: t.translate(["a"], SearchOptions(beam_size=8000)),
        lambda t: t.translate(["a"], SearchOptions(max_length=100_000)),
        lambda t: t.translate("a", SearchOptions(max_length=2), "the cat runs over the tree"),
        lambda t: list(t.translate_iter("abc", SearchOptions(max_length=2), chunk_lines=1)),
        lambda t: list(
            t.translate_iter(["a"] * 3, SearchOptions(max_length=2), ["", "", "the cat runs"],
                             chunk_lines=2)
        ),
        lambda t: t.translate_ids([[5], [999_999]]),
        lambda t: t.translate_ids([[5], [2**40]]),
        lambda t: t.translate_ids([[5] * 5000]),
        lambda t: t.translate_ids([b"ab"]),
        lambda t: t.translate("a", SearchOptions(target_language="xx")),
    ],
)  # fmt: skip
def test_wrong_calls(
    core: Path, compiled_bundle: Path, call: Callable[[Translator], object]
) -> None:
    errors = []
    for make in (on_core, on_python):
        with pytest.raises((InputError, OptionError)) as caught:
            call(make(compiled_bundle, threads=1))
        errors.append(caught.type)
    assert errors[0] == errors[1]


def test_a_bundle_that_was_changed(core: Path, compiled_bundle: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(compiled_bundle, bundle)
    for path in bundle.rglob("step.onnx"):
        path.write_bytes(path.read_bytes() + b"more")
    with pytest.raises(BundleError, match=r"step\.onnx"):
        Translator(bundle)


def test_a_library_that_is_none(
    compiled_bundle: Path, make_library: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(native.VARIABLE, "/nowhere/libtranslate_trt.so")
    with pytest.raises(OptionError, match=r"build_library\.sh"):
        Translator(compiled_bundle)
    other = make_library("other", LIBRARY_SOURCE)
    monkeypatch.setenv(native.VARIABLE, str(other))
    with pytest.raises(BackendError, match=f"{other} does not load as libtranslate_trt"):
        Translator(compiled_bundle)


@pytest.mark.parametrize(
    ("name", "structure"),
    [
        ("tt_options", abi.Options),
        ("tt_load_options", abi.LoadOptions),
        ("tt_submit_options", abi.SubmitOptions),
        ("tt_statistics", abi.Statistics),
        ("tt_engine_memory", abi.EngineMemory),
        ("tt_profile", device_functions._Profile),
        ("tt_change_sizes", device_functions._ChangeSizes),
        ("tt_engines", device_functions._Engines),
    ],
)
def test_structures_are_those_of_the_header(name: str, structure: type[ctypes.Structure]) -> None:
    text = HEADER.read_text() + HEADER.with_name("device.h").read_text()
    found = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.DOTALL)
    assert found is not None
    code = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    fields = re.findall(r"(\w+);", code)
    assert fields == [field[0] for field in structure._fields_]


# ---- its life ----


def test_ctrl_c_ends_a_call(core: Path, compiled_bundle: Path) -> None:
    code = (
        "import sys, threading, os, signal\n"
        "from translate_trt.runtime import SearchOptions, Translator\n"
        "translator = Translator(sys.argv[1], threads=1)\n"
        "def interrupt():\n"
        "    while not translator.core.statistics().steps:\n"
        "        pass\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "threading.Thread(target=interrupt).start()\n"
        "options = SearchOptions(beam_size=6, min_length=60, max_length=66)\n"
        "try:\n"
        "    translator.translate(['the cat runs over the tree'] * 100_000, options)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', end=' ')\n"
        # Now that the exception, which may hold the job, is gone:
        "print(translator.core.statistics().pending)\n"
        "print(translator.translate('the cat').text)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, compiled_bundle],
        capture_output=True, text=True, timeout=300, check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    expected = on_python(compiled_bundle, threads=1).translate("the cat").text
    assert (done.returncode, done.stdout) == (0, f"interrupted 0\n{expected}\n"), done.stderr


def test_a_process_that_ends_without_closing(core: Path, compiled_bundle: Path) -> None:
    """Running and pending jobs neither keep the translator alive nor crash."""
    code = (
        "import sys\n"
        "from translate_trt.runtime import SearchOptions, TranslationService, Translator\n"
        "service = TranslationService(Translator(sys.argv[1], threads=1, workers=2))\n"
        "slow = SearchOptions(beam_size=6, min_length=60, max_length=66)\n"
        "futures = [service.submit('the cat runs', slow) for _ in range(500)]\n"
        "print(service.submit('the cat').result().text == '')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, compiled_bundle],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


# ---- services ----


def test_a_line_is_cancelled_between_its_searches(
    core: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, asked = on_core(compiled_bundle, threads=1), list[LineSearch]()
    real = native_core.Core.search

    def search(self: native_core.Core, search: LineSearch, **more: Any) -> native_core.Job:
        asked.append(search)
        if len(asked) == 2:
            service.cancel(more["caller"])
        return real(self, search, **more)

    monkeypatch.setattr(native_core.Core, "search", search)
    with TranslationService(translator, capacity=1) as service:
        # The model does not copy the placeholder, and gets the line again without it.
        future = service.submit("the cat runs, {name}.", markup="text")
        with pytest.raises(CancelledError):
            future.result(60)
        assert [one.lines for one in asked] == [["the cat runs, {name}."], ["the cat runs,."]]
        assert service.submit("the cat").result(60).text


def test_a_second_search_that_is_refused_fails_its_line(
    core: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    translator, asked = on_core(compiled_bundle, threads=1), list[LineSearch]()
    real = native_core.Core.search

    def search(self: native_core.Core, search: LineSearch, **more: Any) -> native_core.Job:
        asked.append(search)
        if len(asked) == 2:
            raise BackendError("no memory")
        return real(self, search, **more)

    monkeypatch.setattr(native_core.Core, "search", search)
    with TranslationService(translator, capacity=1) as service:
        future = service.submit("the cat runs, {name}.", markup="text")
        with pytest.raises(BackendError, match="no memory"):
            future.result(60)
        assert service.submit("the cat").result(60).text


def test_onnxruntime_on_a_gpu_runs_in_the_library(
    core: Path, compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = importlib.import_module("translate_trt.runtime.backends.onnxruntime")
    with pytest.raises(OptionError, match=r"onnx-int8.*'cuda'"):
        Translator(compiled_bundle, "onnx-int8", threads=1, device="cuda")
    with pytest.raises(BackendError, match=r"CPUs.*cuda:1"):
        Translator(compiled_bundle, threads=1, device="cuda:1")
    monkeypatch.setattr(backend.ort, "get_available_providers", lambda: [backend._CUDA])
    monkeypatch.setattr(backend, "find_gpu", lambda _: None)
    with pytest.raises(BackendError, match="NVIDIA GPU"):
        Translator(compiled_bundle, threads=1, device="cuda:1")
    found, loaded = [], []
    monkeypatch.setattr(backend, "find_gpu", lambda index: found.append(index) or object())
    monkeypatch.setattr(backend, "_preload_cuda", lambda: loaded.append(True))
    with pytest.raises(BackendError, match="cuda:1: CUDA"):
        Translator(compiled_bundle, threads=1, device="cuda:1")
    assert (found, loaded) == ([1], [True])
