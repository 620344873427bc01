"""Scores of translations: sacreBLEU, chrF, TER, the paper's BLEU, and differences of systems.

Only text comes in here; nothing needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import sacrebleu
from numpy.typing import NDArray

RESAMPLES = 1_000
CONFIDENCE = 0.95
#: sacrebleu's own, so that both draw the same sentences.
SEED = 12_345
BOOTSTRAP = f"paired bootstrap, {RESAMPLES:,} resamples, seed {SEED}"

#: Target languages whose hyphenated compounds the literature splits before BLEU.
SPLITS_COMPOUNDS = frozenset({"de"})

# Over bytes, as perl does it without being told of UTF-8. That matters where a single letter
# stands between two hyphens: a match takes the letters on both of its sides, so that in "a-b-c" the
# second hyphen finds no letter left and stays, while the two bytes of an "ä" serve both hyphens.
_COMPOUND = re.compile(rb"(\S)-(\S)")


@dataclass(frozen=True)
class Score:
    """A score of a whole test set and what it was computed with.

    Attributes:
        score: 0 to 100; TER, an error rate, can be more.
        signature: sacrebleu's, so that others can compute the same.
        label: what to call it.
        note: what to know before comparing it.
    """

    score: float
    signature: str
    label: str
    note: str = ""


#: Gives a system's translations, line by line, their score.
Metric = Callable[[Sequence[str]], Score]


def tokenize_moses(lines: Sequence[str], language: str) -> list[str]:
    """Each line as Moses' tokenizer.perl writes it: tokens between spaces, XML entities escaped.

    As it did when the paper was written: since November 2018 it parts a line's last word from its
    period even if the two are one token elsewhere ("am 28."), which sacremoses does not.
    """
    import sacremoses  # which compiles expressions for half a second; training has no use for it

    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def split_compounds(line: str) -> str:
    """A tokenized line with "rich-text" as "rich ##AT##-##AT## text".

    What tensor2tensor's get_ende_bleu.sh does to hypotheses and reference, match for match.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def _as_the_paper(language: str) -> Callable[[Sequence[str]], list[str]]:
    def prepare(lines: Sequence[str]) -> list[str]:
        tokenized = tokenize_moses(lines, language)
        if language in SPLITS_COMPOUNDS:
            return [split_compounds(line) for line in tokenized]
        return tokenized

    return prepare


#: The names that `make_metric` knows.
METRICS = ("bleu", "chrf", "chrf++", "ter", "tokenized-bleu")


def make_metric(
    name: str, reference: Sequence[str], language: str = "de", tokenize: str = "13a"
) -> Metric:
    """One of `METRICS`.

    Args:
        name: of the metric.
        reference: lines as people wrote them, not tokenized.
        language: of the target, for tokenized BLEU.
        tokenize: sacrebleu's tokenization, for BLEU.
    """
    if name == "tokenized-bleu":
        return _tokenized_bleu(reference, language)
    references = [list(reference)]
    if name == "bleu":
        return _sacrebleu("BLEU", sacrebleu.BLEU(tokenize=tokenize, references=references))
    if name == "ter":
        return _sacrebleu(
            "TER", sacrebleu.TER(references=references), "an error rate: lower is better"
        )
    order = {"chrf": 0, "chrf++": 2}[name]
    metric = sacrebleu.CHRF(word_order=order, references=references)
    return _sacrebleu("chrF2++" if order else "chrF2", metric)


def _sacrebleu(label: str, metric: Any, note: str = "") -> Metric:
    def score(texts: Sequence[str]) -> Score:
        found = metric.corpus_score(list(texts), None)
        return Score(found.score, str(metric.get_signature()), label, note)

    return score


def _tokenized_bleu(reference: Sequence[str], language: str) -> Metric:
    """BLEU of Moses tokens without smoothing: the formula of multi-bleu.perl, cased."""
    prepare = _as_the_paper(language)
    # force: the text is meant to be tokenized, so no warning that it is.
    metric = sacrebleu.BLEU(
        tokenize="none", smooth_method="none", force=True, references=[prepare(reference)]
    )
    split = language in SPLITS_COMPOUNDS
    tokens = f"tok:moses-{language}{'+compounds-split' if split else ''}"
    way = "compounds split, the paper's way" if split else "the paper's way, no compounds split"

    def score(texts: Sequence[str]) -> Score:
        found = metric.corpus_score(prepare(texts), None)
        signature = str(metric.get_signature()).replace("tok:none", tokens)
        signature += f"|sacremoses:{version('sacremoses')}"
        return Score(found.score, signature, "tokenized BLEU", f"{way}; not comparable with BLEU")

    return score


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Cased, detokenized BLEU with sacrebleu's defaults (13a tokenization)."""
    return make_metric("bleu", references)(hypotheses)


@dataclass(frozen=True)
class Difference:
    """How much better the second of two systems is, in BLEU (Koehn 2004).

    Attributes:
        bleu: BLEU(second) - BLEU(first).
        interval: 95 % of the resampled differences lie in it.
        p_value: two-sided: how often resampling alone, centred on zero, gives a difference of at
            least this size; never below 1 / (RESAMPLES + 1). (sacrebleu prints the one-sided one.)
    """

    bleu: float
    interval: tuple[float, float]
    p_value: float


def paired_bootstrap(
    systems: Sequence[Sequence[str]], reference: Sequence[str], tokenize: str = "13a"
) -> list[Difference]:
    """Each but the first system beside the first, on test sets drawn from this one.

    A test set has as many sentences as this one, drawn with replacement, the same for all systems;
    `RESAMPLES` of them are drawn.

    Args:
        systems: translations of each, line by line.
        reference: lines.
        tokenize: sacrebleu's tokenization.
    """
    statistics = [bleu_statistics(texts, reference, tokenize) for texts in systems]
    scores = [_bleu_of(table.sum(axis=0)) for table in statistics]
    resampled = resampled_bleu(statistics)
    return [
        _difference(score - scores[0], column - resampled[:, 0])
        for score, column in zip(scores[1:], resampled.T[1:], strict=True)
    ]


def bleu_statistics(
    texts: Sequence[str], reference: Sequence[str], tokenize: str = "13a"
) -> NDArray[np.float64]:
    """[sentences, 10] what BLEU sums over a corpus: lengths, n-gram matches, n-gram totals."""
    metric = sacrebleu.BLEU(tokenize=tokenize)
    rows = []
    for text, right in zip(texts, reference, strict=True):
        score = metric.corpus_score([text], [[right]])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.float64)


def resampled_bleu(statistics: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """[RESAMPLES, systems] BLEU of the drawn test sets."""
    random = np.random.default_rng(SEED)
    size = len(statistics[0])
    found = []
    for _ in range(RESAMPLES):
        rows = random.integers(size, size=size)
        found.append([_bleu_of(table[rows].sum(axis=0)) for table in statistics])
    return np.array(found)


def _difference(observed: float, resampled: NDArray[np.float64]) -> Difference:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    by_chance = np.abs(resampled - resampled.mean()) >= abs(observed)
    p_value = (int(by_chance.sum()) + 1) / (len(resampled) + 1)
    return Difference(observed, (float(low), float(high)), p_value)


def _bleu_of(statistics: NDArray[np.float64]) -> float:
    """Corpus BLEU of summed statistics [10]."""
    values = [int(value) for value in statistics]
    score = sacrebleu.BLEU.compute_bleu(
        correct=values[2:6],
        total=values[6:10],
        sys_len=values[0],
        ref_len=values[1],
        smooth_method="exp",
    )
    return float(score.score)
