"""A model repository in a real Triton server."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.triton_server import ROOT, WAIT, TritonServer, free_ports, wait_until, wait_until_ready

from translate_trt.runtime import SearchOptions, Translation, Translator
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.repository import write_repository
from translate_trt.runtime.serve.triton.serving_options import ServerOptions

pytest.importorskip("torch", reason="the export packages are needed")

pytestmark = pytest.mark.nightly
WORDS = ["the", "cat", "dog", "house", "tree", "runs", "sleeps", "green", "Fluss", "läuft", "日本"]
TYPES = {one.name: one.data_type.replace("STRING", "BYTES") for one in interface.INPUTS}

OUTPUTS = [one.name for one in interface.OUTPUTS]
LIMIT = 16  # sentences in a batch


@pytest.fixture(scope="module")
def repository(compiled_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("triton") / "repo"
    # Not int8, whose rounding makes more of differences that come with the batch.
    write_repository(compiled_bundle, "onnx-fp32", path, ServerOptions(max_batch_size=LIMIT))
    return path


@pytest.fixture(scope="module")
def server(
    triton_server_program: Path, repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonServer]:
    server = TritonServer(repository, tmp_path_factory.mktemp("log") / "triton.log")
    server.start()
    yield server
    assert server.stop(signal.SIGTERM) == 0, server.log()


@pytest.fixture(scope="module")
def lines() -> list[str]:
    rng = random.Random(1)
    made = [" ".join([*rng.choices(WORDS, k=rng.randint(1, 9)), str(n)]) for n in range(200)]
    return [*made, "", "the cat runs. " * 20]


def request(
    text: str | bytes | Sequence[str] | None = None,
    cancel: float | None = None,
    timeout: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Create a request for one line or several, with options for all or for each of them."""
    texts = [text] if isinstance(text, (str, bytes)) else text
    inputs: dict[str, Any] = {}
    if texts is not None:
        options["TEXT"] = [one.encode() if isinstance(one, str) else one for one in texts]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        data = [one.decode("latin-1") if isinstance(one, bytes) else one for one in values]
        inputs[name] = {"type": TYPES[name], "shape": [len(values), 1], "data": data}
    given = {"cancel": cancel, "timeout": timeout}
    more = {name: value for name, value in given.items() if value is not None}
    return {"inputs": inputs, "outputs": OUTPUTS, **more}


def of_tokens(tokens: Sequence[int], **options: Any) -> dict[str, Any]:
    made = request(**options)
    data = list(tokens)
    made["inputs"]["TOKENS"] = {"type": "INT32", "shape": [1, len(data)], "data": data}
    return made


def check(answer: dict[str, Any], translations: Sequence[Translation]) -> None:
    """Check that an answer contains the translations."""
    assert "error" not in answer, answer
    outputs = answer["outputs"]
    assert outputs["COUNT"] == [[len(one.hypotheses)] for one in translations]
    for row, translation in enumerate(translations):
        for column, one in enumerate(translation.hypotheses):
            assert outputs["TRANSLATION"][row][column] == one.text
            # Not to the last bit: the server's environment has another version of numpy.
            assert outputs["SCORE"][row][column] == pytest.approx(one.score, rel=1e-5)


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_it_translates_as_the_runtime_does(
    server: TritonServer, translator: Translator, lines: list[str], protocol: str
) -> None:
    """200 clients at once: tokens, single lines, several lines, and options of each."""
    some = lines[-90:]
    three = SearchOptions(beam_size=5, length_penalty=1.1, num_hypotheses=3)
    asked = {"BEAM_SIZE": 5, "LENGTH_PENALTY": 1.1, "NUM_HYPOTHESES": 3}
    sources = [translator.tokenizer.encode_source(line) for line in some[:10]]
    answers = server.ask(
        [request(line) for line in some]
        + [request(line, **asked) for line in some]
        + [of_tokens(source) for source in sources]
        + [request(some[:LIMIT])],
        protocol=protocol, clients=200,
    )  # fmt: skip
    expected = [[one] for one in translator.translate(some)]
    expected += [[one] for one in translator.translate(some, three)]
    expected += [[one] for one in translator.translate(some[:10])]
    expected += [translator.translate(some[:LIMIT])]
    for answer, translations in zip(answers, expected, strict=True):
        check(answer, translations)
    stats = json.loads(server.get("v2/models/translation/stats")[1])["model_stats"][0]
    assert stats["execution_count"] < stats["inference_count"]  # some were translated together


def test_the_server_reads_the_configuration_as_it_was_meant(server: TritonServer) -> None:
    status, content = server.get("v2/models/translation/config")
    assert status == 200
    config = json.loads(content)
    assert config["max_batch_size"] == LIMIT
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == 0
    for found, meant in (("input", interface.INPUTS), ("output", interface.OUTPUTS)):
        assert [(one["name"], one["data_type"], one["dims"]) for one in config[found]] == [
            (one.name, f"TYPE_{one.data_type}", list(one.shape)) for one in meant
        ]
    assert all(one["optional"] for one in config["input"])
    assert [one["batch_size"] for one in config["model_warmup"]] == [1, LIMIT]
    assert config["parameters"]["target"] == {"string_value": "onnx-fp32"}


TEXT = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["a"]}


def settled(server: TritonServer) -> dict[str, float]:
    """Wait until the metrics include all answered requests, and return them."""
    found = server.metrics()
    for _ in range(2):  # the first may be among numbers of before that are being published
        refused = found["refused"]
        server.ask([request(BEAM_SIZE=2)])
        wait_until(lambda refused=refused: server.metrics()["refused"] > refused)
        found = server.metrics()
    return found


@pytest.mark.parametrize("how", ["server SIGKILL", "instance SIGKILL"])
def test_restarted_under_load(
    start_triton: Any, repository: Path, translator: Translator, lines: list[str], how: str
) -> None:
    server = start_triton(repository)
    many = lines * 5
    load = server.clients([request(line) for line in many], clients=16, patience=60)
    load.wait_for(50)
    (model,) = server.model_processes()
    whom, name = how.split()
    if whom == "server":
        server.stop(signal.Signals[name])
    else:
        os.kill(int(model.name), signal.Signals[name])
        assert server.process.wait(WAIT) != 0  # so that an orchestrator starts another one
    server.start()
    expected = translator.translate(lines) * 5
    for answer, translation in zip(load.answers(), expected, strict=True):
        check(answer, [translation])
    wait_until(lambda: not model.exists())  # nothing of the old server is left


def test_drained_under_load(
    start_triton: Any, repository: Path, translator: Translator, lines: list[str]
) -> None:
    """Follow docs/serve.md: after preStop, clients send no more requests."""
    (recipe,) = re.findall(r"^```yaml\n(.*?)^```$", page(), re.MULTILINE | re.DOTALL)
    (flag,) = re.findall(r"--exit-timeout-secs=\d+", recipe)
    grace, pause = (
        int(*re.findall(rf"{name}: (\d+)", recipe))
        for name in ("terminationGracePeriodSeconds", "seconds")
    )
    assert pause + int(flag.partition("=")[2]) < grace
    server = start_triton(repository, flag)
    before = settled(server)["success"]
    text = "the cat runs over the green tree. " * 8
    requests = [request([f"{n} {text}"] * LIMIT, BEAM_SIZE=[8] * LIMIT) for n in range(12)]
    load = [server.clients(requests, protocol, len(requests)) for protocol in ("http", "grpc")]

    def all_came() -> bool:
        found = server.metrics()
        return found["requests_in_work"] + found["success"] - before >= 2 * len(requests)

    wait_until(all_came)
    # Clients close their connections when their answers have been read.
    with ThreadPoolExecutor(1) as pool:
        exited = pool.submit(server.stop, signal.SIGTERM)
        answers = [one.answers() for one in load]
        assert exited.result() == 0, server.log()
    options = SearchOptions(beam_size=8)
    expected = translator.translate([f"{n} {text}" for n in range(12)], options)
    for found in answers:
        for answer, translation in zip(found, expected, strict=True):
            check(answer, [translation] * LIMIT)


def page() -> str:
    return (ROOT / "docs/serve.md").read_text(encoding="utf-8")


BLOCK = re.compile(r"^```(?:sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_commands_of_the_page(
    triton_server_program: Path, repository: Path, translator: Translator, tmp_path: Path
) -> None:
    """Run the commands of docs/serve.md in order; test_docs.py runs those that create `repo/`."""
    (tmp_path / "repo").symlink_to(repository)
    (tmp_path / ".cache").symlink_to(ROOT / ".cache")
    http, grpc, metrics = map(str, free_ports(3))
    text = page()
    make, serve, curl, python, probe = (
        block.replace(":8000", f":{http}").replace(":8001", f":{grpc}")
        for block in BLOCK.findall(text)
    )
    shell = ["bash", "-euo", "pipefail", "-c"]
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([*shell, make], cwd=ROOT, env=environment, check=True)
    ports = f"--http-port {http} --grpc-port {grpc} --metrics-port {metrics}"
    server = subprocess.Popen([*shell, f"exec {serve.strip()} {ports}"], cwd=tmp_path)
    try:
        wait_until_ready(server, f"http://127.0.0.1:{http}")
        if shutil.which("curl"):
            done = subprocess.run([*shell, curl], capture_output=True, check=True)
            (output,) = json.loads(done.stdout)["outputs"]
            assert output["data"] == [translator.translate(["A dog runs."])[0].text]
            done = subprocess.run([*shell, probe], capture_output=True, check=True)
            assert json.loads(done.stdout)["outputs"][0]["data"] == [1]
        done = subprocess.run(
            [triton_server_program.with_name("python"), "-c", python],
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        two = translator.translate(
            ["Two men are working.", "A dog runs."], SearchOptions(8, num_hypotheses=3)
        )
        said = [line.partition(" ")[2] for line in done.stdout.splitlines()]
        assert said == [one.text for found in two for one in found.hypotheses]
    finally:
        server.kill()
        server.wait()
