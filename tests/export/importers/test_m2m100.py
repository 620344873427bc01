"""M2M100 and NLLB-200 against Hugging Face's transformers: weights, search and tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file, save_file
from support.data import multi30k
from support.hugging_face_models import (
    END_ID,
    MODEL,
    SPECIAL,
    Pair,
    change,
    make_lively,
    nllb_languages,
    pieces_of,
    save_fast_tokenizer,
    save_m2m100_tokenizer,
    save_random_m2m100,
    train_pieces,
)
from support.shared import SharedFiles

from translate_trt.export.importers.hugging_face.m2m100 import import_m2m100
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.translator import Translator
from translate_trt.train.config import END
from translate_trt.train.model import sinusoid

pytestmark = pytest.mark.slow

transformers = pytest.importorskip(
    "transformers", reason="transformers, which makes the models, is not installed"
)


@pytest.fixture(scope="module")
def pieces() -> bytes:
    """Train a byte-pair encoding, like M2M100's and NLLB's."""
    return train_pieces(WORDS.split("\n"), "bpe", 120)


@pytest.fixture(scope="module")
def m2m100(tmp_path_factory: pytest.TempPathFactory, pieces: bytes) -> Pair:
    """Save an M2M100 model that reverses into German and copies into French."""
    directory = tmp_path_factory.mktemp("m2m100") / "model"
    tokenizer = save_m2m100_tokenizer(directory, pieces)
    size = len(tokenizer) + len(tokenizer.lang_token_to_id) + tokenizer.num_madeup_words
    theirs = save_random_m2m100(directory, size)
    english, german, french = (tokenizer.get_lang_id(code) for code in ("en", "de", "fr"))
    make_lively(theirs, range(4, 40), [([english], [german]), ([english], [french])])
    names = [tokenizer.convert_ids_to_tokens(place) for place in range(size - 8)]
    return Pair(directory, theirs, names, "m2m100-hf")


@pytest.fixture(scope="module")
def nllb(tmp_path_factory: pytest.TempPathFactory, pieces: bytes) -> Pair:
    """Save an NLLB-200 model of random weights."""
    directory, languages = tmp_path_factory.mktemp("nllb") / "model", nllb_languages()
    save_fast_tokenizer(directory, pieces, "NllbTokenizer", languages)
    names = [*SPECIAL, *pieces_of(pieces), *languages, "<mask>"]
    theirs = save_random_m2m100(directory, len(names) + 2, activation_function="gelu")
    return Pair(directory, theirs, names, "m2m100-hf")


@pytest.fixture(scope="module")
def translator(m2m100: Pair, shared: SharedFiles) -> Translator:
    return m2m100.compiled(shared)


@pytest.mark.parametrize("name", ["m2m100", "nllb"])
def test_logits(name: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(name).assert_same_logits()


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 0.6)])
def test_search(beams: int, penalty: float, m2m100: Pair, translator: Translator) -> None:
    said = []
    for language in ("de", "fr"):
        options = SearchOptions(
            beams, penalty, "length", early_stopping=True, max_length=60, source_language="en",
            target_language=language,
        )  # fmt: skip
        token = m2m100.ids[m2m100.checkpoint.prompt.target_languages[language]]
        said.append(m2m100.assert_same_search(translator, options, forced_bos_token_id=token))
    assert {one[1:] for one in said[0]} != {one[1:] for one in said[1]}


def test_languages_of_a_model(m2m100: Pair, translator: Translator) -> None:
    assert translator.default_options == SearchOptions(
        5, 1.0, "length", early_stopping=True, source_language="en", loop_guard=True
    )
    prompt = m2m100.checkpoint.prompt
    assert len(prompt.source_languages) == len(prompt.target_languages) == 100
    with pytest.raises(OptionError, match="target_language"):
        translator.translate(["the cat"])
    german = SearchOptions(2, source_language="en", target_language="de")
    (found,) = translator.translate(["the cat runs."], german)
    assert found.text
    assert "_" not in found.text
    (tokens,) = (segment.tokens for segment in found.hypotheses[0].segments)
    assert tokens[0] == prompt.target_languages["de"]
    assert found.text == m2m100.tokenizer.decode(tokens)


@pytest.fixture
def copied(m2m100: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(m2m100.directory, tmp_path / "copied"))


def test_a_model_with_default_languages(m2m100: Pair, copied: Path) -> None:
    """The default target language is forced_bos_token_id or tgt_lang."""
    change(copied / "tokenizer_config.json", src_lang="de", tgt_lang="nl")
    languages = {"source_language": "de", "target_language": "nl"}
    assert languages.items() <= import_m2m100(copied).search.items()
    french = m2m100.ids[m2m100.checkpoint.prompt.target_languages["fr"]]
    change(copied / "generation_config.json", forced_bos_token_id=french, min_length=7)
    search = import_m2m100(copied).search
    assert (search["target_language"], search["min_length"]) == ("fr", 7)
    change(copied / "generation_config.json", forced_bos_token_id=END_ID)
    with pytest.raises(InputError, match="forced_bos_token_id is 2"):
        import_m2m100(copied)


# ---- tokenizers ----


@pytest.fixture(scope="module")
def real_pieces() -> bytes:
    """Train on text with fewer characters than the test set, like M2M100's and NLLB's models."""
    return train_pieces(
        multi30k("val"), "bpe", 2000, normalization_rule_name="nmt_nfkc", character_coverage=0.999
    )


def pair_of(directory: Path, names: list[str]) -> Pair:
    theirs = save_random_m2m100(directory, len(names) + 3, d_model=8)
    return Pair(directory, theirs, names, "m2m100-hf")


def test_real_text_has_the_tokens_of_m2m100(real_pieces: bytes, tmp_path: Path) -> None:
    tokenizer = save_m2m100_tokenizer(tmp_path / "model", real_pieces)
    size = len(tokenizer) + len(tokenizer.lang_token_to_id)
    names = [tokenizer.convert_ids_to_tokens(place) for place in range(size)]
    pair = pair_of(tmp_path / "model", names)
    pair.assert_same_tokens(tokenizer, multi30k("test_2016_flickr"))


def test_real_text_has_the_tokens_of_nllb(real_pieces: bytes, tmp_path: Path) -> None:
    """Directories with a SentencePiece model, and as saved by transformers 5."""
    directory, languages = tmp_path / "model", nllb_languages()
    tokenizer = save_fast_tokenizer(directory, real_pieces, "NllbTokenizer", languages)
    names = [tokenizer.convert_ids_to_tokens(place) for place in range(len(tokenizer))]
    assert names == [*SPECIAL, *pieces_of(real_pieces), *languages, "<mask>"]
    pair = pair_of(directory, names)
    # Their tokenizer encodes trailing spaces as a token, unlike SentencePiece.
    lines = [line.strip() for line in multi30k("test_2016_flickr")]
    pair.assert_same_tokens(tokenizer, lines)
    options = SearchOptions(source_language="eng_Latn", target_language="fra_Latn")
    prompt, french = pair.checkpoint.prompt, tokenizer.convert_tokens_to_ids("fra_Latn")
    source = [*prompt.of_source(options), *pair.tokenizer.encode_source("a cat"), END]
    assert [pair.ids[token] for token in source] == tokenizer("a cat").input_ids
    assert pair.ids[prompt.target_languages["fra_Latn"]] == french
    older = import_m2m100(directory)
    model = (directory / MODEL).rename(tmp_path / MODEL)
    (directory / "special_tokens_map.json").unlink()
    tokenizer.save_pretrained(directory)
    with pytest.raises(InputError, match=r"transformers 5.*--spm"):
        import_m2m100(directory)
    newer = import_m2m100(directory, model)
    assert (newer.prompt, newer.tokenizers) == (older.prompt, older.tokenizers)
    assert newer.search == older.search | {"source_language": "eng_Latn"}


# ---- unsupported and damaged models ----


@pytest.mark.parametrize("difference", [0.0, 1e-4, 0.1], ids=["same", "rounded", "others"])
def test_tables_of_positions_in_the_file(difference: float, copied: Path) -> None:
    """Older versions of transformers saved the sinusoids."""
    weights = load_file(copied / "model.safetensors")
    table = torch.cat([torch.zeros(2, 32), sinusoid(2 + torch.arange(40), 32, "tensor2tensor")])
    weights["model.encoder.embed_positions.weights"] = table + difference
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    if difference < 0.01:
        assert import_m2m100(copied).model.config.positions == "sinusoidal"
    else:
        with pytest.raises(InputError, match="M2M100"):
            import_m2m100(copied)


def test_weights_in_several_files(m2m100: Pair, copied: Path) -> None:
    """Sharded weights, as of larger NLLB models."""
    expected = import_m2m100(copied).model.state_dict()
    (copied / "model.safetensors").unlink()
    m2m100.theirs.save_pretrained(copied, max_shard_size="50KB")
    index = copied / "model.safetensors.index.json"
    files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    assert len(files) > 1
    found = import_m2m100(copied).model.state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)
    (copied / files[0]).unlink()
    with pytest.raises(InputError, match=f"lists {files[0]}, which is not in "):
        import_m2m100(copied)
    index.write_text("[]")
    with pytest.raises(InputError, match="weight files"):
        import_m2m100(copied)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("config", {"model_type": "nllb-moe"}, "model_type is"),
        ("config", {"vocab_size": 999}, r"vocabulary.*999 tokens"),
        ("tokenizer_config", {"legacy_behaviour": True}, "language follows"),
        ("tokenizer_config", {"tokenizer_class": "SMALL100Tokenizer"}, "tokenizer_class is"),
        ("tokenizer_config", {"language_codes": "other"}, "language_codes"),
    ],
)
def test_unsupported_settings_are_named(
    file: str, values: dict[str, Any], message: str, copied: Path
) -> None:
    change(copied / f"{file}.json", **values)
    with pytest.raises(InputError, match=message):
        import_m2m100(copied)


def test_broken_vocabularies(copied: Path) -> None:
    (copied / "vocab.json").unlink()
    with pytest.raises(InputError, match="language tokens"):
        import_m2m100(copied)
    (copied / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        import_m2m100(copied)
    (copied / MODEL).write_bytes(b"nothing")
    (copied / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="SentencePiece"):
        import_m2m100(copied)
