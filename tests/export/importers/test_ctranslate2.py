"""Trained and random CTranslate2 models, compared with CTranslate2."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import ctranslate2
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from ctranslate2.converters import MarianConverter
from ctranslate2.specs.common_spec import Activation
from support.compiled import compile_once
from support.ctranslate2_models import WIDTH, log_probabilities, save_random_model, words
from support.data import folder_of
from support.importing import tokenizer_of
from support.marian_files import OPTIONS, SOURCE, TARGET, random_weights, save
from support.shared import SharedFiles

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.importers.ctranslate2.converted import import_ctranslate2
from translate_trt.export.importers.ctranslate2.model_bin import read_model_file
from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.prompt_format import Format
from translate_trt.runtime.bundle.attention_heads import AttentionHeads
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.cli import main
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.sentences import is_translatable
from translate_trt.runtime.translator import Translator
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import END, START, UNKNOWN
from translate_trt.train.model import pad, sinusoid

pytestmark = pytest.mark.slow

WEIGHTS = "weights-ct2-aren-transliteration"
EXPECTED = {"آ ت ز م و ن": "a t z m o n", "آ ز ا": "a z z a"}  # noqa: RUF001


@pytest.fixture(scope="module")
def trained() -> Path:
    return folder_of(WEIGHTS) / "aren-transliteration"


@pytest.fixture(scope="module")
def checkpoint(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    path = tmp_path_factory.mktemp("imported") / "checkpoint"
    arguments = ["import", "ctranslate2", str(trained), "--output", str(path)]
    done = CliRunner().invoke(main, [*arguments, "--languages", "ar", "en"])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{path}: 6 + 6 layers, 182,731 parameters\n"
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 1
    assert "--force" in again.stderr
    return open_checkpoint(path)


@pytest.fixture(scope="module")
def bundle(checkpoint: Checkpoint, shared: SharedFiles) -> Path:
    return compile_once(shared, checkpoint, BuildOptions(("onnx-fp32", "onnx-int8")))


def random_words(directory: Path, count: int) -> list[str]:
    """Draw lines with letters from the source vocabulary, without special tokens."""
    tokens = (directory / "source_vocabulary.txt").read_text(encoding="utf-8").split()[3:]
    rng = random.Random(1)
    drawn = (" ".join(rng.choices(tokens, k=rng.randint(1, 14))) for _ in itertools.count())
    return [*itertools.islice(filter(is_translatable, drawn), count)]


def test_the_trained_model_as_a_bundle(trained: Path, checkpoint: Checkpoint, bundle: Path) -> None:
    assert (checkpoint.source_language, checkpoint.target_language) == ("ar", "en")
    translator = Translator(bundle, threads=1)
    assert [t.hypotheses[0].text for t in translator.translate(list(EXPECTED))] == list(
        EXPECTED.values()
    )
    near = Translator(bundle, "onnx-int8", threads=1).translate(list(EXPECTED))
    assert [t.hypotheses[0].text for t in near] == list(EXPECTED.values())
    # Some lines have unknown words, single and consecutive.
    lines = [*random_words(trained, 200), *EXPECTED, "ب x ت ب", "x y ب x x  z", "ب <unk> y ت"]
    theirs = ctranslate2.Translator(str(trained), compute_type="float32", intra_threads=1)
    for beams, alpha in ((1, 0.0), (2, 1.0), (5, 0.6)):
        options = SearchOptions(
            beams, alpha, "length", early_stopping=True, max_length=60, num_hypotheses=1
        )
        found = translator.translate(lines, options)
        expected = theirs.translate_batch(
            [line.split() for line in lines], beam_size=beams, length_penalty=alpha,
            return_scores=True, max_decoding_length=60, min_decoding_length=0,
        )  # fmt: skip
        for ours, other in zip(found, expected, strict=True):
            assert ours.hypotheses[0].text == " ".join(other.hypotheses[0])
            assert ours.hypotheses[0].score == pytest.approx(other.scores[0], abs=1e-4)


def test_vocabulary_map(trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = shutil.copytree(trained, tmp_path / "model", copy_function=shutil.copyfile)
    sources, targets = (
        (trained / f"{side}_vocabulary.txt").read_text(encoding="utf-8").split()[3:]
        for side in ("source", "target")
    )
    rng = random.Random(4)
    rows = {source: rng.sample(targets, 4) for source in sources}
    text = "\t" + " ".join(targets[:3]) + "\n"
    text += "".join(f"{source}\t{' '.join(row)}\n" for source, row in rows.items())
    (folder / "vmap.txt").write_text(text + f"{sources[0]} {sources[1]}\t{targets[9]}\n")
    imported = import_ctranslate2(folder)
    assert "phrases" in caplog.text
    assert imported.shortlist is not None
    tokenizer = tokenizer_of(imported.tokenizers)
    found = imported.shortlist.for_sentence(tokenizer.encode_source(sources[5]))
    expected = {*targets[:3], *rows[sources[5]]}
    assert set(found) == {UNKNOWN, END, *tokenizer.encode_target(" ".join(expected))}
    (folder / "vmap.txt").write_text("x\ty\n")
    with pytest.raises(InputError, match=r"vmap\.txt.*1 translations"):
        import_ctranslate2(folder)


# ---- random models with features that the trained model lacks ----

MARIAN_TABLE = sinusoid(torch.arange(40), WIDTH, "concatenated").numpy()
LEARNED = [np.random.default_rng(n).normal(0, 0.3, (40, WIDTH)).astype(np.float32) for n in (1, 2)]
SHARED = words(40, "w")
UNKNOWN_LAST = [*(token for token in SHARED if token != "<unk>"), "<unk>"]
RANDOM: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Arguments of the random model, and the expected fields of ModelConfig.
    "post-norm, gelu, learned positions": (
        {
            "vocabularies": (SHARED, SHARED), "pre_norm": False, "activation": Activation.GELU,
            "positions": LEARNED, "layernorm_embedding": True, "tied": True,
            "settings": {"scale_embeddings": False},
            "config": {"add_source_eos": True, "decoder_start_token": "</s>"},
        },
        {
            "norm": "post", "activation": "gelu", "positions": "learned", "max_positions": 40,
            "own_target_positions": True, "norm_embedding": True, "tied": "all",
            "scale_embedding": False, "source_end": True, "source_vocabulary_size": 0,
        },
    ),
    "swish, Marian's positions, no biases": (
        {
            "vocabularies": (words(44, "s"), words(40, "t")), "activation": Activation.SWISH,
            "positions": (MARIAN_TABLE, MARIAN_TABLE), "biases": False, "layers": (1, 2),
            "config": {"layer_norm_epsilon": 1e-3}, "quantization": "int8",
        },
        {
            "norm": "pre", "activation": "swish", "sinusoid": "concatenated", "tied": "none",
            "first_position": 0, "layer_norm_epsilon": 1e-3, "source_vocabulary_size": 44,
            "output_bias": False, "decoder_layers": 2,
        },
    ),
    "T5's relative positions, gated": (
        {
            "vocabularies": (SHARED, SHARED), "activation": Activation.GELUTanh, "ffn_glu": True,
            "rms_norm": True, "relative_attention_bias": True, "biases": False, "tied": True,
            "settings": {"scale_embeddings": False}, "config": {"add_source_eos": True},
            "layers": (2, 2),
        },
        {
            "norm": "pre", "activation": "gated-gelu", "rms_norm": True, "relative_positions": 9,
            "layer_norm_epsilon": 1e-6, "value_size": 8, "scale_embedding": False, "tied": "all",
        },
    ),
    "half precision, no unknown token, scaled queries": (
        {
            "vocabularies": (UNKNOWN_LAST, UNKNOWN_LAST),
            "quantization": "bfloat16",
        },
        {"sinusoid": "tensor2tensor", "first_position": 1, "tied": "none"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANDOM)
def test_random_models_have_the_same_log_probabilities(name: str, tmp_path: Path) -> None:
    given, fields = RANDOM[name]
    directory = save_random_model(tmp_path / "model", **given)
    if "no unknown token" in name:
        drop_unknown(directory)
    imported = import_ctranslate2(directory)
    config = imported.model.config
    assert {field: getattr(config, field) for field in fields} == fields
    lines = random_pairs(given["vocabularies"], 30)
    assert_same_log_probabilities(imported, lines, log_probabilities(directory, *lines))


def random_pairs(sides: tuple[list[str], list[str]], count: int) -> list[list[list[str]]]:
    """Return random sources and targets."""
    rng = random.Random(2)
    return [
        [[rng.choice(side[4:]) for _ in range(rng.randint(1, 12))] for _ in range(count)]
        for side in sides
    ]


def assert_same_log_probabilities(
    imported: Imported,
    lines: list[list[list[str]]],
    expected: list[list[float]],
    options: SearchOptions | None = None,
) -> None:
    """Compare the log-probabilities of each target token and the end token."""
    tokenizer = tokenizer_of(imported.tokenizers)
    sources = tokenizer.encode_source_batch([" ".join(line) for line in lines[0]])
    targets = tokenizer.encode_target_batch([" ".join(line) for line in lines[1]])
    assert [len(source) for source in sources] == [len(line) for line in lines[0]]
    before = imported.prompt.of_source(options or SearchOptions())
    for source, target, log_probs in zip(sources, targets, expected, strict=True):
        found = forced(imported.model, [*before, *source], target)
        np.testing.assert_allclose(found, log_probs, atol=1e-4)


@pytest.mark.parametrize("quantization", ["int8", "int8_float16", "int8_bfloat16", "int16"])
def test_quantized_models_with_shared_embeddings(quantization: str, tmp_path: Path) -> None:
    """An alias of a quantized array also has the array's scale."""
    directory = save_random_model(
        tmp_path / "model", (SHARED, SHARED), tied=True, quantization=quantization,
        positions=(MARIAN_TABLE, MARIAN_TABLE),
    )  # fmt: skip
    lines = random_pairs((SHARED, SHARED), 30)
    imported = import_ctranslate2(directory)
    assert imported.model.config.tied == "all"
    assert_same_log_probabilities(imported, lines, log_probabilities(directory, *lines))


# ---- models of Marian, converted ----


def save_marian(directory: Path, tied: bool) -> Path:
    """Convert a random Marian model with CTranslate2's converter."""
    directory.mkdir()
    options = OPTIONS | {"transformer-guided-alignment-layer": "last"}
    weights = random_weights(options)
    if tied:
        weights["Wemb"] = weights.pop("encoder_Wemb")
        del weights["decoder_Wemb"]
        weights["decoder_ff_logit_out_b"] = np.ones((1, len(SOURCE)), np.float32)
    path, source, target = save(directory, options, weights)
    converter = MarianConverter(str(path), [str(source), str(source if tied else target)])
    converter.convert(str(directory / "converted"), quantization="int8" if tied else None)
    return directory / "converted"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, AttentionHeads(1, (0,))),
        ({"alignment_layer": 0, "alignment_heads": 3}, AttentionHeads(0, (0, 1, 2))),
        ({"alignment_layer": -2, "alignment_heads": 0}, AttentionHeads(0)),
    ],
)
def test_alignment_heads(options: dict[str, int], expected: AttentionHeads, tmp_path: Path) -> None:
    tokens = words(40, "w")
    directory = save_random_model(tmp_path / "model", (tokens, tokens), layers=(1, 2), **options)
    assert import_ctranslate2(directory).alignment_heads == expected


@pytest.mark.parametrize("tied", [True, False], ids=["shared-int8", "separate"])
def test_converted_models_of_marian(tied: bool, tmp_path: Path) -> None:
    """Decoding starts with a zero embedding instead of a start token."""
    directory = save_marian(tmp_path / "marian", tied)
    lines = random_pairs((SOURCE, SOURCE if tied else TARGET), 30)
    imported = import_ctranslate2(directory)
    config = imported.model.config
    assert (config.source_end, config.sinusoid, config.output_bias) == (True, "concatenated", True)
    assert not imported.model.embedding.weight[START].any()
    assert_same_log_probabilities(imported, lines, log_probabilities(directory, *lines))


# ---- tokens that callers of CTranslate2 add ----

FAIRSEQ = ["<s>", "<pad>", "</s>", "<unk>"]
CODES = ["en_XX", "de_DE", "fr_XX"]


def test_a_model_like_barthez(tmp_path: Path) -> None:
    """Converters do not store the tokens that transformers' tokenizer adds."""
    tokens = [*FAIRSEQ, *words(40, "w")[4:]]
    settings = {"decoder_start_token": "</s>"}
    directory = save_random_model(tmp_path / "model", (tokens, tokens), config=settings)
    with pytest.raises(InputError, match="--source-format"):
        import_ctranslate2(directory)
    lines = random_pairs((tokens, tokens), 10)
    around = [["<s>", *line, "</s>"] for line in lines[0]]
    imported = import_ctranslate2(directory, source_format="<s> {text} </s>", target_prefix="<s>")
    assert imported.model.config.source_end
    assert len(imported.prompt.target) == 1
    assert_same_log_probabilities(imported, lines, log_probabilities(directory, around, lines[1]))
    bare = import_ctranslate2(directory, source_format="{text}")
    assert (bare.prompt, bare.model.config.source_end) == (Prompt(), False)


@pytest.mark.parametrize(
    ("source_format", "target_prefix", "prompt"),
    [
        # NLLB with fewer languages, and SMaLL-100.
        ("{source_language} {text} </s>", "{target_language}",
         {"source_languages": CODES, "target_languages": CODES, "target_side": "target"}),
        ("{target_language} {text} </s>", None,
         {"source_languages": [], "target_languages": CODES, "target_side": "source"}),
    ],
    ids=["both-sides", "before-the-source"],
)  # fmt: skip
def test_languages_by_a_format(
    source_format: str, target_prefix: str | None, prompt: dict[str, Any], tmp_path: Path
) -> None:
    tokens = [*FAIRSEQ, *words(40, "w")[4:], *CODES]
    settings = {"decoder_start_token": "</s>"}
    directory = save_random_model(tmp_path / "model", (tokens, tokens), config=settings)
    found = import_ctranslate2(directory, source_format=source_format, target_prefix=target_prefix)
    assert {
        "source_languages": sorted(found.prompt.source_languages, key=CODES.index),
        "target_languages": sorted(found.prompt.target_languages, key=CODES.index),
        "target_side": found.prompt.target_side,
    } == prompt
    assert found.model.config.source_end
    lines = random_pairs((tokens[:40], tokens[:40]), 10)
    expected = log_probabilities(
        directory, [["de_DE", *line, "</s>"] for line in lines[0]], lines[1]
    )
    options = SearchOptions(source_language="de_DE", target_language="de_DE")
    assert_same_log_probabilities(found, lines, expected, options)


@pytest.mark.parametrize(
    ("source_format", "target_prefix"),
    [
        ("</s>", ""),
        ("{text} {text}", ""),
        ("{text} </s> {source_language}", ""),
        ("{source_language} <s> {text}", ""),
        ("{target_language} {source_language} {text}", ""),
        ("{text}", "{source_language}"),
        ("{target_language} {text}", "{target_language}"),
        ("{target_language} {text}", ""),
        ("<x> {text}", ""),
    ],
    ids=["no-text", "two-texts", "mbart-25", "order", "languages", "source", "twice", "none",
         "unknown"],
)  # fmt: skip
def test_malformed_formats(source_format: str, target_prefix: str) -> None:
    with pytest.raises(InputError):
        Format.parse(source_format, target_prefix, "</s>").prompt((SHARED, SHARED), ({}, {}))


def drop_unknown(directory: Path) -> None:
    """Remove the unknown token, which some converters omit and CTranslate2 appends."""
    path = directory / "shared_vocabulary.json"
    tokens = json.loads(path.read_text())
    assert "<unk>" not in tokens[:-1]
    path.write_text(json.dumps(tokens[:-1]))


@torch.inference_mode()
def forced(model: Any, source: list[int], target: list[int]) -> list[float]:
    """Return the log-probabilities of the target's tokens and of the end token."""
    cache = model.start_cache(*pad([[*source, END]]))
    found = []
    for previous, token in zip([START, *target], [*target, END], strict=True):
        log_probs = model.decode_next(torch.tensor([previous]), cache).log_softmax(-1)
        found.append(float(log_probs[0, token]))
    return found


# ---- unsupported and damaged models ----

PLAIN: dict[str, Any] = {"vocabularies": (SHARED, SHARED), "layers": (1, 1)}
REFUSED: dict[str, dict[str, Any]] = {
    "activation is GELUTanh": {"activation": Activation.GELUTanh},
    "relative_position_keys is part of the model": {"with_relative_position": True},
    "ffn/linear_0_noact/.* is part of the model": {"ffn_glu": True},
    r"scale_embeddings is \[2.5\]": {"settings": {"scale_embeddings": 2.5}},
    "add_source_bos puts <s> before every source": {"config": {"add_source_bos": True}},
    "decoder_start_token is null": {"config": {"decoder_start_token": None}},
    "rope_theta is": {"config": {"rope_theta": 1e4}},
    "add_source_eos is": {"config": {"add_source_eos": "yes"}},
    "unk_token is": {"config": {"unk_token": []}},
    "vocabulary lacks the end token '</e>'": {"config": {"eos_token": "</e>"}},
    "lacks encoder/layer_norm/gamma": {"no_final_norm": True},
}


@pytest.mark.parametrize("message", REFUSED)
def test_unsupported_settings_are_named(message: str, tmp_path: Path) -> None:
    directory = save_random_model(tmp_path / "model", **(PLAIN | REFUSED[message]))
    with pytest.raises(InputError, match=message):
        import_ctranslate2(directory)


def larger(content: bytes, rows: int) -> bytes:
    """Change the first axis of an array, so that the file declares more rows than it has."""
    name = b"decoder/embeddings/weight\0"
    place = content.index(name) + len(name) + 1
    return content[:place] + struct.pack("<I", rows) + content[place + 4 :]


def test_files_that_declare_too_many_elements(tmp_path: Path) -> None:
    """10,000 aliases of one array, and a name that error messages truncate."""
    path = tmp_path / "model.bin"

    def text(name: bytes) -> bytes:
        return struct.pack("<H", len(name) + 1) + name + b"\0"

    count = 10_000
    array = text(b"a") + struct.pack("<BIBI", 1, count, 1, count) + bytes(count)
    start = struct.pack("<I", 6) + text(b"TransformerSpec") + struct.pack("<II", 7, 1) + array
    aliases = b"".join(text(b"%d" % place) + text(b"a") for place in range(count))
    path.write_bytes(start + struct.pack("<I", count) + aliases)
    with pytest.raises(InputError, match="describe 100010000"):
        read_model_file(path)
    path.write_bytes(start + struct.pack("<I", 1) + text(b"b") + text(b"x" * 60_000))
    with pytest.raises(InputError, match="damaged") as raised:
        read_model_file(path)
    assert len(str(raised.value)) < 500


def test_broken_directories(tmp_path: Path) -> None:
    whole = save_random_model(tmp_path / "model", **PLAIN)
    content = (whole / "model.bin").read_bytes()

    def spoiled(name: str, change: bytes | None) -> Path:
        path = tmp_path / "spoiled"
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(whole, path)
        if change is None:
            (path / name).unlink()
        else:
            (path / name).write_bytes(change)
        return path

    for name, change, message in (
        ("model.bin", None, "cannot read .*model.bin"),
        ("model.bin", content[:1000], "damaged: it ends after 1,000 bytes"),
        ("model.bin", b"\x09" + content[1:], "has version 9 of CTranslate2's layout"),
        ("model.bin", content.replace(b"TransformerSpec", b"TransformerXpec"), "is a Transformer"),
        ("model.bin", larger(content, 1 << 31), "axes|bytes"),
        ("shared_vocabulary.json", None, "neither shared_vocabulary nor"),
        ("shared_vocabulary.json", b'{"a": 1}', "is not a list of tokens"),
        ("shared_vocabulary.json", json.dumps(SHARED[:-1]).encode(), "40 rows, but .* 39 tokens"),
        ("shared_vocabulary.json", json.dumps([*SHARED[:-1], "w1"]).encode(), "token 'w1' twice"),
        ("config.json", b"[]", "is not a JSON object"),
    ):
        with pytest.raises(InputError, match=message):
            import_ctranslate2(spoiled(name, change))
    with pytest.raises(InputError, match="directory"):
        import_ctranslate2(tmp_path / "nothing")
    with pytest.raises(InputError, match=r"source\.spm.*SentencePiece"):
        import_ctranslate2(spoiled("source.spm", b"nothing of the kind"))


# ---- languages ----


def test_languages_before_the_source(tmp_path: Path) -> None:
    """OPUS-MT's tokens are languages; single tokens such as __de__ and deu_Latn are words."""
    tokens = [*words(40, "a"), ">>deu<<", ">>cmn_Hans<<", "__de__", "deu_Latn", "de_DE"]
    imported = import_ctranslate2(save_random_model(tmp_path / "model", (tokens, tokens)))
    deu, cmn = (tokenizer_of(imported.tokenizers).encode_source(f">>{code}<< a1 __de__")[0]
                for code in ("deu", "cmn_Hans"))  # fmt: skip
    assert imported.prompt == Prompt(
        target_languages={"deu": deu, "cmn_Hans": cmn}, target_side="source"
    )
