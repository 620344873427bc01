"""examples/c_service, built from an installation by CMake and by pkg-config."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.cpp_library import Library
from support.paths import ROOT

from translate_trt.runtime import Translator

pytestmark = pytest.mark.slow
SOURCES = ROOT / "examples/c_service"
LINES = ["the cat runs.", "", "Haus läuft", "a dog sleeps under the tree."]


@pytest.fixture(scope="module")
def program(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("c_service")
    for command in (
        ["cmake", "-S", SOURCES, "-B", folder, f"-DCMAKE_PREFIX_PATH={library.prefix}"],
        ["cmake", "--build", folder],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder / "translate_server"


@pytest.fixture
def port(library: Library, program: Path, compiled_bundle: Path) -> Iterator[int]:
    server = subprocess.Popen(
        [program, compiled_bundle, "0", "onnx-fp32"],
        env=library.environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None
    first = server.stdout.readline()
    assert first.startswith("listening on 127.0.0.1:"), first
    yield int(first.rpartition(":")[2])
    server.kill()
    server.wait()


def ask(port: int, lines: list[str]) -> list[str]:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall("".join(f"{line}\n" for line in lines).encode())
        client.shutdown(socket.SHUT_WR)
        with client.makefile(encoding="utf-8", newline="\n") as answers:
            return answers.read().splitlines()


def test_connections_get_a_line_for_each_line(port: int, compiled_bundle: Path) -> None:
    expected = [
        found.text for found in Translator(compiled_bundle, "onnx-fp32", threads=1).translate(LINES)
    ]
    with ThreadPoolExecutor(8) as clients:
        for answers in clients.map(lambda _: ask(port, LINES), range(16)):
            assert answers == expected


def test_a_missing_bundle_is_an_error(library: Library, program: Path) -> None:
    refused = subprocess.run(
        [program, "/nowhere", "0"], env=library.environment(), capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert refused.stderr.startswith("translate_server: there is no bundle at /nowhere")
