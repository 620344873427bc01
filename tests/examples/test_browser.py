"""examples/browser: the runtime in WebAssembly, under Node.js and in a page without a network."""

from __future__ import annotations

import functools
import itertools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.browser import browser
from support.paths import ROOT
from support.shared import SharedFiles

from translate_trt.runtime import Translator

pytestmark = pytest.mark.nightly
#: Of archives that a native build has downloaded.
ARCHIVES = ROOT / "build/native/archives"
#: Emscripten 3.1.6 takes the fetch of Node.js for a browser's, which does not read files.
NODE_READS = "--no-experimental-fetch"
MODULES = Path("/usr/share/nodejs")  # of Debian, whose Emscripten finds them by Debian's Node.js
STATUS = "document.getElementById('status').value"
SUBJECTS = ("the cat", "a dog", "the big tree", "a green house", "der Hund")
REST = ("runs.", "sleeps under the tree.", "frisst", "eats a green house over the river.")
LINES = [f"{subject} {rest}" for subject, rest in itertools.product(SUBJECTS, REST)]


def run(*command: object, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        list(map(str, command)), input=stdin, capture_output=True, text=True, check=False,
        env={**os.environ, **({"NODE_PATH": str(MODULES)} if MODULES.is_dir() else {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def build(shared: SharedFiles) -> Path:
    if shutil.which("emcmake") is None or shutil.which("node") is None:
        pytest.skip("Emscripten is missing: apt-get install emscripten")

    def make(folder: Path) -> None:
        options = ["-D", "TRANSLATE_TRT_TESTS=ON"]
        if ARCHIVES.is_dir():
            options += ["-D", f"TRANSLATE_TRT_ARCHIVES={ARCHIVES}"]
        run("emcmake", "cmake", "-S", ROOT / "examples/browser", "-B", folder, *options)
        run("cmake", "--build", folder)

    return shared.once("browser", make)


@pytest.fixture(scope="module")
def translations(word_bundle: Path) -> list[str]:
    found = Translator(word_bundle, "onnx-int8", threads=1).translate(LINES)
    return [one.text for one in found]


@pytest.fixture
def address(build: Path, word_bundle: Path, tmp_path: Path) -> Iterator[str]:
    """A static file server of the page, with a bundle beside it."""
    shutil.copytree(build / "site", tmp_path / "site")
    shutil.copytree(word_bundle, tmp_path / "site/models/toy")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def test_its_kernels_equal_the_plain_ones(build: Path) -> None:
    done = run("node", NODE_READS, build / "tests/translate_trt_kernel_tests.js")
    assert done.stdout == "all passed: plain wasm_simd128\n"


def test_its_int8_translations_are_those_of_the_native_library(
    build: Path, word_bundle: Path, translations: list[str]
) -> None:
    text = "".join(f"{line}\n" for line in LINES)
    done = run("node", build / "site/measure.js", word_bundle, "onnx-int8", stdin=text)
    assert done.stdout == "".join(f"{line}\n" for line in translations)
    assert len(set(translations)) > len(LINES) / 4
    assert done.stderr.startswith("wasm_simd128, loaded in ")
    assert "words per second" in done.stderr


def test_the_page_translates_without_a_network(address: str, translations: list[str]) -> None:
    with browser() as opened:
        context = opened.new_context()
        page = context.new_page()
        problems: list[str] = []
        requests: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"{address}?bundle=models/toy&target=onnx-int8")
        page.wait_for_selector("#translate:enabled")
        assert page.evaluate(STATUS) == "Ready (wasm_simd128)"
        context.set_offline(True)
        asked = len(requests)
        page.fill("#beam", "4")
        page.fill("#source", "\n".join(LINES))
        page.click("#translate")
        page.wait_for_function(f"{STATUS}.includes('words in')")
        assert page.input_value("#target") == "\n".join(translations)
        assert not problems
        assert len(requests) == asked
        assert all(url.startswith((address, "data:")) for url in requests)


def test_the_page_takes_a_folder_where_there_is_no_bundle(address: str, word_bundle: Path) -> None:
    with browser() as opened:
        page = opened.new_page()
        page.goto(address)
        page.wait_for_function(f"{STATUS}.startsWith('No model')")
        assert "bundle/manifest.json: 404" in page.evaluate(STATUS)
        assert page.is_disabled("#translate")
        page.set_input_files("#folder", word_bundle)
        page.wait_for_selector("#translate:enabled")
        page.fill("#source", LINES[0])
        page.click("#translate")
        page.wait_for_function(f"{STATUS}.includes('words in')")
        assert page.input_value("#target") != ""
