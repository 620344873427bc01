"""Table of quality and speed of a teacher and its students, and their Pareto front."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.benchmark import BenchOptions, BenchResult, bench
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.io.report import columns
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.glossary import Glossary, Recall
from translate_trt.runtime.translator import Translator
from translate_trt.train.evaluation.scoring import bleu, chrf

_TURNS = 3


@dataclass(frozen=True)
class System:
    """System of the table.

    Attributes:
        name: Name of the teacher or student.
        bundle: Its bundle.
        target: Target of the bundle.
        search: Search options.
    """

    name: str
    bundle: Path
    target: str
    search: SearchOptions


@dataclass(frozen=True)
class Row:
    """Row of the table.

    Attributes:
        system: Name of the teacher or student.
        target: Target of its bundle.
        beam_size: Beam size.
        bleu: BLEU of the test set.
        chrf: chrF of the test set.
        words_per_second: Source words per second, one single-threaded worker per core.
        milliseconds: Median latency of a single line, on all cores; of several turns, their median.
        megabytes: Size of the target's files in 10^6 bytes.
        terms: Number of terms of a glossary in the test set; None without a glossary.
        terms_found: Number of those that the translations have.
        on_front: Whether no other row has at least its BLEU and at least its speed, one of them
            higher.
    """

    system: str
    target: str
    beam_size: int
    bleu: float
    chrf: float
    words_per_second: float
    milliseconds: float
    megabytes: float
    terms: int | None = None
    terms_found: int | None = None
    on_front: bool = False


def measure(
    systems: Sequence[System],
    source: Sequence[str],
    reference: Sequence[str],
    options: BenchOptions,
    glossary: Glossary | None = None,
) -> list[Row]:
    """Measure systems on a test set.

    The rounds of each system are spread over up to three turns: a slow minute of the machine then
    affects one turn of several systems, and not all rounds of one.

    Args:
        systems: Systems to measure.
        source: Lines to translate.
        reference: Reference of each line.
        options: Rounds, cores and lines for latency.
        glossary: Glossary whose terms are counted in the translations; None counts none. Students
            that read annotations get it for this, and no other system does.

    Raises:
        InputError: No line has text.
    """
    text = [line for line in source if line.strip()]
    if not text:
        raise InputError("the test set has no line with text; give another one.")
    words = sum(len(line.split()) for line in text)
    turns: list[list[BenchResult]] = [[] for _ in systems]
    count = min(_TURNS, options.rounds)
    for number in range(count):
        rounds = options.rounds // count + (number < options.rounds % count)
        for one, results in zip(systems, turns, strict=True):
            turn = dataclasses.replace(options, rounds=rounds)
            results += bench(one.bundle, text, [one.target], one.search, turn)
    rows = []
    for one, results in zip(systems, turns, strict=True):
        texts, recall = _translate(one, source, options, glossary)
        rates = [rate for result in results for rate in result.lines_per_second]
        files = read_manifest(one.bundle).target(one.target).files.values()
        rows.append(
            Row(
                one.name, one.target, one.search.beam_size,
                bleu(texts, reference).score, chrf(texts, reference).score,
                words * statistics.median(rates) / len(text),
                statistics.median(result.latency_ms[50] for result in results),
                sum(file.bytes for file in files) / 1e6,
                None if recall is None else recall.terms,
                None if recall is None else recall.found,
            )
        )  # fmt: skip
    return mark_front(rows)


def _translate(
    system: System, source: Sequence[str], options: BenchOptions, glossary: Glossary | None
) -> tuple[list[str], Recall | None]:
    """Return the translations of the test set, and the recall of the terms in them."""
    translator = Translator(system.bundle, system.target, threads=options.cores)
    texts = [one.text for one in translator.translate(source, system.search)]
    if glossary is None:
        return texts, None
    of_terms = texts
    if translator.manifest.term_annotation is not None:
        found = translator.translate(source, system.search, terminology=glossary)
        of_terms = [one.text for one in found]
    recall = Recall()
    for line, text in zip(source, of_terms, strict=True):
        _, of_line = translator.manifest.prompt.split_language(line)
        recall.add(glossary.terms(of_line, text))
    return texts, recall


def mark_front(rows: Sequence[Row]) -> list[Row]:
    """Mark the rows that no other row dominates in BLEU and words per second."""
    return [
        dataclasses.replace(
            row, on_front=not any(_dominates(other, row) for other in rows if other is not row)
        )
        for row in rows
    ]


def _dominates(one: Row, other: Row) -> bool:
    pairs = (one.bleu, other.bleu), (one.words_per_second, other.words_per_second)
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)


def table(rows: Sequence[Row]) -> list[str]:
    """Format the rows as lines with aligned columns; speeds are relative to the first row, too."""
    has_terms = any(row.terms is not None for row in rows)
    head = (
        "system", "target", "beam", "BLEU", "chrF", *(["terms"] if has_terms else []), "words/s",
        "relative", "ms/sentence", "MB", "front",
    )  # fmt: skip
    first = rows[0].words_per_second
    lines = [
        (
            row.system, row.target, str(row.beam_size), f"{row.bleu:.2f}", f"{row.chrf:.2f}",
            *([f"{row.terms_found} of {row.terms}"] if has_terms else []),
            f"{row.words_per_second:,.0f}", f"{row.words_per_second / first:.2f}x",
            f"{row.milliseconds:.1f}", f"{row.megabytes:.1f}", "*" if row.on_front else "",
        )
        for row in rows
    ]  # fmt: skip
    return columns([head, *lines])
