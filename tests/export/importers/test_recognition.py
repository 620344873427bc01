"""Recognition of formats: of directories that the toolkits wrote, and of lists of files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from support.ctranslate2_models import save_random_model, words

from translate_trt.export.importers.model_format import matches
from translate_trt.export.importers.recognition import FORMATS, recognize, recognize_directory
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.train.checkpoint import open_checkpoint

# Files of repositories, with the values of their config.json.
OPUS = ["config.json", "pytorch_model.bin", "tf_model.h5", "rust_model.ot", "source.spm",
        "target.spm", "vocab.json", "tokenizer_config.json", "generation_config.json",
        "added_tokens.json",
        "README.md", ".gitattributes"]  # fmt: skip
M2M100 = ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors",
          "model-00002-of-00002.safetensors", "pytorch_model.bin", "sentencepiece.bpe.model",
          "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
          "added_tokens.json"]  # fmt: skip
FIREFOX = ["model.ende.intgemm.alphas.bin", "lex.50.50.ende.s2t.bin", "vocab.ende.spm",
           "metadata.json"]  # fmt: skip
CTRANSLATE2 = ["model.bin", "config.json", "shared_vocabulary.json", "sentencepiece.bpe.model",
               "tokenizer.json", "README.md"]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "config", "name", "unread"),
    [
        (OPUS, {"model_type": "marian"}, "marian-hf",
         {"tf_model.h5", "rust_model.ot", "README.md", ".gitattributes"}),
        ([*OPUS, "model.safetensors"], {"model_type": "marian"}, "marian-hf",
         {"pytorch_model.bin", "tf_model.h5", "rust_model.ot", "README.md", ".gitattributes"}),
        (M2M100, {"model_type": "m2m_100"}, "m2m100-hf", {"pytorch_model.bin"}),
        (M2M100, {"model_type": "mbart"}, "bart-hf", {"pytorch_model.bin"}),
        (FIREFOX, None, "marian", {"metadata.json"}),
        (["opus.model1.npz.best-perplexity.npz", "opus.vocab.yml", "source.spm", "target.spm",
          "decoder.yml", "README.md", "preprocess.sh"], None, "marian",
         {"README.md", "preprocess.sh"}),
        (["model.npz", "vocab.src.spm", "vocab.trg.spm", "decoder.yml"], None, "marian", set()),
        (CTRANSLATE2, {"add_source_eos": False}, "ctranslate2", {"tokenizer.json", "README.md"}),
        (["checkpoint_best.pt", "dict.en.txt", "dict.de.txt", "x.model"], None, "fairseq", set()),
        (["step_1000.pt", "x.model"], None, "opennmt-py", set()),
        (["config.json", "model.safetensors", "tokenizer.spm"], {"format_version": 1, "model": {}},
         "checkpoint", set()),
        (["manifest.json", "shared.spm"],
         {"format_version": 9, "targets": {}, "tokenizer": {}}, "bundle", {"shared.spm"}),
    ],
    ids=["opus", "opus-safetensors", "m2m100", "mbart", "firefox", "opus-mt", "marian",
         "ctranslate2", "fairseq", "opennmt-py", "checkpoint", "bundle"],
)  # fmt: skip
def test_lists_of_files(names: list[str], config: Any, name: str, unread: set[str]) -> None:
    found = recognize("here", names, lambda _: config)
    assert found.name == name
    assert set(names) - set(found.files(names)) == unread


@pytest.mark.parametrize(
    ("names", "config", "message"),
    [
        ([], None, "bundle"),
        (["a.txt", "b.txt"], None, r"docs/import\.md.*a\.txt"),
        (M2M100, {"model_type": "umt5"}, "model_type 'umt5'"),
        (M2M100, [], "model_type None"),
        (OPUS[:3], {"model_type": "marian"},
         "Marian"),
        (["manifest.json"], {}, "checkpoint"),
        (["model.bin"], None,
         r"CTranslate2.*shared_vocabulary\.json"),
        ([*OPUS, *CTRANSLATE2], {"model_type": "marian"},
         r"CTranslate2.*ctranslate2"),
    ],
    ids=["empty", "foreign", "type", "no-object", "lacking", "manifest", "begun", "ambiguous"],
)  # fmt: skip
def test_errors_say_what_was_looked_for(names: list[str], config: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recognize("here", names, lambda _: config)


def test_formats_are_those_of_the_commands() -> None:
    commands = main.get_command(None, "import").commands  # type: ignore[arg-type, union-attr]
    ours = {"bundle", "checkpoint"}
    assert {model.name for model in FORMATS} - ours == set(commands) - {"auto"}
    assert [model.name for model in FORMATS if model.load is None] == ["bundle", "checkpoint"]


def test_patterns_match_no_part_of_a_name() -> None:
    assert matches(["model.bin", "pytorch_model.bin", "Model.bin"], "model*.bin") == ["model.bin"]


def test_import_auto(tmp_path: Path) -> None:
    source, target = words(30, "s"), words(40, "t")
    model = save_random_model(tmp_path / "model", (source, target))
    checkpoint = tmp_path / "checkpoint"
    arguments = ["import", "auto", str(model), "--output", str(checkpoint)]
    done = CliRunner().invoke(main, [*arguments, "--languages", "en", "de"])
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{model}: a model of CTranslate2\n{checkpoint}: 2 + 1 layers")
    assert open_checkpoint(checkpoint).target_language == "de"

    done = CliRunner().invoke(main, ["import", "auto", str(checkpoint), "--output", "x"])
    assert done.exit_code == 1
    assert "needs no import" in done.stderr
    (tmp_path / "file").touch()
    for name in ("file", "none"):
        with pytest.raises(InputError):
            recognize_directory(tmp_path / name)


def test_dictionaries_of_two_languages_need_their_names(tmp_path: Path) -> None:
    for name in ("checkpoint_best.pt", "dict.en.txt", "dict.de.txt"):
        (tmp_path / name).touch()
    found = recognize_directory(tmp_path)
    assert found.load is not None
    with pytest.raises(InputError, match=r"dict\.de\.txt, dict\.en\.txt"):
        found.load(tmp_path, (None, None))
    for name in ("a.model", "b.model"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"a\.model, b\.model"):
        found.load(tmp_path, ("en", "de"))


def test_several_checkpoints_are_named(tmp_path: Path) -> None:
    for name in ("step_1.pt", "step_2.pt"):
        (tmp_path / name).touch()
    found = recognize_directory(tmp_path)
    assert found.load is not None
    with pytest.raises(InputError, match=r"step_1\.pt, step_2\.pt"):
        found.load(tmp_path, (None, None))


def test_a_damaged_config_is_named(tmp_path: Path) -> None:
    for name in OPUS:
        (tmp_path / name).write_text("{")
    with pytest.raises(InputError, match=r"config\.json.*JSON"):
        recognize_directory(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "marian"}))
    assert recognize_directory(tmp_path).name == "marian-hf"
