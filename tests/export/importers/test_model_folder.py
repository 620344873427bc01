"""Directories of Marian students: `translate-trt import marian DIRECTORY`, and the shortlist."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import sentencepiece
from click.testing import CliRunner
from support.marian_files import OPTIONS, save_student_folder, settings_of, tied_weights

from translate_trt.export.importers.marian.files import SETTINGS
from translate_trt.export.importers.marian.model_folder import ModelFolder
from translate_trt.export.importers.recognition import import_directory
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import open_checkpoint

FREQUENT = 30
CONFIG = """relative-paths: true
models:
  - model.ende.intgemm.alphas.bin
vocabs:
  - vocab.ende.spm
  - vocab.ende.spm
shortlist:
  - lex.50.50.ende.s2t.bin
  - false
beam-size: 1
normalize: 1.0
word-penalty: 0
max-length-break: 128
mini-batch-words: 1024
workspace: 128
max-length-factor: 3
skip-cost: true
cpu-threads: 0
quiet: true
quiet-translation: true
gemm-precision: int8shiftAlphaAll
alignment: soft
"""


@pytest.fixture
def folder(tokenizer_model: Path, tmp_path: Path) -> Path:
    return save_student_folder(tmp_path / "ende", tokenizer_model)


def run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.nightly
def test_import_and_export_with_the_shortlist(folder: Path, tmp_path: Path) -> None:
    """The shortlist of the directory is that of the exported bundle's default target."""
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    output = run("import", "marian", folder, "--output", checkpoint, "--languages", "en", "de")
    assert "with its shortlist" in output
    opened = open_checkpoint(checkpoint)
    assert SearchOptions(**opened.search) == SearchOptions(1, 1.0, "length", loop_guard=True)
    assert opened.shortlist is not None
    assert "onnx-fp32-shortlist" in run("export", checkpoint, "--output", bundle)
    translator = Translator(bundle, threads=1)
    assert translator.target.contract.shortlist is not None
    assert translator.target.contract.shortlist.always == FREQUENT
    [translation] = translator.translate(["The dog walks over the river."])
    assert translation.text
    run("export", checkpoint, "--output", bundle, "--target", "onnx-fp32", "--force")
    assert Translator(bundle, threads=1).target.contract.shortlist is None
    # A replaced checkpoint keeps nothing of the former one.
    (folder / "lex.50.50.ende.s2t.bin").unlink()
    assert "shortlist" not in run("import", "marian", folder, "--output", checkpoint, "--force")
    assert open_checkpoint(checkpoint).shortlist is None


@pytest.mark.nightly
def test_recorded_activation_scales(folder: Path, tmp_path: Path) -> None:
    """From the directory to graphs with the scales that the model contains."""
    checkpoint, bundle = tmp_path / "checkpoint", tmp_path / "bundle"
    output = run("import", "marian", folder, "--output", checkpoint, "--recorded-activation-scales")
    assert "with its shortlist, with its activation scales" in output
    targets = ("onnx-int8", "onnx-int8-shortlist")
    options = [option for target in targets for option in ("--target", target)]
    explained = run("export", checkpoint, "--output", bundle, *options, "--explain")
    assert "its input has a recorded scale" in explained
    for target in targets:
        graphs = [
            onnx.load(bundle / f"targets/{target}/{role}.onnx").graph
            for role in ("encoder", "step")
        ]
        operators = [[node.op_type for node in graph.node] for graph in graphs]
        # Two encoder layers and the keys and values of the decoder layer; the decoder layer and,
        # without a shortlist, the vocabulary.
        counts = [names.count("MatMulIntegerToFloat") for names in operators]
        assert counts == [2 * 4 + 1, 6 + (target == "onnx-int8")]
        assert ("ListedCandidates8" in str(operators)) == (target != "onnx-int8")


def test_without_settings(folder: Path) -> None:
    """Firefox and Bergamot decode greedily."""
    found = ModelFolder.find(folder)
    assert found.model.name == "model.ende.intgemm.alphas.bin"
    assert {path.name for path in found.vocabularies} == {"vocab.ende.spm"}
    assert found.shortlist is not None
    assert found.shortlist.path.name == "lex.50.50.ende.s2t.bin"
    assert found.decoder.search == {
        "beam_size": 1, "length_penalty": 1.0, "length_penalty_form": "length",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["decoder.yml", "config.intgemm8bitalpha.yml", "a.config.yml"])
def test_settings(name: str, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The settings of Firefox log no warning, and choose among several files."""
    for other in ("model.other.bin", "vocab.other.spm", "lex.other.bin"):
        (folder / other).write_bytes(b"")
    with pytest.raises(InputError, match="has several"):
        ModelFolder.find(folder)
    (folder / name).write_text(CONFIG)
    found = ModelFolder.find(folder)
    assert found.model.name == "model.ende.intgemm.alphas.bin"
    assert found.shortlist is not None
    assert found.shortlist.path.name == "lex.50.50.ende.s2t.bin"
    assert found.decoder.search["beam_size"] == 1
    assert not caplog.messages


def test_two_vocabularies(folder: Path) -> None:
    (folder / "vocab.ende.spm").rename(folder / "srcvocab.ende.spm")
    with pytest.raises(InputError, match=r"srcvocab\*\.spm"):
        ModelFolder.find(folder)
    (folder / "trgvocab.ende.spm").write_bytes((folder / "srcvocab.ende.spm").read_bytes())
    names = [path.name for path in ModelFolder.find(folder).vocabularies]
    assert names == ["srcvocab.ende.spm", "trgvocab.ende.spm"]


def test_paths_outside_of_the_directory(folder: Path) -> None:
    """Settings name files, wherever the author of the settings had them."""
    text = CONFIG.replace("- vocab", "- ../../etc/vocab").replace("- lex", "- /home/a/lex")
    (folder / "config.yml").write_text(text.replace("- model", "- ../model"))
    found = ModelFolder.find(folder)
    assert found.shortlist is not None
    files = {found.model, *found.vocabularies, found.shortlist.path}
    assert {path.parent for path in files} == {folder}


def test_incomplete_directories(folder: Path) -> None:
    model = folder / "model.ende.intgemm.alphas.bin"
    compressed = folder / "model.ende.intgemm.alphas.bin.gz"
    model.rename(compressed)
    with pytest.raises(InputError, match=r"model\.ende\.intgemm\.alphas\.bin\.gz"):
        ModelFolder.find(folder)
    (folder / "config.yml").write_text(CONFIG)
    with pytest.raises(InputError, match=r"model\.ende.*config\.yml"):
        ModelFolder.find(folder)


def test_text_by_the_settings(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Options of --shortlist in the settings, and a file that is missing."""
    (folder / "lex.s2t").write_text("a b 0.5\n")
    lines = {
        "[lex.s2t, 50, 60, 0.1]": (50, 60, 0.1), "[lex.s2t, 50]": (50, 100, 0.0),
        "lex.s2t": (100, 100, 0.0),
    }  # fmt: skip
    for line, expected in lines.items():
        (folder / "config.yml").write_text(f"shortlist: {line}\n")
        shortlist = ModelFolder.find(folder).decoder.shortlist
        assert shortlist is not None
        assert (shortlist.frequent, shortlist.best, shortlist.threshold) == expected
    (folder / "config.yml").write_text("shortlist: [lex.s2t, many]\n")
    with pytest.raises(InputError, match=r"\['lex\.s2t'"):
        ModelFolder.find(folder)
    (folder / "config.yml").write_text("shortlist: [/a/gone.s2t, 100]\n")
    assert ModelFolder.find(folder).decoder.shortlist is None
    assert "/a/gone.s2t" in caplog.text


def test_options_of_the_command(folder: Path, tmp_path: Path) -> None:
    model, vocabulary = folder / "model.ende.intgemm.alphas.bin", folder / "vocab.ende.spm"
    factors = folder / "vocab.fsv"
    factors.write_text("_lemma\n")
    for arguments, message in (
        ([folder, "--vocab", vocabulary], "--vocab and --target-vocab are for a model's file"),
        ([folder, "--best", "50"], "--best is for a file of --shortlist"),
        ([model], "--vocab is missing"),
        ([model, "--vocab", factors], "vocab.fsv is a vocabulary of factors"),
    ):
        done = CliRunner().invoke(
            main, ["import", "marian", *map(str, arguments), "--output", str(tmp_path / "out")]
        )
        assert done.exit_code != 0
        assert message in done.output
    run("import", "marian", model, "--output", tmp_path / "out", "--vocab", vocabulary,
        "--shortlist", folder / "lex.50.50.ende.s2t.bin")  # fmt: skip
    assert open_checkpoint(tmp_path / "out").shortlist is not None


def test_opus_mt(tokenizer_model: Path, tmp_path: Path) -> None:
    """The names of OPUS-MT: a vocabulary in YAML, and the tokenizers in files of their own."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tokenizer_model))
    names = [pieces.id_to_piece(token) for token in range(pieces.get_piece_size())]
    special = ("<pad>", "<unk>", "<s>", "</s>")
    names = ["</s>", "<unk>", *(name for name in names if name not in special)]
    folder, name = tmp_path / "opus", "opus.model1.npz.best-perplexity.npz"
    folder.mkdir()
    weights = tied_weights(len(names))
    np.savez(folder / name, **weights, **{SETTINGS: settings_of(OPTIONS)})
    lines = (f"{json.dumps(name, ensure_ascii=False)}: {row}\n" for row, name in enumerate(names))
    (folder / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
    (folder / "decoder.yml").write_text(f"models: [{name}]\nbeam-size: 6\nnormalize: 1\n")
    for side in ("source.spm", "target.spm"):
        (folder / side).write_bytes(tokenizer_model.read_bytes())
    model, imported = import_directory(folder, (None, None))
    assert model.name == "marian"
    assert imported.search["beam_size"] == 6
    found = sentencepiece.SentencePieceProcessor(model_proto=imported.tokenizers[0])
    line = "The dog walks over the river."
    assert found.encode(line, out_type=str) == pieces.encode(line, out_type=str)
    (folder / "source.bpe").touch()
    with pytest.raises(InputError, match=r"source\.bpe"):
        import_directory(folder, (None, None))
