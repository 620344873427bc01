"""Models trained by Marian: scores and greedy translations compared with Marian's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.importing import tokenizer_of
from support.marian_peer import FACTOR, TARGET, Found, MarianModel, lines_of, needs_marian

from translate_trt.export.importers.imported import Imported
from translate_trt.export.importers.marian.binary import read_binary
from translate_trt.export.importers.marian.files import SETTINGS, read_vocabulary
from translate_trt.export.importers.marian.model import import_marian_model
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.options import SearchOptions
from translate_trt.train.config import END, START
from translate_trt.train.search import beam_search

pytestmark = pytest.mark.slow

_CONTROL = re.compile("<0x[01][0-9A-F]>")
# Sums of up to 21 float32 log-probabilities, in another order of summation.
TOLERANCE = 2e-3
# Number of lines to translate with the search of docs/beam-search.md as well.
GREEDY = 50
_SSRU = ["--transformer-decoder-autoreg", "rnn", "--dec-cell", "ssru"]


@dataclass(frozen=True)
class Case:
    """Options and vocabularies of a Marian model, and the expected import.

    Attributes:
        options: of `marian train`.
        vocabularies: names of source and target.
        fields: of `ModelConfig`.
        end: added to the end symbol's logit, for translations of several lengths.
    """

    options: list[str]
    vocabularies: tuple[str, str]
    fields: dict[str, Any]
    end: float


def depth(encoder: int, decoder: int) -> list[str]:
    return ["--enc-depth", str(encoder), "--dec-depth", str(decoder)]


def sizes(size: int) -> list[str]:
    return ["--dim-vocabs", str(size), str(size)]


CASES = {
    "untied, pre-norm, 6+1, swish, two yml": Case(
        ["--task", "transformer-base-prenorm", "--tied-embeddings-all=false",
         "--transformer-ffn-activation", "swish", *depth(6, 1), *sizes(0)],
        ("source.yml", "target.yml"),
        {"norm": "pre", "activation": "swish", "tied": "none", "encoder_layers": 6,
         "decoder_layers": 1}, end=1.5,
    ),
    "SSRU, untied, pre-norm, 6+2, swish, two yml": Case(
        ["--task", "transformer-base-prenorm", "--tied-embeddings-all=false",
         "--transformer-ffn-activation", "swish", *depth(6, 2), *sizes(0), *_SSRU],
        ("source.yml", "target.yml"),
        {"norm": "pre", "activation": "swish", "tied": "none", "decoder_mixer": "ssru",
         "decoder_layers": 2}, end=1.5,
    ),
}  # fmt: skip


class Pair:
    """Marian model, and its imported checkpoint."""

    def __init__(self, case: Case, directory: Path) -> None:
        self.case = case
        self.theirs = MarianModel(directory, case.options, case.vocabularies)
        tokens = read_vocabulary(self.theirs.vocabularies[1])
        control = [place for place, token in enumerate(tokens) if _CONTROL.fullmatch(token)]
        self.theirs.make_lively(case.end, [1, *control])
        self.imported: Imported = import_marian_model(self.theirs.path, *self.theirs.vocabularies)
        tokenizer = tokenizer_of(self.imported.tokenizers)
        self.sources = [tokenizer.encode_source(line) for line in self.theirs.lines]
        names = tokenizer.target_pieces(range(tokenizer.vocabulary_size))
        words = case.vocabularies[1].endswith(".yml")
        self.names = [name.removeprefix("\u2581") if words else name for name in names]

    def named(self, tokens: list[int]) -> tuple[str, ...]:
        return tuple(self.names[token] for token in tokens if token != END)


@torch.inference_mode()
def score(pair: Pair, targets: list[str]) -> list[float]:
    """Return the sum of log-probabilities of each target, including the end token."""
    model, tokenizer = pair.imported.model, tokenizer_of(pair.imported.tokenizers)
    found = []
    for source, target in zip(pair.sources, targets, strict=True):
        tokens = tokenizer.encode_target(target)
        ids = torch.tensor([[*source, END]]), None, torch.tensor([[START, *tokens]])
        scores = model.project(model(*ids)).log_softmax(-1)[0]
        found.append(float(scores[range(len(tokens) + 1), [*tokens, END]].sum()))
    return found


def check_greedy_search(pair: Pair, theirs: list[list[Found]]) -> None:
    """Compare greedy translations, for which both searches are equal."""
    sources = pair.sources[:GREEDY]
    limits = [FACTOR * (len(source) + 1) for source in sources]
    options = SearchOptions(1, 0.0, "length", max_length=max(limits))
    found = beam_search(pair.imported.model, sources, options)
    for [hypothesis], [expected], limit in zip(found, theirs[:GREEDY], limits, strict=True):
        tokens = pair.named(hypothesis.tokens)
        assert tokens[:limit] == expected.tokens
        if len(tokens) < limit:  # which Marian does not cut off
            assert hypothesis.score == pytest.approx(expected.score, abs=TOLERANCE)


@pytest.mark.parametrize("name", CASES)
def test_scores_and_greedy_translations(name: str, tmp_path: Path) -> None:
    """Compare scores of marian-scorer and, where the decoder computes the same, translations.

    Of pre-norm models with self-attention, marian-decoder leaves out a LayerNorm.
    """
    needs_marian()
    pair = Pair(CASES[name], tmp_path)
    config = pair.imported.model.config
    assert {field: getattr(config, field) for field in pair.case.fields} == pair.case.fields
    # From model.npz.decoder.yml, which training writes with the defaults of --task.
    assert SearchOptions(**pair.imported.search) == SearchOptions(8, 1.0, "length")
    if config.norm == "post" or config.is_recurrent:
        theirs = pair.theirs.translate(1)
        assert len({hypotheses[-1].tokens for hypotheses in theirs}) > 15
        check_greedy_search(pair, theirs)
    targets = lines_of(TARGET, 4)
    expected = pair.theirs.score(pair.theirs.lines, targets)
    assert score(pair, targets) == pytest.approx(expected, abs=TOLERANCE)


SMALL = [
    "--task", "transformer-base", "--tied-embeddings-all=false", "--transformer-ffn-activation",
    "relu", *depth(1, 1), *sizes(0), *_SSRU,
]  # fmt: skip
# Half a step of the integers: of 8 bits relative to the largest weight, of 16 bits absolutely.
STEPS = {"intgemm8": 0.5 / 127, "intgemm8ssse3": 0.5 / 127, "intgemm16": 0.5 / 1024}


@pytest.mark.nightly
def test_binaries_of_marian_conv(tmp_path: Path) -> None:
    """Weights of every layout are close to those of the model, and float32 translates equally."""
    needs_marian()
    theirs = MarianModel(tmp_path, SMALL, ("source.yml", "target.yml"))
    theirs.make_lively(1.0, [1])
    arrays = theirs.arrays()
    for kind, step in {"float32": 0.0, **STEPS}.items():
        found = read_binary(theirs.convert(kind))
        assert set(found) == set(arrays)
        for name in set(arrays) - {SETTINGS}:
            largest = 1.0 if kind == "intgemm16" else np.abs(arrays[name]).max()
            np.testing.assert_allclose(found[name], arrays[name], atol=step * largest * 1.001)
    for kind in ("packed16", "packed8avx2", "packed8avx512"):
        with pytest.raises(InputError, match=f"is stored as {kind}, FBGEMM's layout"):
            read_binary(theirs.convert(kind))
    imported = import_marian_model(tmp_path / "model.float32.bin", *theirs.vocabularies)
    tokenizer = tokenizer_of(imported.tokenizers)
    names = tokenizer.target_pieces(range(tokenizer.vocabulary_size))
    sources = [tokenizer.encode_source(line) for line in theirs.lines]
    limits = [FACTOR * (len(source) + 1) for source in sources]
    ours = beam_search(
        imported.model, sources, SearchOptions(1, 0.0, "length", max_length=max(limits))
    )
    expected = theirs.translate(1, tmp_path / "model.float32.bin")
    for [hypothesis], [their], limit in zip(ours, expected, limits, strict=True):
        tokens = [names[t].removeprefix("\u2581") for t in hypothesis.tokens if t != END]
        assert tuple(tokens[:limit]) == their.tokens
