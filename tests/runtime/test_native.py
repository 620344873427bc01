"""Python's binding of libtranslate_trt: lines, structures, signals and errors."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
from support.cpp_library import ROOT
from support.kernels import LIBRARY_SOURCE
from support.translations import assert_same

from translate_trt.runtime import SearchOptions, TranslationService, Translator, native
from translate_trt.runtime.errors import BackendError, OptionError
from translate_trt.runtime.line_request import LineRequest
from translate_trt.runtime.native import abi, device_functions
from translate_trt.runtime.native import core as native_core
from translate_trt.runtime.native.values import text_of
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

HEADER = ROOT / "runtime/cpp/include/translate_trt/translate_trt.h"
LINES = [
    "the cat runs.", "", "a dog eats green", "   ", "Haus Hund läuft.", "the big tree sleeps",
    "漢字 \U0001f600 é", "a\0b\tc\x0bd\u2028e", "one \ud800 half",
]  # fmt: skip


def test_lines_are_translated_as_by_pytorch(translator: Translator, checkpoint: Checkpoint) -> None:
    options, tokenizer = SearchOptions(num_hypotheses=3), translator.tokenizer
    sources = [tokenizer.encode_source(line) for line in LINES]
    assert sources[1] == sources[3] == []
    expected = beam_search(checkpoint.load_model(), sources, options)
    found = translator.translate(LINES, options)
    assert [one.text for one in found] == [tokenizer.decode(line[0].tokens) for line in expected]
    for line, right in zip(found, expected, strict=True):
        if line.segment_count:
            assert_same([[one.segments[0] for one in line.hypotheses]], [right])


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
        ("tt_text", abi.Text), ("tt_tokens", abi.Tokens), ("tt_split", abi.Split),
        ("tt_term", abi.Term), ("tt_lines", abi.Lines), ("tt_attention", abi.Attention),
        ("tt_log_probs", abi.LogProbs), ("tt_word", abi.Word), ("tt_segment", abi.Segment),
        ("tt_result_arrays", abi.ResultArrays), ("tt_options", abi.Options),
        ("tt_load_options", abi.LoadOptions), ("tt_submit_options", abi.SubmitOptions),
        ("tt_statistics", abi.Statistics), ("tt_engine_memory", abi.EngineMemory),
        ("tt_profile", device_functions._Profile),
        ("tt_change_sizes", device_functions._ChangeSizes),
        ("tt_engines", device_functions._Engines),
    ],
)  # fmt: skip
def test_structures_are_those_of_the_header(name: str, structure: type[ctypes.Structure]) -> None:
    text = HEADER.read_text() + HEADER.with_name("device.h").read_text()
    found = re.search(rf"typedef struct {name} \{{(.*?)\}} {name};", text, re.DOTALL)
    assert found is not None
    code = re.sub(r"/\*.*?\*/", "", found[1], flags=re.DOTALL)
    fields = re.findall(r"(\w+)[,;]", code)
    assert fields == [field[0] for field in structure._fields_]


def test_defaults_are_those_of_python(translator: Translator) -> None:
    assert translator.core is not None
    options, python = abi.Options(), SearchOptions()
    size = ctypes.sizeof(options)
    assert translator.core.calls.tt_options_default(ctypes.byref(options), size) == 0
    assert options.length_penalty_form == 0
    for field in dataclasses.fields(SearchOptions):
        if field.name != "length_penalty_form":  # of texts and lengths, none is given
            assert (getattr(options, field.name) or 0) == (getattr(python, field.name) or 0)


# ---- its life ----


def test_ctrl_c_ends_a_call(compiled_bundle: Path, translator: Translator) -> None:
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
    expected = translator.translate("the cat").text
    assert (done.returncode, done.stdout) == (0, f"interrupted 0\n{expected}\n"), done.stderr


def test_a_process_that_ends_without_closing(compiled_bundle: Path) -> None:
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


def watch(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[abi.SubmitOptions], object]
) -> list[list[str]]:
    """Return a list of the lines of each job from now on; call `act` before the second one."""
    asked, real = list[list[str]](), native_core.Core.submit

    def submit(
        self: native_core.Core, request: LineRequest, options: abi.SubmitOptions, texts: Any
    ) -> native_core.Job:
        asked.append([text_of(text) for text in texts or ()])
        if len(asked) == 2:
            act(options)
        return real(self, request, options, texts)

    monkeypatch.setattr(native_core.Core, "submit", submit)
    return asked


# The model does not copy the placeholder, and gets the line again without it.
PLACEHOLDER = "the cat runs, {name}."


def test_a_line_is_cancelled_between_its_jobs(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TranslationService(translator, capacity=1) as service:
        asked = watch(monkeypatch, lambda options: service.cancel(options.caller))
        future = service.submit(PLACEHOLDER, markup="text")
        with pytest.raises(CancelledError):
            future.result(60)
        assert asked == [[PLACEHOLDER], ["the cat runs,."]]
        assert service.submit("the cat").result(60).text


def test_a_second_job_that_is_refused_fails_its_line(
    translator: Translator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise BackendError("no memory")

    with TranslationService(translator, capacity=1) as service:
        watch(monkeypatch, refuse)
        future = service.submit(PLACEHOLDER, markup="text")
        with pytest.raises(BackendError, match="no memory"):
            future.result(60)
        assert service.submit("the cat").result(60).text


def test_onnxruntime_on_a_gpu_runs_in_the_library(
    compiled_bundle: Path, monkeypatch: pytest.MonkeyPatch
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
    monkeypatch.setattr(backend.ort, "preload_dlls", lambda: loaded.append(True))
    with pytest.raises(BackendError, match="cuda:1: CUDA"):
        Translator(compiled_bundle, threads=1, device="cuda:1")
    assert (found, loaded) == ([1], [True])
