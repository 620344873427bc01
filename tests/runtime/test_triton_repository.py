"""Model repositories: contents, and errors before anything is written."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.protobuf_text import parameters, parse

from translate_trt.runtime.bundle.manifest import read_manifest, verify_files, write_manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import main
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.serving_options import ServerOptions


@pytest.fixture
def triton(make_bundle: Callable[..., Path], tmp_path: Path) -> Callable[..., Result]:
    bundle = make_bundle()

    def run(*arguments: object) -> Result:
        given = ["triton", bundle, "--output", tmp_path / "repo", *arguments]
        return CliRunner().invoke(main, list(map(str, given)))

    return run


def configuration(repository: Path, name: str = "translation") -> dict[str, list[Any]]:
    return parse((repository / name / "config.pbtxt").read_text(encoding="ascii"))


def test_what_is_in_it(triton: Callable[..., Result], tmp_path: Path) -> None:
    result = triton("--target", "onnx-int8")
    assert (result.exit_code, result.stderr) == (0, "")
    repository = tmp_path / "repo"
    assert result.stdout == f"{repository}: model translation, onnx-int8\n"
    files = {str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()}
    bundle = "translation/1/bundle"
    assert files == {
        "repository.json", "translation/config.pbtxt", "translation/1/model.py",
        "translation/warmup/text", f"{bundle}/manifest.json", f"{bundle}/shared.spm",
        f"{bundle}/targets/onnx-int8/encoder.onnx", f"{bundle}/targets/onnx-int8/step.onnx",
    }  # fmt: skip
    # A bundle of its own, of the one target.
    manifest = read_manifest(repository / bundle)
    assert list(manifest.targets) == ["onnx-int8"]
    verify_files(repository / bundle, manifest, "onnx-int8")
    text = (repository / "translation/warmup/text").read_bytes()
    assert int.from_bytes(text[:4], "little") == len(text) - 4 > 20
    assert json.loads((repository / "repository.json").read_text())["models"] == {
        "translation": {"target": "onnx-int8", "bundle": "bundle"}
    }


def test_the_warm_up_says_languages(triton: Callable[..., Result], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"  # of `triton`
    prompt = Prompt(source_languages={"en": 7, "fr": 8}, target_languages={"nl": 9, "de": 10})
    manifest = dataclasses.replace(read_manifest(bundle), prompt=prompt)
    search = manifest.search | {"source_language": "fr"}
    write_manifest(bundle, dataclasses.replace(manifest, search=search))
    assert triton().exit_code == 0
    written = {path.name: path.read_bytes()[4:] for path in tmp_path.glob("repo/*/warmup/*")}
    assert written.keys() == {"text", "target_language"}  # the other is a default
    assert written["target_language"] == b"de"
    for one in configuration(tmp_path / "repo")["model_warmup"]:
        files = {given["key"][0]: given["value"][0]["input_data_file"] for given in one["inputs"]}
        assert files == {"TEXT": ["text"], "TARGET_LANGUAGE": ["target_language"]}


def test_the_configuration(triton: Callable[..., Result], tmp_path: Path) -> None:
    flags = ["--name", "en-de", "--max-batch-size", 32, "--preferred-batch-size", 8]
    flags += ["--preferred-batch-size", 16, "--queue-delay", 500, "--instances", 2]
    flags += ["--workers", 3, "--threads", 4, "--batch-tokens", 99, "--max-beam-size", 5]
    flags += ["--capacity", 9, "--max-characters", 77, "--trust-code"]
    flags += ["--max-cost", 7777]
    assert triton(*flags).exit_code == 0
    config = configuration(tmp_path / "repo", "en-de")
    assert (config["name"], config["backend"]) == (["en-de"], ["python"])
    assert config["max_batch_size"] == ["32"]
    assert config["version_policy"] == [{"latest": [{"num_versions": ["1"]}]}]
    assert config["dynamic_batching"] == [
        {"max_queue_delay_microseconds": ["500"], "preferred_batch_size": ["8", "16"]}
    ]
    assert config["instance_group"] == [{"count": ["2"], "kind": ["KIND_CPU"]}]
    assert [(one["name"], one["batch_size"]) for one in config["model_warmup"]] == [
        (["one"], ["1"]),
        (["batch"], ["16"]),
    ]
    assert parameters(config) == {
        "format": "8", "bundle": "bundle", "target": "onnx-fp32", "trust_code": "true",
        "workers": "3", "threads": "4", "batch_tokens": "99", "cache_mib": "0", "capacity": "9",
        "max_beam_size": "5", "max_characters": "77", "max_cost": "7777",
    }  # fmt: skip


def test_inputs_are_the_search_options(triton: Callable[..., Result], tmp_path: Path) -> None:
    assert triton().exit_code == 0
    config = configuration(tmp_path / "repo")
    inputs = {one["name"][0]: (one["data_type"][0], one["dims"][0]) for one in config["input"]}
    assert inputs == {
        one.name: (f"TYPE_{one.data_type}", str(one.shape[0])) for one in interface.INPUTS
    }
    fields = {field.name.upper(): field.type for field in dataclasses.fields(SearchOptions)}
    del fields["RETURN_ATTENTION"]
    kinds = {"bool": "TYPE_BOOL", "int": "TYPE_INT32", "float": "TYPE_FP64", "str": "TYPE_STRING"}
    for name, kind in fields.items():
        assert inputs[name] == (kinds[str(kind).partition(" ")[0]], "1"), name
    assert all(one["optional"] == ["true"] for one in config["input"])
    ragged = [one["name"] for one in config["input"] if one.get("allow_ragged_batch") == ["true"]]
    assert ragged == [["TOKENS"]]
    assert [one["name"][0] for one in config["output"]] == [one.name for one in interface.OUTPUTS]
    # What the server is to say is left open.
    assert not {"workers", "threads", "batch_tokens"} & parameters(config).keys()
    assert "preferred_batch_size" not in config["dynamic_batching"][0]


def test_a_linked_bundle(triton: Callable[..., Result], tmp_path: Path) -> None:
    assert triton("--link").exit_code == 0
    assert parameters(configuration(tmp_path / "repo"))["bundle"] == str(tmp_path / "bundle")
    assert not (tmp_path / "repo/translation/1/bundle").exists()


def test_an_engine_goes_to_gpus(
    make_bundle: Callable[..., Path], triton: Callable[..., Result], tmp_path: Path
) -> None:
    bundle = tmp_path / "bundle"
    manifest = read_manifest(bundle)
    engine = dataclasses.replace(manifest.targets["onnx-fp32"], engine={})
    write_manifest(bundle, dataclasses.replace(manifest, targets={"onnx-fp32": engine}))
    refused = triton("--device", "cpu")
    assert refused.exit_code == 2
    assert "--device" in refused.stderr
    assert triton().exit_code == 0
    assert configuration(tmp_path / "repo")["instance_group"][0]["kind"] == ["KIND_GPU"]


def test_notes_in_a_repository_are_not_deleted(
    triton: Callable[..., Result], tmp_path: Path
) -> None:
    assert triton().exit_code == 0
    cache = tmp_path / "repo/translation/1/__pycache__/model.cpython-312.pyc"
    cache.parent.mkdir()
    cache.write_text("of the server")
    notes = tmp_path / "repo/translation/1/bundle/notes.txt"
    notes.write_text("mine")
    refused = triton("--force")
    assert refused.exit_code == 1
    assert f"{notes} is not part of the model repository" in refused.stderr
    notes.unlink()
    assert triton("--force").exit_code == 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--target", "tensorrt"], "it has: onnx-fp32, onnx-int8"),
        (["--name", "../x"], "--name is '../x'"),
        (["--name", ".x"], "must not begin with a '.'"),
        (["--max-batch-size", "0"], "--max-batch-size is 0; it must be at least 1"),
        (["--queue-delay", "-1"], "--queue-delay is -1; it must be at least 0"),
        (["--preferred-batch-size", "65"], "--preferred-batch-size has 65"),
        (["--workers", "0"], "--workers is 0"),
        (["--capacity", "0"], "--capacity is 0; it must be at least 1"),
        (["--device", "cuda:1"], "The server assigns GPUs to instances"),
        (["--max-beam-size", "3"], "less than the bundle's default beam size of 4"),
        (
            ["--max-cost", "39999"],
            "--max-cost 39999 is less than 40000, the cost of a text of --max-characters",
        ),
        (["--shortlist"], "there is no shortlist to use"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(
    triton: Callable[..., Result], tmp_path: Path, flags: list[str], message: str
) -> None:
    result = triton(*flags)
    assert (result.exit_code, result.stdout) == (
        1 if message.startswith(("it has", "there is no")) else 2,
        "",
    )
    assert message in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_flags_are_the_fields_of_the_options() -> None:
    from translate_trt.runtime.cli.triton import triton

    defaults = triton.make_context("triton", ["b", "--output", "o"]).params
    for name, value in dataclasses.asdict(ServerOptions()).items():
        assert defaults[name] == value, name
    others = {"bundle", "target", "shortlist", "out", "force", "link"}
    assert defaults.keys() == {*dataclasses.asdict(ServerOptions()), *others}


def test_writing_needs_no_backend() -> None:
    code = (
        "import sys\n"
        "sys.modules['onnxruntime'] = None\n"
        "import translate_trt.runtime.serve.triton.repository\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
