from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.small_models import small_model
from torch.nn import functional as F

from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.tokenizer import Tokenizer
from translate_trt.train.data.batches import encode_parallel
from translate_trt.train.evaluation.validation import (
    perplexity,
    translate_reference,
    validation_loss,
)
from translate_trt.train.model import pad, source_padding_bias
from translate_trt.train.search import beam_search


def test_validation_loss_is_cross_entropy() -> None:
    model = small_model()
    source, target = [[5, 6, 7], [8], [9, 10]], [[11], [12, 13, 14, 15], [16, 17]]
    total, count = 0.0, 0
    for one, other in zip(source, target, strict=True):
        ids, lengths = pad([[*one, 3]])
        logits = model.project(
            model(ids, source_padding_bias(ids, lengths), torch.tensor([[2, *other]]))
        )[0]
        total += float(F.cross_entropy(logits, torch.tensor([*other, 3]), reduction="sum").detach())
        count += len(other) + 1
    data = encode_parallel(source, target, None)
    found = validation_loss(model, data)
    assert validation_loss(model, data, batch_tokens=4) == pytest.approx(found, rel=1e-6)
    assert found == pytest.approx(total / count, rel=1e-5)
    assert perplexity(found) == pytest.approx(2.718281828**found, rel=1e-6)
    assert perplexity(1e6) == float("inf")


def test_reference_translations_are_the_best_hypotheses(tokenizer_model: Path) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    model = small_model(vocabulary_size=tokenizer.vocabulary_size)
    text = ["the big cat", "", "a dog sleeps"]
    options = SearchOptions(beam_size=2, num_hypotheses=2, max_length=6)
    texts, found = translate_reference(model, tokenizer, text, options)
    assert found == beam_search(model, [tokenizer.encode_source(line) for line in text], options)
    assert texts == [tokenizer.decode(hypotheses[0].tokens) for hypotheses in found]
    assert texts[1] == ""
    assert texts[0]


def test_a_model_with_learned_positions_cuts_longer_lines(
    tokenizer_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokenizer = Tokenizer(tokenizer_model, tokenizer_model)
    size = tokenizer.vocabulary_size
    model = small_model(vocabulary_size=size, positions="learned", max_positions=60)
    long, short = " ".join(["cat"] * 300), " ".join(["dog"] * 3)
    greedy = SearchOptions(beam_size=1)
    _, found = translate_reference(model, tokenizer, [long, short], greedy)
    assert "1 of 2 lines are cut to 9 tokens" in caplog.text
    expected = beam_search(model, [tokenizer.encode_source(long)[:9]], greedy)
    assert found[0][0].tokens == expected[0][0].tokens
    assert len(found[0][0].tokens) > 0
    caplog.clear()  # 300 tokens more exceed the positions, which limit both sides
    extra = replace(greedy, max_extra_length=300)
    _, found = translate_reference(model, tokenizer, [long, short], extra)
    assert "1 of 2 lines are cut to 59 tokens" in caplog.text
    assert all(len(line[0].tokens) <= 60 for line in found)
