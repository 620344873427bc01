from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.tokenizer import Tokenizer
from translate_trt.train.config import ModelConfig
from translate_trt.train.data import encode_parallel
from translate_trt.train.evaluate import bleu, perplexity, translate_reference, validation_loss
from translate_trt.train.model import Transformer, pad
from translate_trt.train.search import beam_search

HERE = Path(__file__).resolve().parent.parent.parent
DATA = Path(os.environ.get("TRANSLATE_TRT_DATA", HERE.parent / "shared" / "data"))
SYSTEMS = DATA / "wmt17-en-de-systems"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.mark.skipif(not SYSTEMS.is_dir(), reason="no wmt17-en-de-systems in TRANSLATE_TRT_DATA")
def test_bleu_of_wmt17_systems() -> None:
    with (SYSTEMS / "scores.tsv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    reference = lines(SYSTEMS / "reference.de")
    for row in rows[:2]:
        found = bleu(lines(SYSTEMS / f"{row['system']}.de"), reference)
        # The organizers' own score (mteval, two decimals) is an independent witness.
        assert found.score == pytest.approx(float(row["bleu13a_computed_here"]), abs=0.01)
        assert found.score == pytest.approx(float(row["test.sh:MTEVAL"]), abs=0.01)
        assert "tok:13a" in found.signature


def test_bleu_is_cased_and_between_0_and_100() -> None:
    text = ["Zwei Männer arbeiten im Garten heute ."] * 2
    assert bleu(text, text).score == pytest.approx(100)
    assert bleu([line.lower() for line in text], text).score < 60


def test_validation_loss_is_cross_entropy() -> None:
    torch.manual_seed(0)
    config = ModelConfig(
        vocabulary_size=40, encoder_layers=1, decoder_layers=1, d_model=16, d_ff=16, heads=2
    )
    model = Transformer(config).eval()
    source, target = [[5, 6, 7], [8], [9, 10]], [[11], [12, 13, 14, 15], [16, 17]]
    total, count = 0.0, 0
    for one, other in zip(source, target, strict=True):
        ids, lengths = pad([[*one, 3]])
        logits = model.project(model(ids, lengths, torch.tensor([[2, *other]])))[0]
        total += float(F.cross_entropy(logits, torch.tensor([*other, 3]), reduction="sum").detach())
        count += len(other) + 1
    data = encode_parallel(source, target, None)
    found = validation_loss(model, data)
    assert validation_loss(model, data, batch_tokens=4) == pytest.approx(found, rel=1e-6)
    assert found == pytest.approx(total / count, rel=1e-5)
    assert perplexity(found) == pytest.approx(2.718281828**found, rel=1e-6)
    assert perplexity(1e6) == float("inf")


def test_reference_translations_are_the_best_hypotheses(tokenizer_model: Path) -> None:
    torch.manual_seed(0)
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    config = ModelConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        encoder_layers=1,
        decoder_layers=1,
        d_model=16,
        d_ff=16,
        heads=2,
    )
    model = Transformer(config).eval()
    text = ["the big cat", "", "a dog sleeps"]
    options = SearchOptions(beam_size=2, num_hypotheses=2, max_length=6)
    texts, found = translate_reference(model, tokenizer, text, options)
    assert found == beam_search(model, [tokenizer.encode_source(line) for line in text], options)
    assert texts == [tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
    assert texts[1] == ""
    assert texts[0]
