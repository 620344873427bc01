"""Measure what constraints do to translations: recall of the phrases, BLEU, chrF, and time.

    python benchmarks/constraints.py --bundle DIR --source test.en --reference test.de
        [--beams 4 8 16] [--lines 500] [--rounds 3]

The phrases are words of the reference translations, as in the experiments of Post and Vilar 2018,
"Fast Lexically Constrained Decoding with Dynamic Beam Allocation for Neural Machine Translation":
one word of each, a phrase of three words, or three words from different places. They are chosen by
a hash of the line, so every run has the same ones. Since the phrases come from the references, BLEU
rises where the search finds good places for them, and falls where it does not.

Recall counts phrases that a translation has as whole words, by the rules of glossaries
(docs/terminology.md), with and without constraints. Searches
of one beam size run in turn, and each is compared with the one without constraints.
"""

from __future__ import annotations

import argparse
import dataclasses
import zlib
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import sacrebleu
from harness import alternate, parser, ratios, seconds_of, spread, write

from translate_trt.runtime import TranslateTrtError, Translation, Translator
from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.runtime.text.glossary import Entry, Glossary, Recall

Phrases = list[list[str]]

_PUNCTUATION = ".,;:!?\"'()[]"


def words_of(reference: str) -> list[str]:
    """Return the words of a line without the punctuation around them."""
    return [word for one in reference.split() if (word := one.strip(_PUNCTUATION))]


def places(reference: str, count: int, most: int) -> list[int]:
    """Choose different numbers from 0 to `most` by a hash of the line, in ascending order."""
    start = zlib.crc32(reference.encode())
    order = sorted(range(most + 1), key=lambda place: zlib.crc32(f"{start} {place}".encode()))
    return sorted(order[:count])


def single_words(reference: str, count: int) -> list[str]:
    """Return words from different places of a reference."""
    words = words_of(reference)
    return [words[place] for place in places(reference, count, len(words) - 1)]


def one_phrase(reference: str, length: int) -> list[str]:
    """Return one phrase of so many words; none if the reference is shorter."""
    words = words_of(reference)
    if len(words) < length:
        return []
    (begin,) = places(reference, 1, len(words) - length)
    return [" ".join(words[begin : begin + length])]


#: Constraints by their name in the table.
KINDS: dict[str, Callable[[str], list[str]]] = {
    "1 word": lambda reference: single_words(reference, 1),
    "a phrase of 3 words": lambda reference: one_phrase(reference, 3),
    "3 words": lambda reference: single_words(reference, 3),
}
NONE = "no constraints"


def recall(translations: Sequence[str], phrases: Phrases) -> float:
    """Return the percentage of phrases that the translations have as whole words."""
    counts = Recall()
    for translation, own in zip(translations, phrases, strict=True):
        glossary = Glossary([Entry(phrase, (phrase,)) for phrase in own])
        counts.add(glossary.terms(" | ".join(own), translation))
    return 100 * counts.found / max(counts.terms, 1)


def quality(translations: Sequence[Translation], references: Sequence[str]) -> dict[str, float]:
    """Return BLEU and chrF, and the share of translations that were cut off."""
    texts = [one.text for one in translations]
    cut = sum(one.hypotheses[0].truncated for one in translations)
    return {
        "bleu": sacrebleu.corpus_bleu(texts, [references]).score,
        "chrf": sacrebleu.corpus_chrf(texts, [references]).score,
        "truncated": 100 * cut / len(translations),
    }


def compare(
    translator: Translator, lines: Sequence[str], references: Sequence[str], beam_size: int,
    rounds: int,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Translate with every kind of constraints, and without."""
    options = dataclasses.replace(translator.default_options, beam_size=beam_size)
    phrases = {kind: [choose(one) for one in references] for kind, choose in KINDS.items()}
    found: dict[str, list[Translation]] = {}

    def run(kind: str) -> Callable[[], object]:
        constraints = phrases.get(kind)

        def translate() -> None:
            found[kind] = translator.translate(lines, options, constraints=constraints)

        return translate

    calls = {kind: seconds_of(run(kind)) for kind in (NONE, *KINDS)}
    seconds = alternate(calls, rounds)
    plain = [one.text for one in found[NONE]]
    results: dict[str, dict[str, Any]] = {}
    for kind, translations in found.items():
        results[kind] = {
            **quality(translations, references),
            "lines_per_second": spread(len(lines) / one for one in seconds[kind]),
            "time / none": ratios(seconds, kind, NONE),
        }
        if own := phrases.get(kind):
            results[kind]["recall"] = recall([one.text for one in translations], own)
            results[kind]["recall_without"] = recall(plain, own)
    return results


def read_pairs(source: Path, reference: Path, count: int) -> tuple[list[str], list[str]]:
    """Read the first pairs of lines that have words on both sides."""
    with open_input(str(source)) as sources, open_input(str(reference)) as references:
        pairs = zip(
            read_lines(sources, str(source)), read_lines(references, str(reference)), strict=True
        )
        both = list(islice(((s, r) for s, r in pairs if s.strip() and words_of(r)), count))
    if not both:
        raise SystemExit(f"{source} has no line with words on both sides.")
    lines, found = zip(*both, strict=True)
    return list(lines), list(found)


def measure(given: argparse.Namespace) -> None:
    """Measure every beam size, and write the report."""
    translator = Translator(given.bundle, given.target, threads=given.threads, workers=1)
    lines, references = read_pairs(given.source, given.reference, given.lines)
    results = {
        str(beams): compare(translator, lines, references, beams, given.rounds)
        for beams in given.beams
    }
    for beams, kinds in results.items():
        for kind, found in kinds.items():
            parts = (f"{name} {value}" for name, value in found.items())
            print(f"beam {beams}, {kind}:", *parts)
    settings = {
        "target": translator.target.name,
        "model": translator.manifest.to_json()["model"],
        "source": given.source.name,
        "lines": len(lines),
        "rounds": given.rounds,
        "threads": given.threads,
        "note": given.note,
    }
    print(write("constraints", settings, results, given))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--bundle", type=Path, required=True)
    options.add_argument("--source", type=Path, required=True, help="text to translate")
    options.add_argument("--reference", type=Path, required=True, help="its translation")
    options.add_argument("--target", help="target of the bundle; default: the first")
    options.add_argument("--beams", type=int, nargs="+", default=[4, 8, 16])
    options.add_argument("--lines", type=int, default=500)
    options.add_argument("--note", default="", help="sentence for the report, such as the model")
    options.set_defaults(rounds=3, threads=1)
    try:
        measure(options.parse_args())
    except TranslateTrtError as error:
        raise SystemExit(f"error: {error}") from error


if __name__ == "__main__":
    main()
