"""Selection of training pairs from a teacher's hypotheses.

With references, the hypothesis nearest to the reference is taken: sequence-level interpolation (Kim
and Rush 2016, section 3.3). Without, the best one (their sequence-level distillation, section 3.2).
"""

from __future__ import annotations

import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sacrebleu
from numpy.typing import NDArray

from translate_trt.export.distillation.distillation_options import SelectionOptions
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.atomic_files import new_directory
from translate_trt.runtime.io.outputs import Kind
from translate_trt.runtime.text.sentences import is_unspaced
from translate_trt.train.evaluation.sentence_scores import tokenization_of
from translate_trt.train.worker_processes import WorkerPool

#: Files of a directory of selected pairs.
SOURCE, TARGET, COUNTS = "source.txt", "target.txt", "selection.json"
#: Reasons to drop a line, in the order in which they are checked.
REASONS = ("not_translated", "cut_off", "repetitive", "improbable")

_CHUNK_LINES = 2_000  # lines per task of a worker: seconds of scoring
# A phrase of up to 4 words that occurs 4 times in a row is a loop of the search, unless the source
# has one.
_PHRASE_WORDS, _REPETITIONS = range(1, 5), 4
# Scripts without spaces have some 1.5 to 4 characters per word, and laughter that repeats one.
_PHRASE_CHARACTERS = range(2, 17)

SELECTED = Kind("selection", "translate-trt distill", lambda _: {SOURCE, TARGET, COUNTS})


class Candidate(NamedTuple):
    """Hypothesis of the teacher.

    Attributes:
        text: Translation.
        log_prob: Mean log-probability of its tokens.
        truncated: Whether the search ended at the maximum length.
    """

    text: str
    log_prob: float
    truncated: bool


#: A source line and its hypotheses, best first; none if it could not be translated.
Translated = tuple[str, list[Candidate]]


def select(
    translated: Iterable[Translated],
    references: Iterable[str] | None,
    options: SelectionOptions,
    out: Path,
    pool: WorkerPool,
) -> dict[str, int]:
    """Select a hypothesis for each line and write the pairs to a directory.

    Args:
        translated: Source lines and hypotheses.
        references: Reference of each line; None to take the best hypothesis.
        options: Options of the selection.
        out: Directory of SOURCE, TARGET and COUNTS, replaced if it exists.
        pool: Worker processes that compute sentence scores.

    Returns:
        Numbers of lines: "read", "kept", and the dropped ones by reason.

    Raises:
        InputError: There are not as many references as lines, or no pair is left.
        OutputError: The directory cannot be written.
    """
    dropped: Counter[str] = Counter()
    scores: list[float] = []
    read = 0
    with new_directory(out, force=True, kind=SELECTED) as directory:
        with _writing(directory) as write:
            choose = functools.partial(_choose_all, metric=options.metric)
            for pairs in pool.map(choose, _tasks(translated, references)):
                for pair in pairs:
                    read += 1
                    if isinstance(pair, str):
                        dropped[pair] += 1
                    else:
                        write(pair.source, pair.target)
                        scores.append(pair.log_prob)
        if options.keep < 1.0 and scores:
            kept = _most_probable(np.array(scores), options.keep)
            dropped["improbable"] = len(scores) - int(kept.sum())
            _filter(directory, kept.tolist())
        counts = {"read": read, "kept": len(scores) - dropped["improbable"]}
        counts |= {reason: dropped[reason] for reason in REASONS}
        if not counts["kept"]:
            raise InputError(
                f"no line of the teacher's {read:,} translations is fit to train on: "
                + ", ".join(f"{count:,} {reason}" for reason, count in dropped.items())
            )
        text = json.dumps(counts, indent=2)
        (directory / COUNTS).write_text(text + "\n", encoding="utf-8")
    return counts


class _Pair(NamedTuple):
    source: str
    target: str
    log_prob: float


_Task = list[tuple[str, list[Candidate], str | None]]


def _tasks(translated: Iterable[Translated], references: Iterable[str] | None) -> Iterator[_Task]:
    lines: Iterator[tuple[str, list[Candidate], str | None]]
    if references is None:
        lines = ((source, found, None) for source, found in translated)
    else:
        lines = _beside(translated, references)
    while task := list(itertools.islice(lines, _CHUNK_LINES)):
        yield task


def _beside(
    translated: Iterable[Translated], references: Iterable[str]
) -> Iterator[tuple[str, list[Candidate], str | None]]:
    number = 0
    for number, (one, reference) in enumerate(
        itertools.zip_longest(translated, references), start=1
    ):
        if one is None or reference is None:
            fewer = "references" if reference is None else "lines"
            raise InputError(
                f"the source and its references differ in length: there are only {number - 1:,} "
                f"{fewer}; they must be translations of each other, line by line."
            )
        yield (*one, reference)


def _choose_all(task: _Task, metric: str) -> list[_Pair | str]:
    """Choose for each line; a reason of REASONS stands for a line without a fit hypothesis."""
    score = _sentence_metric(metric)
    return [_choose(*line, score) for line in task]


_Metric = Callable[[str, str], float]


def _choose(
    source: str, candidates: list[Candidate], reference: str | None, score: _Metric
) -> _Pair | str:
    found = [one for one in candidates if one.text.strip()]
    if not found or not source.strip():
        return "not_translated"
    found = [one for one in found if not one.truncated]
    if not found:
        return "cut_off"
    if not is_repetitive(source):
        found = [one for one in found if not is_repetitive(one.text)]
    if not found:
        return "repetitive"
    best = found[0]
    if reference is not None and reference.strip() and len(found) > 1:
        # max takes the first of equals, which the teacher prefers.
        best = max(found, key=lambda one: score(one.text, reference))
    return _Pair(_one_line(source), _one_line(best.text), best.log_prob)


def _one_line(text: str) -> str:
    return text.replace("\n", " ").strip()


def _sentence_metric(name: str) -> _Metric:
    if name == "chrf":
        chrf = sacrebleu.CHRF()
        return lambda text, reference: float(chrf.sentence_score(text, [reference]).score)

    @functools.cache
    def bleu(tokenize: str) -> sacrebleu.BLEU:
        return sacrebleu.BLEU(effective_order=True, tokenize=tokenize)

    def score(text: str, reference: str) -> float:
        metric = bleu(tokenization_of([reference]))
        return float(metric.sentence_score(text, [reference]).score)

    return score


def is_repetitive(text: str) -> bool:
    """Whether a phrase of one to four words occurs at least four times in a row.

    In text with characters of scripts without spaces, each of which counts as a word, a phrase has
    2 to 16.
    """
    words: list[str] = []
    for unspaced, group in itertools.groupby(text, is_unspaced):
        run = "".join(group)
        words += run if unspaced else run.split()
    for size in _PHRASE_CHARACTERS if any(map(is_unspaced, words)) else _PHRASE_WORDS:
        equal = 0  # words in a row that equal the word `size` before them
        for before, word in zip(words, words[size:], strict=False):
            equal = equal + 1 if word == before else 0
            if equal == size * (_REPETITIONS - 1):
                return True
    return False


def _most_probable(log_probs: NDArray[np.float64], share: float) -> NDArray[np.bool_]:
    """Mark the share of highest values; of equal ones, the first."""
    count = max(1, math.ceil(share * len(log_probs)))
    kept = np.zeros(len(log_probs), np.bool_)
    kept[np.argsort(-log_probs, kind="stable")[:count]] = True
    return kept


@contextmanager
def _writing(directory: Path) -> Iterator[Callable[[str, str], None]]:
    """Open SOURCE and TARGET and yield a function that writes a pair."""
    with (
        (directory / SOURCE).open("w", encoding="utf-8", newline="\n") as sources,
        (directory / TARGET).open("w", encoding="utf-8", newline="\n") as targets,
    ):

        def write(source: str, target: str) -> None:
            sources.write(source + "\n")
            targets.write(target + "\n")

        yield write


def _filter(directory: Path, kept: list[bool]) -> None:
    """Keep the marked lines of SOURCE and TARGET."""
    for name in (SOURCE, TARGET):
        path, fewer = directory / name, directory / f"{name}.kept"
        with path.open("rb") as lines, fewer.open("wb") as file:
            file.writelines(itertools.compress(lines, kept))
        fewer.replace(path)
