"""Marian models against Hugging Face's transformers: weights, search and tokenizers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.data import folder_of, multi30k
from support.hugging_face_models import Pair, change, make_lively
from support.importing import tokenizer_of
from support.marian_models import marian_tokenizer, save_random_marian
from support.shared import SharedFiles

from translate_trt.export.importers.hugging_face.directory import read_weights
from translate_trt.export.importers.hugging_face.marian import import_marian
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.runtime.translator import Translator
from translate_trt.train.config import BANNED_BIAS, END, PAD, START
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

transformers = pytest.importorskip(
    "transformers", reason="transformers, which makes the models, is not installed"
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory, tokenizer_model: Path) -> Pair:
    directory = tmp_path_factory.mktemp("marian") / "model"
    theirs = save_random_marian(directory, tokenizer_model, tokenizer_model)
    known = range(2, 80)
    make_lively(theirs, known, [([], [])])
    names = [f"▁{name}" if ">>" in name else name for name in vocabulary_of(directory)]
    return Pair(directory, theirs, names, "marian-hf", known)


def vocabulary_of(directory: Path) -> list[str]:
    return list(json.loads((directory / "vocab.json").read_text()))


@pytest.fixture(scope="module")
def translator(both: Pair, shared: SharedFiles) -> Translator:
    return both.compiled(shared)


def test_logits(both: Pair) -> None:
    both.assert_same_logits()
    # Padding, which bad_words_ids bans, and our second token for it.
    bias = both.checkpoint.load_model().output_bias
    assert bias is not None
    assert bias[[PAD, START]].tolist() == [BANNED_BIAS, BANNED_BIAS]


@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (5, 0.6)])
def test_search(beams: int, penalty: float, both: Pair, translator: Translator) -> None:
    options = SearchOptions(beams, penalty, "length", early_stopping=True, max_length=60)
    both.assert_same_search(translator, options, renormalize_logits=True)


def test_generation_settings_become_defaults(both: Pair, translator: Translator) -> None:
    assert translator.default_options == SearchOptions(3, 1.0, "length", loop_guard=True)
    path = both.directory.parent / "older"
    shutil.copytree(both.directory, path)
    generation = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").unlink()
    given = {"num_beams": 5, "length_penalty": 0.0, "early_stopping": True}
    change(path / "config.json", **generation | given)
    older = import_marian(path)
    assert SearchOptions(**older.search) == SearchOptions(5, 0.0, "length", early_stopping=True)
    assert older.model.output_bias is not None
    assert older.model.output_bias[PAD].item() == BANNED_BIAS


def generated(both: Pair, directory: Path, **generate: Any) -> tuple[list[Any], list[Any]]:
    """Translate 20 sentences with both, by the directory's settings, and return the tokens."""
    theirs = transformers.MarianMTModel.from_pretrained(directory).eval()
    imported = import_marian(directory)
    vocabulary = {name: index for index, name in enumerate(vocabulary_of(directory))}
    tokenizer = tokenizer_of(imported.tokenizers)
    pieces = tokenizer.target_pieces(range(tokenizer.vocabulary_size))
    ids = [vocabulary.get(name.removeprefix("▁") if ">>" in name else name, both.padding)
           for name in pieces]  # fmt: skip
    sources = [[both.ids[token] for token in one] for one in both.random_sentences(20, 5)]
    found = beam_search(
        imported.model, [[ids.index(token) for token in one] for one in sources],
        SearchOptions(**imported.search, max_length=30),
        [imported.prompt.of_target(SearchOptions())] * len(sources),
    )  # fmt: skip
    ours = [[ids[token] for token in hypotheses[0].tokens] for hypotheses in found]
    rows = both.inputs([[both.ids.index(token) for token in one] for one in sources])
    with torch.inference_mode():
        return ours, both.texts_of(theirs.generate(**rows, max_new_tokens=30, **generate))


@pytest.mark.parametrize(
    "settings",
    [
        {}, {"decoder_start_token_id": 7}, {"forced_bos_token_id": 9}, {"eos_token_id": [0]},
        {"min_new_tokens": 6}, {"min_length": 6}, {"min_length": 9, "min_new_tokens": 3},
        {"suppress_tokens": [5, 6, 8]}, {"bad_words_ids": [[0], [9], [12]]},
        {"forced_bos_token_id": 9, "num_beams": 3, "early_stopping": True},
        {"decoder_start_token_id": 7, "num_beams": 3, "early_stopping": True},
        {"early_stopping": "never", "temperature": 0.5, "top_k": 3, "output_scores": True},
    ],
    ids=["as-made", "start", "forced", "list-of-ends", "min-new", "min-length", "both", "suppress",
         "bad-words", "forced-beams", "start-beams", "harmless"],
)  # fmt: skip
def test_settings_of_generation(settings: dict[str, Any], both: Pair, copied: Path) -> None:
    """Imported settings translate like `generate`."""
    given = {"num_beams": 1} | settings
    change(copied / "generation_config.json", **given)
    more = {"renormalize_logits": True} if given["num_beams"] > 1 else {}
    ours, theirs = generated(both, copied, **more)
    assert ours == theirs
    if given.get("forced_bos_token_id"):
        assert {row[0] for row in ours} == {9}


@pytest.mark.parametrize(
    "settings",
    [
        {"eos_token_id": [0, 5]}, {"eos_token_id": []}, {"eos_token_id": 5},
        {"eos_token_id": 999}, {"decoder_start_token_id": [4]}, {"forced_bos_token_id": "x"},
        {"suppress_tokens": [0]}, {"suppress_tokens": 5}, {"bad_words_ids": [[999]]},
        {"bad_words_ids": [[4, 5]]}, {"early_stopping": 3}, {"mirostat": 2},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_generation_that_are_refused(settings: dict[str, Any], copied: Path) -> None:
    change(copied / "generation_config.json", **settings)
    with pytest.raises(InputError, match=rf"json: {next(iter(settings))} is "):
        import_marian(copied)


def test_unsupported_generation_settings_log_a_warning(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Settings that change translations log a warning, and those that are off do not."""
    path = copied / "generation_config.json"
    values = {
        "diversity_penalty": 0.5, "max_new_tokens": 40, "penalty_alpha": 0.6, "do_sample": True,
        "stop_strings": ["x"], "repetition_penalty": 1.2, "num_beam_groups": 2,
    }  # fmt: skip
    for given, warned in ((values, set(values)), (dict.fromkeys(values), set())):
        caplog.clear()
        change(path, **given)
        import_marian(copied)
        assert {name for name in values if f"{name} is " in caplog.text} == warned


@pytest.mark.parametrize("tables", ["both", "encoder", "sinusoids"])
def test_tables_of_positions(tables: str, both: Pair, copied: Path) -> None:
    """transformers uses the tables of the file; sinusoidal tables do not limit the length."""
    weights = load_file(copied / "model.safetensors")
    computed = both.theirs.model.encoder.embed_positions.weight.detach()
    for number, stack in enumerate(["encoder"] if tables == "encoder" else ["encoder", "decoder"]):
        torch.manual_seed(number)
        noise = 0 if tables == "sinusoids" else torch.randn_like(computed) * 0.3
        weights[f"model.{stack}.embed_positions.weight"] = computed + noise
    save_file(weights, copied / "model.safetensors", {"format": "pt"})
    ours = import_marian(copied).model
    expected = ("sinusoidal", False) if tables == "sinusoids" else ("learned", True)
    assert (ours.config.positions, ours.config.own_target_positions) == expected
    theirs = transformers.MarianMTModel.from_pretrained(copied).eval()
    both.assert_same_logits(ours, theirs)


def test_languages_before_the_source(both: Pair, translator: Translator) -> None:
    """Language tokens work as a prompt and as words of the text."""
    prompt = both.checkpoint.prompt
    pieces = [f"▁>>{code}<<" for code in ("deu", "fra")]
    assert Tokenizer(*both.checkpoint.tokenizers).source_pieces(
        [*prompt.target_languages.values()]
    ) == pieces  # fmt: skip
    assert (prompt.target_side, prompt.source_languages) == ("source", {})
    tokens = Tokenizer(*both.checkpoint.tokenizers).encode_source(">>deu<< the cat")
    german = SearchOptions(2, target_language="deu")
    assert tokens[: len(prompt.of_source(german))] == prompt.of_source(german)
    (by_option,) = translator.translate(["the cat"], german)
    (by_line,) = translator.translate([">>deu<< the cat"], SearchOptions(2))
    (whole,) = translator.translate_ids([tokens], SearchOptions(2))
    assert by_option.text == by_line.text
    assert by_option.hypotheses[0].segments[0].tokens == whole[0].tokens


# ---- tokenizers ----


@pytest.mark.parametrize("lacking", [0, 60])
@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("bergamot-vocab.deen.spm", "SiMT_NLP-bpe.model"),
        ("otajor-en.model", "bergamot-vocab.deen.spm"),
    ],
)
def test_real_text_has_the_same_tokens(
    source: str, target: str, lacking: int, tmp_path: Path
) -> None:
    models = folder_of("sentencepiece-models")
    directory = tmp_path / "marian"
    save_random_marian(directory, models / source, models / target, lacking=lacking, width=8,
                       encoder_ffn_dim=8, decoder_ffn_dim=8, encoder_attention_heads=2,
                       decoder_attention_heads=2)  # fmt: skip
    theirs = marian_tokenizer(directory)
    imported = import_marian(directory)
    ours = tokenizer_of(imported.tokenizers)
    rows = imported.model.embedding.weight.detach()
    their_rows = load_file(directory / "model.safetensors")["model.shared.weight"]
    lines = [*multi30k("test_2016_flickr"), ">>deu<< A dog.", "\u4f60\u597d  x"]
    lines += [" two  spaces ", "\u00bd \ufb01 \u2026"]
    # Ids differ; equal rows of the matrices mean equal tokens.
    for line, found in zip(lines, ours.encode_source_batch(lines), strict=True):
        expected = theirs(line).input_ids[:-1]
        assert len(found) == len(expected), line
        assert torch.equal(rows[found], their_rows[expected]), line
    expected = [theirs(text_target=line).input_ids[:-1] for line in lines[:3000]]
    for line, found, right in zip(lines, ours.encode_target_batch(lines), expected, strict=False):
        assert torch.equal(rows[found], their_rows[right]), line
        known = [token for token in found if torch.equal(rows[token], their_rows[1]) is False]
        if known == found:
            assert ours.decode(found) == theirs.decode(right, use_source_tokenizer=False)


# ---- unsupported and damaged models ----


@pytest.fixture
def copied(both: Pair, tmp_path: Path) -> Path:
    return Path(shutil.copytree(both.directory, tmp_path / "copied"))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model_type": "bart"}, "model_type is"),
        ({"activation_function": "tanh"}, "activation_function is"),
        ({"a\x1bb": 1}, r"a\\u001bb is"),
        ({"tie_encoder_decoder": 1}, "tie_encoder_decoder is"),
        ({"num_hidden_layers": 7}, "num_hidden_layers is"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is"),
        ({"vocab_size": 10**10}, "vocab_size is"),
        ({"vocab_size": 200}, "vocab_size, 200"),
        ({"encoder_layers": 10**10}, "lack model.encoder.layers.2"),
        ({"encoder_layers": 1}, "is part of the model"),
        ({"encoder_ffn_dim": 10**10, "decoder_ffn_dim": 10**10}, "model's other"),
        ({"pad_token_id": -1}, "pad_token_id is"),
        ({"decoder_ffn_dim": 64}, "decoder_ffn_dim is"),
        ({"d_model": 64}, "d_model is"),
        ({"share_encoder_decoder_embeddings": False}, "target_vocab"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_unsupported_settings_are_named(values: dict[str, Any], message: str, copied: Path) -> None:
    change(copied / "config.json", **values)
    with pytest.raises(InputError, match=message):
        import_marian(copied)


def test_pickled_weights(both: Pair, copied: Path) -> None:
    """Harmful and damaged files are those of test_harmful_files.py."""
    weights = load_file(copied / "model.safetensors")
    (copied / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors.*pytorch_model\.bin"):
        import_marian(copied)
    pickled = copied / "pytorch_model.bin"
    torch.save(weights, pickled)
    found = import_marian(copied).model.state_dict()
    for name, tensor in both.checkpoint.load_model().state_dict().items():
        torch.testing.assert_close(found[name], tensor, atol=0, rtol=0)
    for value, message in ((3, "contains objects"), (torch.zeros(2, dtype=torch.int8), "int8")):
        torch.save({**weights, "x": value}, pickled)
        with pytest.raises(InputError, match=message):
            import_marian(copied)
    pickled.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"weights.*7 bytes"):
        import_marian(copied)


def test_two_vocabularies(both: Pair, copied: Path) -> None:
    """Separate vocabularies of source and target, as in newer OPUS-MT models."""
    vocabulary = vocabulary_of(copied)
    own = ["<unk>", *(token for token in vocabulary if token[0] not in "<>"), "</s>", "<pad>"]
    bytes_last = [token for token in vocabulary if token.startswith("<0x")]
    own[-2:-2] = bytes_last
    (copied / "target_vocab.json").write_text(json.dumps(dict(zip(own, range(999), strict=False))))
    torch.manual_seed(1)
    config = transformers.MarianConfig.from_pretrained(both.directory)
    config.share_encoder_decoder_embeddings = config.tie_word_embeddings = False
    config.decoder_vocab_size, config.eos_token_id = len(own), own.index("</s>")
    config.pad_token_id = config.decoder_start_token_id = own.index("<pad>")
    theirs = transformers.MarianMTModel(config).eval()
    theirs.save_pretrained(copied)
    ours = import_marian(copied).model
    assert ours.config.tied == "none"
    assert (ours.config.input_vocabulary_size, ours.config.vocabulary_size) == (len(vocabulary) + 1,
                                                                        len(own) + 1)  # fmt: skip
    source, target = [5, 9, 7], [3, 8, 4, 4]
    with torch.inference_mode():
        expected = theirs(
            input_ids=torch.tensor([[*source, 0]]),
            decoder_input_ids=torch.tensor([[own.index("<pad>"), *target]]),
        ).logits[0]
        rows = [
            ours.source_table.weight.tolist().index(row)
            for row in theirs.model.encoder.embed_tokens.weight[[*source, 0]].tolist()
        ]
        columns = [ours.embedding.weight.tolist().index(row)
                   for row in theirs.model.decoder.embed_tokens.weight.tolist()[:-1]]  # fmt: skip
        previous = torch.tensor([[START, *(columns[token] for token in target)]])
        hidden = ours(torch.tensor([rows]), None, previous)
        found = ours.project(hidden)[0]
    assert rows[-1] == END == columns[own.index("</s>")]
    torch.testing.assert_close(found[:, columns], expected[:, :-1], atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8, b"\x00" * 7 + b"\x7f",
        {"dtype": "F32", "shape": [1 << 40, 1 << 20], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 60]},
        {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]},
    ],
    ids=["length", "length-of-2-to-the-62", "shape", "offsets", "type"],
)  # fmt: skip
def test_headers_of_safetensors(header: bytes | dict[str, Any], tmp_path: Path) -> None:
    """Declared sizes are checked before memory is allocated."""
    if isinstance(header, dict):
        text = json.dumps({"x": header}).encode()
        header = len(text).to_bytes(8, "little") + text
    (tmp_path / "model.safetensors").write_bytes(header + bytes(4))
    with pytest.raises(InputError):
        read_weights(tmp_path)


def test_broken_directories(both: Pair, copied: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        import_marian(tmp_path / "nothing")
    for name in ("vocab.json", "config.json", "generation_config.json"):
        for content in ("{", "[]"):
            (copied / name).write_text(content)
            with pytest.raises(InputError, match=name):
                import_marian(copied)
        shutil.copyfile(both.directory / name, copied / name)
    for name in ("source.spm", "vocab.json", "config.json"):
        (copied / name).unlink()
        with pytest.raises(InputError, match=rf"cannot read .*{name}"):
            import_marian(copied)
