"""Sampling (rule 14): the noise, and the distribution of the drawn tokens."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from support.compiled import compile_once
from support.models import save_model
from support.shared import SharedFiles
from support.translations import Translate, assert_same, random_sources

from translate_trt.export.build_options import BuildOptions
from translate_trt.export.search_step import BeamSearchStep, Changes, Request, State
from translate_trt.runtime import OptionError, SearchOptions, TranslationService, Translator
from translate_trt.runtime.bundle.contract import FREE
from translate_trt.runtime.interface.search_options import MAX_TOP_K
from translate_trt.runtime.sampling import Noise, mix, noise_of
from translate_trt.train.checkpoint import Checkpoint, open_checkpoint
from translate_trt.train.config import END, ModelConfig
from translate_trt.train.data.vocabulary import train_tokenizer
from translate_trt.train.model import Transformer
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

SEARCH = SearchOptions(beam_size=1, max_length=20, sampling_top_k=8)
WHOLE = SearchOptions(beam_size=1, max_length=20, sampling_top_k=0)


def test_the_generator_is_splitmix64() -> None:
    # The first numbers of the generator with seed 0, whose state grows by a constant.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


def test_noise_depends_on_seed_source_position_and_rank_alone() -> None:
    def by_rank(source: list[int], position: int, **changes: object) -> list[float]:
        options = dataclasses.replace(SEARCH, **changes)  # type: ignore[arg-type]
        return list(noise_of(options, source, position, 5000).by_rank)

    noise = by_rank([5, 6], 3)
    assert len(noise) == len(set(noise)) == 8
    assert noise == by_rank([5, 6], 3, sampling_top_k=20)[:8]
    assert noise == by_rank([5, 6], 3, sampling_top_k=0)[:8]
    assert by_rank([5, 6], 3, sampling_temperature=2) == [2 * one for one in noise]
    others = [by_rank([5, 6], 3, seed=1), by_rank([6, 5], 3), by_rank([5, 6], 4)]
    assert len({*noise, *(one for other in others for one in other)}) == 4 * 8


def test_noise_is_gumbel() -> None:
    options = SearchOptions(beam_size=1, sampling_top_k=MAX_TOP_K)
    noise = np.array([noise_of(options, [7], place, 0).by_rank for place in range(20)]).ravel()
    assert abs(noise.mean() - 0.57722) < 0.02  # Euler's constant
    assert abs(noise.var() - math.pi**2 / 6) < 0.05


def test_the_tail_has_the_greatest_noise_of_the_vocabulary() -> None:
    """As many maxima as draws: of all tokens, those in place 1, 10 and the last one, and which."""
    size, count = 2000, 400
    drawn = [noise_of(WHOLE, [7], position, size) for position in range(count)]
    assert {len(one.tail) for one in drawn} == {63}
    assert all(len(set(one.tail_tokens)) == 63 for one in drawn)
    assert {token for one in drawn for token in one.tail_tokens} == set(range(size))
    assert all(list(one.tail) == sorted(one.tail, reverse=True) for one in drawn)
    generator = np.random.default_rng(1)
    expected = -np.sort(-generator.gumbel(size=(count, size)), axis=1)
    for place in (0, 9, 62):
        own = np.array([one.tail[place] for one in drawn])
        error = 5 * expected[:, place].std() / math.sqrt(count)
        assert abs(own.mean() - expected[:, place].mean()) < error
        assert 0.8 < own.std() / expected[:, place].std() < 1.25


def test_a_small_vocabulary_has_ranks_alone() -> None:
    noise = noise_of(WHOLE, [7], 0, MAX_TOP_K)
    assert len(noise.by_rank) == MAX_TOP_K
    assert not noise.tail
    assert not noise.tail_tokens


@pytest.mark.parametrize("temperature", [3.0, pytest.param(1.0, marks=pytest.mark.nightly)])
def test_tokens_are_drawn_from_the_whole_vocabulary(temperature: float) -> None:
    """Shares of groups of tokens in 4,000 draws; half of the probability is the tail's."""
    count, vocabulary = 4000, 3000
    search = dataclasses.replace(WHOLE, sampling_temperature=temperature)
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(3))
    noise = [
        noise_of(dataclasses.replace(search, seed=seed), [9], 0, vocabulary)
        for seed in range(count)
    ]
    drawn = torch.cat([_draw(logits, search, noise[i : i + 500]) for i in range(0, count, 500)])
    shares = (logits / temperature).softmax(-1)[0]
    order = shares.argsort(descending=True)
    assert 0.2 < shares[order[MAX_TOP_K:]].sum() < 0.7
    for group in (*order[:4].split(1), *order[4:].split(428)):
        share = shares[group].sum()
        found = torch.isin(drawn, group).sum() / count
        assert abs(found - share) <= 4 * (share * (1 - share) / count).sqrt()


def _draw(logits: torch.Tensor, search: SearchOptions, noise: list[Noise]) -> torch.Tensor:
    """Tokens that a step draws from one distribution, each with its noise."""
    count = len(noise)
    request, state = _inputs(count)
    by_rank, tail, tail_tokens = (
        np.array([getattr(one, name) for one in noise])
        for name in ("by_rank", "tail", "tail_tokens")
    )
    changes = Changes(
        torch.zeros(count, 1, 0, dtype=torch.int64), torch.zeros(count, 1, 0),
        torch.from_numpy(by_rank).float(),
        torch.full((count,), search.sampling_temperature),
        torch.full((count,), search.sampling_top_p), torch.from_numpy(tail_tokens).long(),
        torch.from_numpy(tail).float(), torch.zeros(count, 0, dtype=torch.int64),
        torch.zeros(count, 1, 0, dtype=torch.int64), torch.zeros(count, 1, dtype=torch.int64),
    )  # fmt: skip
    step = BeamSearchStep(end_token=logits.shape[1])  # no token ends a translation
    _, tokens, log_probs, *_ = step(logits.expand(count, 1, -1), *request, *state, *changes)
    own = logits.log_softmax(-1)[0]
    assert torch.allclose(log_probs[:, 0], own[tokens[:, 0]])
    return tokens[:, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"sampling_top_k": 4},
        {"sampling_top_k": 12, "sampling_temperature": 0.5},
        {"sampling_top_k": 12, "sampling_temperature": 2.0, "sampling_top_p": 0.7},
        {"sampling_top_k": 6, "sampling_top_p": 0.9},
        {"sampling_top_k": 5, "sampling_top_p": 0.01},
    ],
)
def test_tokens_are_drawn_as_transformers_defines_it(options: dict[str, float]) -> None:
    """Shares of 4,000 draws, whose noise is that of as many seeds."""
    transformers = pytest.importorskip("transformers")
    count, vocabulary = 4000, 12
    search = SearchOptions(beam_size=1, **options)  # type: ignore[arg-type]
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(3)) * 2
    noise = [noise_of(dataclasses.replace(search, seed=seed), [9], 0, 0) for seed in range(count)]
    drawn = _draw(logits, search, noise).bincount(minlength=vocabulary) / count
    expected = logits
    for warper in (
        transformers.TemperatureLogitsWarper(search.sampling_temperature),
        transformers.TopKLogitsWarper(search.sampling_top_k),
        transformers.TopPLogitsWarper(search.sampling_top_p),
    ):
        expected = warper(None, expected)
    shares = expected.softmax(-1)[0]
    assert (drawn[shares == 0] == 0).all()
    assert ((drawn - shares).abs() <= 3.5 * (shares * (1 - shares) / count).sqrt()).all()


def _inputs(count: int) -> tuple[Request, State]:
    """A first step of greedy search for so many sentences."""
    whole = torch.full((count,), 50)
    nothing = torch.zeros(count, 1, dtype=torch.int64)
    request = Request(
        torch.full((count,), FREE), torch.zeros_like(whole), whole, torch.zeros(count),
        torch.zeros(count), torch.ones_like(whole), torch.zeros(count, dtype=torch.bool),
    )  # fmt: skip
    state = State(
        nothing, torch.zeros(count, 1), torch.zeros_like(whole),
        torch.zeros(count, dtype=torch.bool), torch.full((count, 1), -math.inf), nothing, nothing,
        nothing > 0,
    )  # fmt: skip
    return request, state


CASES = {
    "few": {"sampling_top_k": 3},
    "all": {"sampling_top_k": MAX_TOP_K},
    "cold": {"sampling_top_k": 20, "sampling_temperature": 0.3, "seed": 7},
    "hot": {"sampling_top_k": 20, "sampling_temperature": 3.0},
    "nucleus": {"sampling_top_k": 50, "sampling_top_p": 0.6, "sampling_temperature": 1.5},
    "marked": {
        "sampling_top_k": 10, "no_repeat_ngram_size": 1, "disable_unk": True, "min_length": 12,
        "length_penalty": 1.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_same_as_the_reference(as_pytorch: Translate, case: str) -> None:
    sources = random_sources(8, seed=4, longest=12)
    found = as_pytorch(sources, dataclasses.replace(SEARCH, **CASES[case]))  # type: ignore[arg-type]
    best = as_pytorch(sources, SearchOptions(beam_size=1, max_length=20))
    assert [line[0].tokens for line in found] != [line[0].tokens for line in best]


@pytest.fixture(scope="session")
def wide_model(shared: SharedFiles) -> Checkpoint:
    """Random model of a vocabulary with a tail."""

    def make(path: Path) -> None:
        path.mkdir()
        tokenizer = path / "shared.spm"
        symbols = [f"<{number}>" for number in range(1500)]
        lines = ["the cat runs", "a dog sleeps"] * 50
        size = train_tokenizer(lines, 1900, tokenizer, symbols=symbols)
        assert size > MAX_TOP_K
        torch.manual_seed(7)
        model = Transformer(
            ModelConfig(
                vocabulary_size=size, encoder_layers=1, decoder_layers=1, d_model=32, d_ff=32,
                heads=2, dropout=0.0,
            )
        ).eval()  # fmt: skip
        save_model(model, path / "checkpoint", tokenizer)

    return open_checkpoint(shared.once("wide", make) / "checkpoint")


@pytest.fixture(scope="session")
def wide_bundle(shared: SharedFiles, wide_model: Checkpoint) -> Path:
    options = BuildOptions(targets=("onnx-fp32",))
    return compile_once(shared, wide_model, options)


@pytest.mark.parametrize(
    "changes",
    [
        {}, {"sampling_temperature": 0.3, "seed": 9},
        {"no_repeat_ngram_size": 1, "repetition_penalty": 3.0, "min_length": 12},
    ],
    ids=["plain", "cold", "marked"],
)  # fmt: skip
def test_the_same_from_the_whole_vocabulary_as_the_reference(
    wide_bundle: Path, wide_model: Checkpoint, changes: dict[str, float]
) -> None:
    options = dataclasses.replace(WHOLE, **changes)  # type: ignore[arg-type]
    sources = random_sources(6, seed=4, longest=12)
    expected = beam_search(wide_model.load_model(), sources, options)
    translator = Translator(wide_bundle, threads=1)
    assert_same(translator.translate_ids(sources, options), expected)
    if not changes:  # two of five tokens are in the tail
        ranked = dataclasses.replace(options, sampling_top_k=MAX_TOP_K)
        found = translator.translate_ids(sources, ranked)
        pairs = zip(found, expected, strict=True)
        assert all(one[0].tokens != other[0].tokens for one, other in pairs)
    # Neighbours that draw from few tokens or none do not matter.
    mixed = [options, dataclasses.replace(SEARCH, max_length=20), WHOLE] * 2
    with TranslationService(translator) as service:
        futures = [service.submit(*pair) for pair in zip(sources, mixed, strict=True)]
        lines = [future.result().hypotheses[0].segments for future in futures]
    assert_same([list(line) for line in lines[::3]], expected[::3])


def test_a_shortlist_has_no_whole_vocabulary(shortlist_bundle: Path) -> None:
    with pytest.raises(OptionError, match="sampling_top_k is 0"):
        Translator(shortlist_bundle).translate("the cat runs", WHOLE)


def test_a_forced_prefix_is_not_drawn(as_pytorch: Translate) -> None:
    found = as_pytorch(random_sources(3, seed=3, longest=8), SEARCH, [[5, 6, 5]] * 3)
    assert all(line[0].tokens[:3] == (5, 6, 5) and END not in line[0].tokens for line in found)
