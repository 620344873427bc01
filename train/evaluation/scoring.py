"""Scores of translations and of parse trees, and paired bootstrap.

Translations: sacreBLEU, chrF, TER and the paper's BLEU; trees: labelled bracketing F1.

The module works on text alone, and does not import torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import sacrebleu
from numpy.typing import NDArray

from translate_trt.runtime.text.bracketings import build_tree
from translate_trt.train.evaluation.comet_model import CometModel
from translate_trt.train.evaluation.evalb import (
    COLLINS,
    Status,
    score_lines,
    short,
    summarize,
    with_tags_of,
)
from translate_trt.train.evaluation.sentence_scores import (
    chrf_of_sums,
    chrf_statistics,
    tokenization_of,
)

RESAMPLES = 1_000
CONFIDENCE = 0.95
#: sacrebleu's seed, so both draw the same sentences.
SEED = 12_345
BOOTSTRAP = f"paired bootstrap, {RESAMPLES:,} resamples, seed {SEED}"

#: Target languages whose hyphenated compounds the literature splits before BLEU.
SPLITS_COMPOUNDS = frozenset({"de"})

# Over bytes, like the Perl script. The difference shows with a single letter between two hyphens:
# a match consumes a byte on both sides, so the second hyphen of "a-b-c" is not split, but that of
# "a-ä-c" is, because "ä" has two bytes.
_COMPOUND = re.compile(rb"(\S)-(\S)")


@dataclass(frozen=True)
class Score:
    """Score of a test set, with the signature that reproduces it.

    Attributes:
        score: 0 to 100; TER, an error rate, can be more.
        signature: Signature of sacrebleu.
        label: Name of the score.
        note: Caveat for comparisons.
        details: Further figures of the system, by name.
    """

    score: float
    signature: str
    label: str
    note: str = ""
    details: Mapping[str, float] = field(default_factory=dict)


#: Function from a system's translations, line by line, to their score.
Metric = Callable[[Sequence[str]], Score]

#: Score of statistics that are summed over sentences.
_OfSums = Callable[[NDArray[np.float64]], float]


def tokenize_moses(lines: Sequence[str], language: str) -> list[str]:
    """Tokenize lines like Moses' tokenizer.perl, with XML entities escaped.

    The tokens are those of the script at the time of the paper. Since November 2018 it splits the
    period off a line's last word even if both are one token elsewhere ("am 28.").
    """
    import sacremoses  # compiles regular expressions for half a second; not needed in training

    tokenizer = sacremoses.MosesTokenizer(lang=language)
    return [tokenizer.tokenize(line, return_str=True) for line in lines]


def split_compounds(line: str) -> str:
    """Replace "rich-text" by "rich ##AT##-##AT## text" in a tokenized line.

    tensor2tensor's get_ende_bleu.sh does the same to hypotheses and reference.
    """
    return _COMPOUND.sub(rb"\1 ##AT##-##AT## \2", line.encode()).decode()


def _as_the_paper(language: str) -> Callable[[Sequence[str]], list[str]]:
    def prepare(lines: Sequence[str]) -> list[str]:
        tokenized = tokenize_moses(lines, language)
        if language in SPLITS_COMPOUNDS:
            return [split_compounds(line) for line in tokenized]
        return tokenized

    return prepare


_EVALB = "evalb|rules:COLLINS.prm+quotation-marks"

#: Names of the metrics of `make_metric`.
TEXT_METRICS = ("bleu", "chrf", "chrf++", "ter", "tokenized-bleu")
METRICS = (*TEXT_METRICS, "evalb")


def make_metric(
    name: str,
    reference: Sequence[str],
    language: str = "de",
    tokenize: str | None = None,
    others: Sequence[Sequence[str]] = (),
) -> Metric:
    """Make a metric.

    Args:
        name: One of `METRICS`.
        reference: Reference lines, not tokenized; for evalb gold trees.
        language: Target language, for tokenized BLEU.
        tokenize: sacrebleu's tokenization, for BLEU; None for `tokenization_of` the references.
        others: Further references of the same lines; none for evalb.
    """
    if name == "evalb":
        return _bracketing(reference)
    references = [list(lines) for lines in (reference, *others)]
    if name == "tokenized-bleu":
        return _tokenized_bleu(references, language)
    if name == "bleu":
        tokenize = tokenize or tokenization_of(reference)
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


def comet_metric(
    model: CometModel, source: Sequence[str], references: Sequence[Sequence[str]]
) -> Metric:
    """Make the metric of a COMET model: the mean over lines, and over references.

    Args:
        model: The model; one that needs no references may ignore them.
        source: Source lines.
        references: References of each line: one or several lists of lines.
    """

    def score(texts: Sequence[str]) -> Score:
        samples = [
            {"src": line, "mt": text, "ref": right}
            for lines in references
            for line, text, right in zip(source, texts, lines, strict=True)
        ]
        signature = f"nrefs:{len(references)}|model:{model.name}|version:{model.version}"
        return Score(float(np.mean(model.scores(samples))), signature, "COMET", "times 100")

    return score


def _tokenized_bleu(references: Sequence[Sequence[str]], language: str) -> Metric:
    """Cased BLEU of Moses tokens without smoothing: the formula of multi-bleu.perl."""
    prepare = _as_the_paper(language)
    # force: no warning that the text is tokenized.
    metric = sacrebleu.BLEU(
        tokenize="none", smooth_method="none", force=True, references=[*map(prepare, references)]
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


def _bracketing(gold: Sequence[str]) -> Metric:
    """F1 of labelled brackets, on all sentences."""

    def score(texts: Sequence[str]) -> Score:
        scores = score_lines(texts, gold)
        every, at_most = summarize(scores), summarize(short(scores))
        details = {
            "F1 with gold tags": _f1_with_gold_tags(texts, gold),
            "recall": every.recall, "precision": every.precision, "complete": every.complete,
            "tags": every.tagging, f"F1 up to {COLLINS.cutoff} words": at_most.f1,
            "lines with other words": every.errors, "lines without words": every.skipped,
        }  # fmt: skip
        return Score(every.f1, _EVALB, "F1", details=details)

    return score


def _f1_with_gold_tags(trees: Sequence[str], gold: Sequence[str]) -> float:
    tagged = [with_tags_of(right, tree) for tree, right in zip(trees, gold, strict=True)]
    return summarize(score_lines(tagged, gold)).f1


def bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Cased, detokenized BLEU with sacrebleu's defaults and `tokenization_of` the references."""
    return make_metric("bleu", references)(hypotheses)


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2 with sacrebleu's defaults: character 6-grams, no words."""
    return make_metric("chrf", references)(hypotheses)


def tree_f1(trees: Sequence[str], words: Sequence[str], labels: Sequence[str]) -> Score:
    """F1 of the brackets of trees, with gold tags, so that no sentence is left out.

    Args:
        trees: Trees to score.
        words: Words of each sentence, separated by spaces.
        labels: Labels of the gold trees.
    """
    gold = [
        build_tree(line.split(), sentence.split()).text
        for line, sentence in zip(labels, words, strict=True)
    ]
    return Score(_f1_with_gold_tags(trees, gold), f"{_EVALB}|tags:gold", "F1")


@dataclass(frozen=True)
class Difference:
    """Difference of two systems in BLEU, chrF2 or F1 (Koehn 2004).

    Attributes:
        metric: "BLEU", "chrF2" or "F1".
        value: Score of the second system minus that of the first.
        interval: 95 % interval of the resampled differences.
        p_value: Two-sided p-value: share of resampled differences, centred on zero, of at least
            this size; at least 1 / (RESAMPLES + 1). (sacrebleu prints the one-sided p-value.)
    """

    metric: str
    value: float
    interval: tuple[float, float]
    p_value: float


def paired_bootstrap(
    systems: Sequence[Sequence[str]],
    reference: Sequence[str],
    tokenize: str | None = None,
    others: Sequence[Sequence[str]] = (),
) -> list[Difference]:
    """Compare the BLEU of each further system with that of the first by paired bootstrap.

    `RESAMPLES` test sets of the same size are drawn with replacement, the same sentences for all
    systems.

    Args:
        systems: Translations of each system, line by line.
        reference: Reference lines.
        tokenize: sacrebleu's tokenization; None for `tokenization_of` the references.
        others: Further references of the same lines.
    """
    tables = [bleu_statistics(texts, reference, tokenize, others) for texts in systems]
    return _differences("BLEU", tables, bleu_of_sums)


def paired_bootstrap_of_chrf(
    systems: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> list[Difference]:
    """Compare the chrF of systems, given one or several lists of references.

    See `paired_bootstrap`.
    """
    tables = [
        np.array([
            chrf_statistics(text, right) for text, *right in zip(texts, *references, strict=True)
        ])
        for texts in systems
    ]  # fmt: skip
    return _differences("chrF2", tables, chrf_of_sums)


def paired_bootstrap_of_trees(
    systems: Sequence[Sequence[str]], gold: Sequence[str]
) -> list[Difference]:
    """Compare the F1 of trees; see `paired_bootstrap`."""
    return _differences("F1", [_bracket_counts(trees, gold) for trees in systems], _f1_of)


def _differences(
    metric: str, tables: Sequence[NDArray[np.float64]], score: _OfSums
) -> list[Difference]:
    """Compare each further table [sentences, statistics] with the first."""
    scores = [score(table.sum(axis=0)) for table in tables]
    resampled = resampled_scores(tables, score)
    return [
        _difference(metric, one - scores[0], column - resampled[:, 0])
        for one, column in zip(scores[1:], resampled.T[1:], strict=True)
    ]


def _bracket_counts(trees: Sequence[str], gold: Sequence[str]) -> NDArray[np.float64]:
    """Return [sentences, 3] counts of brackets: of both sides, and of each."""
    rows = [
        [one.matched, one.gold, one.test] if one.status is Status.SCORED else [0, 0, 0]
        for one in score_lines(trees, gold)
    ]
    return np.array(rows, dtype=np.float64)


def _f1_of(counts: NDArray[np.float64]) -> float:
    """Compute F1 from summed counts [3]."""
    matched, gold, test = counts
    return float(200 * matched / (gold + test)) if gold + test else 0.0


def bleu_statistics(
    texts: Sequence[str],
    reference: Sequence[str],
    tokenize: str | None = None,
    others: Sequence[Sequence[str]] = (),
) -> NDArray[np.float64]:
    """Return [sentences, 10] sufficient statistics of BLEU: lengths, n-gram matches and totals.

    Args:
        texts: Translations, line by line.
        reference: Reference lines.
        tokenize: sacrebleu's tokenization; None for `tokenization_of` the references.
        others: Further references of the same lines.
    """
    metric = sacrebleu.BLEU(tokenize=tokenize or tokenization_of(reference))
    rows = []
    for text, *right in zip(texts, reference, *others, strict=True):
        score = metric.corpus_score([text], [[line] for line in right])
        rows.append([score.sys_len, score.ref_len, *score.counts, *score.totals])
    return np.array(rows, dtype=np.float64)


def resampled_scores(tables: Sequence[NDArray[np.float64]], score: _OfSums) -> NDArray[np.float64]:
    """Return [RESAMPLES, systems] scores of resampled test sets.

    Args:
        tables: [sentences, statistics] of each system.
        score: Score of summed statistics.
    """
    random = np.random.default_rng(SEED)
    size = len(tables[0])
    found = []
    for _ in range(RESAMPLES):
        rows = random.integers(size, size=size)
        found.append([score(table[rows].sum(axis=0)) for table in tables])
    return np.array(found)


def _difference(metric: str, observed: float, resampled: NDArray[np.float64]) -> Difference:
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    by_chance = np.abs(resampled - resampled.mean()) >= abs(observed)
    p_value = (int(by_chance.sum()) + 1) / (len(resampled) + 1)
    return Difference(metric, observed, (float(low), float(high)), p_value)


def bleu_of_sums(statistics: NDArray[np.float64]) -> float:
    """Compute corpus BLEU from summed statistics [10]."""
    values = [int(value) for value in statistics]
    score = sacrebleu.BLEU.compute_bleu(
        correct=values[2:6],
        total=values[6:10],
        sys_len=values[0],
        ref_len=values[1],
        smooth_method="exp",
    )
    return float(score.score)
