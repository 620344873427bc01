"""examples/triton_client with a fake of tritonclient, and with a real server where there is one."""

from __future__ import annotations

import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from support.paths import ROOT
from support.triton_server import PLACE, TritonServer

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

CLIENT = ROOT / "examples/triton_client/client.py"
LINES = ["the cat runs.", "", "Haus läuft", *(f"a dog sleeps {n}." for n in range(90))]


class InferInput:
    """An input, held to the model's interface."""

    def __init__(self, name: str, shape: list[int], data_type: str) -> None:
        (declared,) = (one for one in interface.INPUTS if one.name == name)
        assert data_type == declared.data_type.replace("STRING", "BYTES")
        assert len(shape) == 1 + len(declared.shape)
        self.name, self.shape, self.array = name, shape, np.zeros(0)

    def set_data_from_numpy(self, array: Any) -> None:
        assert list(array.shape) == self.shape
        self.array = array


class Server:
    """A server that translates each request at once."""

    def __init__(self, translator: Translator) -> None:
        self.translator, self.options = translator, list[SearchOptions]()

    def async_infer(
        self, model: str, inputs: list[InferInput], callback: Callable[..., None],
        outputs: list[str], client_timeout: float,
    ) -> None:  # fmt: skip
        assert (model, outputs, client_timeout) == ("translation", ["TRANSLATION"], 60.0)
        given = {one.name: one.array[0, 0] for one in inputs}
        options = self.translator.default_options
        if "BEAM_SIZE" in given:
            options = SearchOptions(beam_size=int(given["BEAM_SIZE"]))
        self.options.append(options)
        if given["TEXT"] == b"bad":
            callback(None, RuntimeError("refused"))
            return
        markup = given["MARKUP"].decode() if "MARKUP" in given else None
        (found,) = self.translator.translate([given["TEXT"].decode()], options, markup=markup)
        outcome = np.array([[found.text.encode()]], object)
        callback(
            type("Result", (), {"as_numpy": lambda _, name: {"TRANSLATION": outcome}[name]})(), None
        )


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    fake = ModuleType("tritonclient.grpc")
    fake.InferInput = InferInput  # type: ignore[attr-defined]
    fake.InferRequestedOutput = str  # type: ignore[attr-defined]
    fake.InferenceServerClient = Server  # type: ignore[attr-defined]
    package = ModuleType("tritonclient")
    package.grpc = fake  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tritonclient", package)
    monkeypatch.setitem(sys.modules, "tritonclient.grpc", fake)
    return runpy.run_path(str(CLIENT))


def test_it_asks_for_each_line_and_keeps_their_order(
    client: dict[str, Any], compiled_bundle: Path
) -> None:
    translator = Translator(compiled_bundle, "onnx-fp32", threads=1)
    expected = [translation.text for translation in translator.translate(LINES)]
    server = Server(translator)
    assert list(client["translate"](server, LINES)) == expected
    assert server.options == [translator.default_options] * len(LINES)
    (found,) = client["translate"](server, ["the cat runs."], 2)
    assert server.options[-1].beam_size == 2
    (wanted,) = translator.translate(["the cat runs."], SearchOptions(beam_size=2))
    assert found == wanted.text
    (found,) = client["translate"](server, ["the <b>cat</b>"], markup="html")
    assert found == translator.translate("the <b>cat</b>", markup="html").text
    with pytest.raises(RuntimeError, match="refused"):
        list(client["translate"](server, ["bad"]))


@pytest.mark.nightly
def test_with_a_real_server(
    compiled_bundle: Path, start_triton: Callable[..., TritonServer], tmp_path: Path
) -> None:
    write_repository(compiled_bundle, "onnx-fp32", tmp_path / "repo", ServerOptions())
    server = start_triton(tmp_path / "repo")
    done = subprocess.run(
        [PLACE / "bin/python", CLIENT, "--url", server.address["grpc"]],
        input="".join(f"{line}\n" for line in LINES),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    translator = Translator(compiled_bundle, "onnx-fp32", threads=1)
    assert done.stdout.splitlines() == [t.text for t in translator.translate(LINES)]
