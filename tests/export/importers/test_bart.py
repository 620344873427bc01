"""BART and mBART against Hugging Face's transformers: weights, search and tokenizers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import WORDS
from safetensors.torch import load_file, save_file
from support.data import multi30k
from support.hugging_face_models import (
    BEGIN_ID,
    END_ID,
    MODEL,
    SPECIAL,
    Pair,
    change,
    make_lively,
    mbart_languages,
    pieces_of,
    random_bart,
    save_fast_tokenizer,
    train_pieces,
)
from support.shared import SharedFiles

from translate_trt.export.importers.hugging_face.bart import import_bart
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator

pytestmark = pytest.mark.slow

transformers = pytest.importorskip(
    "transformers", reason="transformers, which makes the models, is not installed"
)


@pytest.fixture(scope="module")
def pieces() -> bytes:
    return train_pieces(WORDS.split("\n"), "unigram", 80)


@pytest.fixture(scope="module")
def barthez_pieces() -> bytes:
    """Train a SentencePiece model with fairseq's special tokens, like BARThez's."""
    numbers = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
    return train_pieces(WORDS.split("\n"), "unigram", 80, **numbers)


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory, barthez_pieces: bytes) -> Pair:
    """Save a BART model with BARThez's tokenizer."""
    directory = tmp_path_factory.mktemp("bart") / "model"
    save_fast_tokenizer(directory, barthez_pieces, "BarthezTokenizer", [])
    names = [*SPECIAL, *pieces_of(barthez_pieces)[1:], "<mask>"]
    theirs = random_bart("Bart", len(names) + 3, forced_bos_token_id=BEGIN_ID)
    theirs.generation_config.num_beams = 4
    theirs.generation_config.forced_bos_token_id = BEGIN_ID
    make_lively(theirs, range(4, 40), [([BEGIN_ID], [BEGIN_ID])])
    return Pair(directory, theirs, names, "bart-hf")


@pytest.fixture(scope="module")
def mbart(tmp_path_factory: pytest.TempPathFactory, pieces: bytes) -> Pair:
    """Save an mBART-50 model that reverses into German and copies into French."""
    directory = tmp_path_factory.mktemp("mbart") / "model"
    save_fast_tokenizer(directory, pieces, "MBart50Tokenizer", mbart_languages())
    names = [*SPECIAL, *pieces_of(pieces), *mbart_languages(), "<mask>"]
    theirs = random_bart(
        "MBart", len(names), scale_embedding=True, activation_function="relu", init_std=0.05
    )
    english, german, french = (names.index(code) for code in ("en_XX", "de_DE", "fr_XX"))
    make_lively(theirs, range(4, 40), [([english], [german]), ([english], [french])])
    theirs.generation_config.forced_bos_token_id = german
    return Pair(directory, theirs, names, "bart-hf")


@pytest.fixture(scope="module")
def translators(bart: Pair, mbart: Pair, shared: SharedFiles) -> dict[str, Translator]:
    return {"bart": bart.compiled(shared), "mbart": mbart.compiled(shared)}


def test_logits(bart: Pair, mbart: Pair) -> None:
    for pair in (bart, mbart):
        pair.assert_same_logits()
        config = pair.checkpoint.model
        assert (config.positions, config.max_positions, config.norm_embedding) == (
            "learned", 128, True
        )  # fmt: skip
        assert config.own_target_positions


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 0.6)])
def test_search(
    beams: int, penalty: float, bart: Pair, mbart: Pair, translators: dict[str, Translator]
) -> None:
    options = SearchOptions(beams, penalty, "length", early_stopping=True, max_length=60)
    bart.assert_same_search(translators["bart"], options)
    said = []
    for language in ("de_DE", "fr_XX"):
        token = mbart.ids[mbart.checkpoint.prompt.target_languages[language]]
        options = SearchOptions(
            beams, penalty, "length", early_stopping=True, max_length=60, source_language="en_XX",
            target_language=language,
        )  # fmt: skip
        said.append(
            mbart.assert_same_search(translators["mbart"], options, forced_bos_token_id=token)
        )
    assert {one[1:] for one in said[0]} != {one[1:] for one in said[1]}


def test_prompts(bart: Pair, mbart: Pair, translators: dict[str, Translator]) -> None:
    begin = bart.ids.index(BEGIN_ID)
    assert bart.checkpoint.prompt == Prompt((begin,), (begin,))
    assert translators["bart"].default_options == SearchOptions(4, 1.0, "length", loop_guard=True)
    assert len(mbart.checkpoint.prompt.source_languages) == 52
    assert translators["mbart"].default_options.target_language == "de_DE"
    (found,) = translators["bart"].translate(["the cat runs."])
    assert "<" not in found.text


# ---- tokenizers ----


@pytest.mark.parametrize("name", ["MBart50Tokenizer", "BarthezTokenizer"])
def test_real_text_has_the_same_tokens(name: str, tmp_path: Path) -> None:
    numbers: dict[str, Any] = {"normalization_rule_name": "nmt_nfkc"}
    languages = mbart_languages()
    if name == "BarthezTokenizer":
        numbers = {"bos_id": 0, "pad_id": 1, "eos_id": 2, "unk_id": 3}
        languages = []
    model = train_pieces(multi30k("val"), "unigram", 2000, **numbers)
    directory = tmp_path / "model"
    tokenizer = save_fast_tokenizer(directory, model, name, languages)
    names = [tokenizer.convert_ids_to_tokens(place) for place in range(len(tokenizer))]
    kind = "MBart" if languages else "Bart"
    pair = Pair(directory, random_bart(kind, len(names), d_model=8), names, "bart-hf")
    # Their tokenizer encodes trailing spaces as a token, unlike SentencePiece.
    lines = [line.strip() for line in multi30k("test_2016_flickr")]
    pair.assert_same_tokens(tokenizer, lines)


# ---- unsupported and damaged models ----


@pytest.fixture
def copied(mbart: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(mbart.directory, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config", {"model_type": "pegasus"}, "model_type is"),
        ("tokenizer_config", {"tokenizer_class": "MBartTokenizer"}, "25 languages"),
        ("tokenizer_config", {"tokenizer_class": "BartphoTokenizer"}, "tokenizer_class is"),
        ("generation_config", {"decoder_start_token_id": 90}, "25 languages"),
        ("generation_config", {"forced_bos_token_id": END_ID}, "forced_bos_token_id is"),
        ("generation_config", {"eos_token_id": 7}, "'</s>'"),
    ],
)
def test_unsupported_settings_are_named(
    file: str, values: dict[str, Any], message: str, copied: Path
) -> None:
    change(copied / f"{file}.json", **values)
    with pytest.raises(InputError, match=message):
        import_bart(copied)


def test_tied_matrices_must_be_equal(copied: Path) -> None:
    """An output matrix that contradicts config.json is an error."""
    weights = load_file(copied / "model.safetensors")
    weights["lm_head.weight"] = weights["model.shared.weight"] + 1
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"lm_head\.weight"):
        import_bart(copied)
    change(copied / "config.json", tie_word_embeddings=False)
    assert import_bart(copied).model.config.tied == "input"


@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_a_tied_matrix_under_one_name(stack: str, copied: Path) -> None:
    expected = import_bart(copied).model.state_dict()
    weights = load_file(copied / "model.safetensors")
    weights[f"model.{stack}.embed_tokens.weight"] = weights.pop("model.shared.weight")
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    found = import_bart(copied).model.state_dict()
    assert found.keys() == expected.keys()
    assert all(found[name].equal(weight) for name, weight in expected.items())


def test_byte_level_tokenizers_are_refused(copied: Path) -> None:
    model = (copied / MODEL).rename(copied / "elsewhere.model")
    assert import_bart(copied, model).prompt.target_languages
    (copied / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(InputError, match=r"BPE.*mBART-50's"):
        import_bart(copied)
    (copied / "special_tokens_map.json").unlink()
    change(copied / "tokenizer_config.json", extra_special_tokens=[])
    with pytest.raises(InputError, match="de_DE"):
        import_bart(copied, model)
