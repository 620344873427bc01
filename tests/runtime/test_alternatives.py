"""Alternatives after a prefix (rule 12), compared with PyTorch and with forced searches."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from support.models import log_probs
from support.prompts import TARGET, with_prompt
from support.translations import assert_same, random_sources

from translate_trt.runtime import SearchOptions, Translator
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.train.checkpoint import Checkpoint
from translate_trt.train.config import END

OPTIONS = SearchOptions(beam_size=3, length_penalty=1.0, alternatives=5)


@pytest.mark.parametrize("beams", [1, 3])
def test_each_likely_token_is_completed(
    beams: int, translator: Translator, checkpoint: Checkpoint
) -> None:
    sources = random_sources(12, seed=1)
    prefixes = [*random_sources(11, seed=2, longest=7), []]
    options = dataclasses.replace(OPTIONS, beam_size=beams)
    found = translator.translate_ids(sources, options, prefixes)
    alone = dataclasses.replace(options, alternatives=0, num_hypotheses=beams)
    for source, prefix, alternatives in zip(sources, prefixes, found, strict=True):
        next_token = log_probs(checkpoint, source, prefix)[-1]
        order = next_token.argsort(descending=True, stable=True).tolist()
        order.remove(END)
        place = len(prefix)
        assert [one.tokens[place] for one in alternatives] == order[:5]
        longer = [[*prefix, token] for token in order[:5]]
        completions = translator.translate_ids([source] * 5, alone, longer)
        for one, pool in zip(alternatives, completions, strict=True):
            own = float(next_token[one.tokens[place]])
            # Forced tokens count neither in the log-probability nor in the length.
            scores = {
                other.tokens: sum(other.token_log_probs)
                / options.penalty(len(other.token_log_probs) - place - 1)
                for other in pool
                if other.truncated == pool[0].truncated
            }
            assert scores[one.tokens] == pytest.approx(max(scores.values()), abs=1e-4)
            assert one.token_log_probs[:place] == (0.0,) * place
            assert one.token_log_probs[place] == pytest.approx(own, abs=1e-4)
            assert one.score == pytest.approx(scores[one.tokens] + own, abs=1e-4)


def test_unlikely_tokens_are_left_out(translator: Translator) -> None:
    sources = random_sources(10, seed=3)
    everything = translator.translate_ids(sources, OPTIONS)
    probs = sorted(math.exp(one.token_log_probs[0]) for best in everything for one in best)
    least = (probs[20] + probs[21]) / 2
    some = dataclasses.replace(OPTIONS, min_alternative_prob=least)
    found = translator.translate_ids(sources, some)
    for best, every in zip(found, everything, strict=True):
        likely = [one for one in every if math.exp(one.token_log_probs[0]) >= least]
        assert_same([best], [likely or every[:1]])
    assert len({len(best) for best in found}) > 1
    certain = dataclasses.replace(OPTIONS, min_alternative_prob=1.0)
    assert_same(translator.translate_ids(sources, certain), [every[:1] for every in everything])


def test_a_completion_that_loops_is_no_more_likely_than_its_token(
    looping_bundle: Path, looping_model: Checkpoint
) -> None:
    options = SearchOptions(beam_size=1, alternatives=3, loop_guard=True)
    sources = random_sources(6, seed=6, longest=30)
    found = Translator(looping_bundle, threads=1).translate_ids(sources, options)
    assert any(one.looped and len(one.tokens) == 1 for line in found for one in line)
    for source, line in zip(sources, found, strict=True):
        next_token = log_probs(looping_model, source, [])[-1]
        for one in line:
            assert one.score <= float(next_token[one.tokens[0]]) + 1e-4
            assert one.token_log_probs[0] == pytest.approx(
                float(next_token[one.tokens[0]]), abs=1e-4
            )


def test_all_other_options_apply(translator: Translator) -> None:
    options = dataclasses.replace(OPTIONS, return_attention=True, max_length=6, min_length=5)
    (best,) = translator.translate_ids([[7, 8, 9]], options, [[5, 6]])
    assert len(best) == 5
    for one in best:
        count = len(one.token_log_probs)
        assert 5 <= count <= 6
        own, free = one.token_log_probs[2], sum(one.token_log_probs[3:])
        assert one.score == pytest.approx(own + free / options.penalty(count - 3), abs=1e-4)
        assert one.attention is not None
        assert one.attention.shape == (count, 4)


def test_text_and_other_lines(translator: Translator) -> None:
    lines = ["the cat runs.", "", "Haus Hund läuft."]
    prefixes = ["Hund the", "", ""]
    found = translator.translate(lines, OPTIONS, prefixes)
    assert [len(one.hypotheses) for one in found] == [5, 1, 5]
    assert found[1].text == ""
    assert all(one.text.startswith("Hund the") for one in found[0].hypotheses)
    assert len({one.segments[0].tokens for one in found[0].hypotheses}) == 5
    one = translator.translate(lines[0], OPTIONS, prefixes[0])
    assert [h.text for h in one.hypotheses] == [h.text for h in found[0].hypotheses]


def test_only_the_first_segment_of_a_long_line(translator: Translator) -> None:
    line = " ".join(["the dog runs over the big river."] * 40)
    short = dataclasses.replace(OPTIONS, max_length=8)
    found = translator.translate(line, short).hypotheses
    assert len(found) == 5
    assert len(found[0].segments) > 1
    assert len({one.segments[0].tokens for one in found}) == 5
    assert len({tuple(part.tokens for part in one.segments[1:]) for one in found}) == 1


def test_a_prompt_precedes_the_prefix(compiled_bundle: Path, tmp_path: Path) -> None:
    path = with_prompt(compiled_bundle, TARGET, tmp_path / "bundle")
    options = dataclasses.replace(OPTIONS, source_language="en", target_language="de")
    (best,) = Translator(path, "onnx-fp32", threads=1).translate_ids([[7, 8]], options, [[9]])
    assert {one.tokens[:3] for one in best} == {(6, 31, 9)}
    assert len({one.tokens[3] for one in best}) == 5


def test_what_is_refused(translator: Translator) -> None:
    with pytest.raises(OptionError, match="alternatives is 9999"):
        translator.translate("the cat", SearchOptions(alternatives=9999))
    with pytest.raises(OptionError, match=r"prefix.*source 0"):
        translator.translate_ids([[7]], dataclasses.replace(OPTIONS, max_length=3), [[5, 6]])
    with pytest.raises(OptionError, match="alternatives"):
        translator.translate("the cat", OPTIONS, split_sentences="en")
    with pytest.raises(InputError, match="outside the vocabulary"):
        translator.translate_ids([[7]], OPTIONS, [[99999]])
