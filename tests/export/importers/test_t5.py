"""T5, T5 1.1, mT5 and MADLAD-400 against Hugging Face's transformers: weights, search, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from conftest import WORDS
from support.hugging_face_models import Pair, change, make_lively, train_pieces
from support.shared import SharedFiles

from translate_trt.export.importers.hugging_face.t5 import import_t5
from translate_trt.export.importers.recognition import recognize_directory
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.model import Transformer

pytestmark = pytest.mark.slow

transformers = pytest.importorskip(
    "transformers", reason="transformers, which makes the models, is not installed"
)

#: Heads are narrower than d_model, and sentences longer than the largest distance.
SIZES = {
    "d_model": 32, "d_kv": 6, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 5,
    "dropout_rate": 0.0, "relative_attention_num_buckets": 8, "relative_attention_max_distance": 9,
    "decoder_start_token_id": 0, "initializer_factor": 0.5,
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "v1.0": {},
    "v1.1": {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    "mt5": {"feed_forward_proj": "gated-gelu"},
}
LANGUAGES = ["<2de>", "<2zh_Latn>"]


def pieces() -> bytes:
    """Train a unigram model like T5's, with the languages of MADLAD-400."""
    return train_pieces(
        WORDS.split("\n"), "unigram", 60, pad_id=0, eos_id=1, unk_id=2, bos_id=-1,
        user_defined_symbols=LANGUAGES,
    )  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Save a model with two sentinels and, of mT5, an id without a token.

    Ours bans that id, which changes all probabilities.
    """
    directory = tmp_path_factory.mktemp("t5") / "model"
    directory.mkdir()
    (directory / "spiece.model").write_bytes(pieces())
    (directory / "tokenizer_config.json").write_text('{"extra_ids": 2, "eos_token": "</s>"}')
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces())
    names = [processor.id_to_piece(index) for index in range(processor.get_piece_size())]
    names += ["<extra_id_1>", "<extra_id_0>"]
    size = len(names) + (request.param == "mt5")
    torch.manual_seed(0)
    kind = "MT5" if request.param == "mt5" else "T5"
    config = getattr(transformers, f"{kind}Config")
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(
        config(**(SIZES | KINDS[request.param] | {"vocab_size": size}))
    )
    if request.param != "v1.0":
        model.lm_head.weight = torch.nn.Parameter(torch.randn(size, 32) * 0.3)
    if request.param != "mt5":
        make_lively(model, range(5, 41), [([], [])])
    return Pair(directory, model, names, "t5-hf", known=range(5, 41))


def test_logits(pair: Pair) -> None:
    pair.assert_same_logits()


@pytest.mark.parametrize("pair", ["v1.0", "v1.1"], indirect=True)
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (4, 0.6)])
def test_search(beams: int, penalty: float, pair: Pair, shared: SharedFiles) -> None:
    options = SearchOptions(beams, penalty, "length", early_stopping=True, max_length=60)
    # Without absolute positions, so small a model does not learn to reverse.
    pair.assert_same_search(pair.compiled(shared), options, most_truncated=200)


def test_tokens(pair: Pair) -> None:
    model = pair.checkpoint.load_model()
    assert model.banned_tokens is not None
    banned = {pair.ids[token] for token in model.banned_tokens.tolist()}
    assert banned == (
        {0, pair.theirs.config.vocab_size - 1} if pair.theirs.config.model_type == "mt5" else {0}
    )
    prompt, tokenizer = pair.checkpoint.prompt, pair.tokenizer
    assert set(prompt.target_languages) == {"de", "zh_Latn"}
    german = SearchOptions(target_language="de")
    assert [*prompt.of_source(german), *tokenizer.encode_source("the cat")] == (
        tokenizer.encode_source("<2de> the cat")
    )


def test_decoding_token_by_token_is_decoding_at_once(pair: Pair) -> None:
    model: Transformer = pair.checkpoint.load_model()
    source, target = torch.tensor([[7, 8, 9, 3]]), torch.tensor([[2, *range(5, 25)]])
    cache = model.start_cache(source, torch.tensor([4]))
    with torch.inference_mode():
        wanted = model.project(model(source, None, target))[0]
        for token, logits in zip(target[0], wanted, strict=True):
            torch.testing.assert_close(model.decode_next(token[None], cache)[0], logits)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"feed_forward_proj": "gated-silu"}, "feed_forward_proj"),
        ({"relative_attention_max_distance": 2}, "largest distance of relative positions is 2"),
        ({"vocab_size": 40}, "belongs to another model"),
        ({"model_type": "umt5"}, "model_type is"),
    ],
)
def test_unsupported_settings_are_named(
    values: dict[str, Any], message: str, pair: Pair, tmp_path: Path
) -> None:
    assert recognize_directory(pair.directory).name == "t5-hf"
    for path in pair.directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    change(tmp_path / "config.json", **values)
    with pytest.raises(InputError, match=message):
        import_t5(tmp_path)
    (tmp_path / "spiece.model").unlink()
    change(tmp_path / "config.json", model_type="t5")
    with pytest.raises(InputError, match="--spm"):
        import_t5(tmp_path)
