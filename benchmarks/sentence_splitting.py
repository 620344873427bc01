"""Compare sentence splitters: boundaries found in lines of known sentences, speed, growth.

    pip install sentencex pyicu pysbd sentence-splitter syntok yasbd-lib sentencesplit
    python benchmarks/sentence_splitting.py --text newstest2013.en:en --text dev.de:de [--rounds 3]

Each file has one sentence per line. The script joins 2 to 5 consecutive lines with blanks, asks
each installed library for the sentences, and compares the boundaries inside the joined lines with
those between the file's lines. Only lines that end with a full stop, an exclamation mark or a
question mark, optionally quoted, are joined: no rule finds the end of a headline. Lines of the file
that have several sentences cost all libraries precision. Speed is in CPU seconds of one thread.
"growth" divides the CPU seconds of a line of 16,000 characters by those of 4,000: 4 is linear, 16
quadratic. The system "translate-trt" is sentencex as `runtime/text/sentences.py` uses it.
"""

from __future__ import annotations

import importlib.metadata
import random
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from harness import alternate, cpu_seconds_of, parser, spread, write

from translate_trt.runtime.io.lines import open_input, read_lines
from translate_trt.runtime.text.sentences import sentence_rules

Split = Callable[[str, str], list[str]]  # of a language and a line

_SENTENCE_END = re.compile(r"[.!?…][\"'”“»)\]]*$")
_GROWTH = (4_000, 16_000)
# Unpunctuated words, ordinary sentences, opening quotes without closing ones, and full stops.
_PATTERNS = {"words": "word ", "sentences": "This is good. ", "quotes": "\u300c. a ", "stops": "."}


def _sentencex(language: str, line: str) -> list[str]:
    import sentencex

    return list(sentencex.segment(language, line))


def _icu(language: str, line: str) -> list[str]:
    import icu

    iterator = icu.BreakIterator.createSentenceInstance(icu.Locale(language))
    units = line.encode("utf-16-le")  # ICU counts UTF-16 units
    iterator.setText(line)
    ends = [0, *iterator]
    return [units[2 * a : 2 * b].decode("utf-16-le") for a, b in pairwise(ends)]


@cache
def _segmenter(package: str, language: str) -> Any:
    if package == "pysbd":
        import pysbd

        return pysbd.Segmenter(language=language, clean=False).segment
    if package == "sentencesplit":
        import sentencesplit

        return sentencesplit.Segmenter(language=language, clean=False).segment
    if package == "sentence-splitter":
        from sentence_splitter import SentenceSplitter

        return SentenceSplitter(language=language).split
    import yasbd

    return yasbd.BoundaryDetector(language).segment


def _syntok(language: str, line: str) -> list[str]:
    from syntok import segmenter

    return [
        "".join(token.spacing + token.value for token in sentence)
        for paragraph in segmenter.process(line)
        for sentence in paragraph
    ]


def _ours(language: str, line: str) -> list[str]:
    return sentence_rules(language).split(line)


SYSTEMS: dict[str, Split] = {
    "translate-trt": _ours,
    "sentencex": _sentencex,
    "pyicu": _icu,
    "syntok": _syntok,
    **{
        name: lambda language, line, name=name: [str(s) for s in _segmenter(name, language)(line)]
        for name in ("pysbd", "sentencesplit", "yasbd-lib", "sentence-splitter")
    },
}


def joined(lines: Iterable[str], seed: int) -> list[list[str]]:
    """Group consecutive sentences by 2 to 5."""
    sentences = [line.strip() for line in lines if _SENTENCE_END.search(line.strip())]
    sizes, groups, start = random.Random(seed), [], 0
    while start < len(sentences):
        size = sizes.randint(2, 5)
        groups.append(sentences[start : start + size])
        start += size
    return groups


def boundaries(sentences: Iterable[str]) -> set[int]:
    """Return the boundaries inside a line as numbers of characters that are not white space."""
    ends = list(accumulate(len("".join(one.split())) for one in sentences))
    return set(ends[:-1]) - {0, ends[-1] if ends else 0}


def measure(system: Split, language: str, groups: list[list[str]]) -> dict[str, float]:
    """Return precision, recall and F1 of the boundaries, in per cent."""
    found = right = wanted = 0
    for group in groups:
        expected, got = boundaries(group), boundaries(system(language, " ".join(group)))
        found, wanted, right = found + len(got), wanted + len(expected), right + len(expected & got)
    precision, recall = 100 * right / max(1, found), 100 * right / max(1, wanted)
    f1 = 2 * precision * recall / max(1e-9, precision + recall)
    return {"precision": precision, "recall": recall, "f1": f1}


def growth(system: Split, rounds: int) -> dict[str, float]:
    """Return the CPU seconds of a long line divided by those of a line of a quarter, by pattern."""
    found = {}
    for name, pattern in _PATTERNS.items():
        short, long = (pattern * (size // len(pattern)) for size in _GROWTH)
        runs = {line: cpu_seconds_of(partial(system, "en", line)) for line in (short, long)}
        samples = alternate(runs, rounds)
        found[name] = min(samples[long]) / max(min(samples[short]), 1e-6)
    return found


def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def disk_bytes(name: str) -> int:
    """Return the size of a package's files, its dependencies not included."""
    files = importlib.metadata.files(name) or []
    paths = [Path(str(one.locate())) for one in files if one.suffix != ".pyc"]
    return sum(path.stat().st_size for path in paths if path.is_file())


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--text", action="append", required=True, metavar="FILE:LANGUAGE")
    options.add_argument("--lines", type=int, default=1000, help="sentences per file")
    options.add_argument("--seed", type=int, default=1)
    args = options.parse_args()
    texts = {}
    for one in args.text:
        path, _, language = one.rpartition(":")
        with open_input(path) as stream:
            lines = list(read_lines(stream, path))[: args.lines]
        texts[f"{Path(path).name}:{language}"] = (language, joined(lines, args.seed))
    names = {name: found for name in SYSTEMS if (found := installed(name))}
    results: dict[str, Any] = {
        name: {"version": names[name], "bytes": disk_bytes(name), "texts": {}} for name in names
    }
    for text, (language, groups) in texts.items():
        count = sum(map(len, groups))
        runs = {}
        for name in names:
            try:
                results[name]["texts"][text] = measure(SYSTEMS[name], language, groups)
            except Exception as error:  # a language that the library refuses
                results[name]["texts"][text] = {"error": str(error)}
                continue

            def run(name: str = name, language: str = language, groups: Any = groups) -> None:
                for group in groups:
                    SYSTEMS[name](language, " ".join(group))

            runs[name] = cpu_seconds_of(run)
        for name, seconds in alternate(runs, args.rounds, warmup=0).items():
            speed = spread(count / max(one, 1e-9) for one in seconds)
            results[name]["texts"][text]["sentences/s"] = speed
            print(text, name, {**results[name]["texts"][text], "sentences/s": speed[0]}, flush=True)
    for name in names:
        results[name]["growth"] = growth(SYSTEMS[name], args.rounds)
        print(name, results[name]["growth"], flush=True)
    counts = {text: sum(map(len, groups)) for text, (_, groups) in texts.items()}
    print(write("sentence-splitting", {"sentences": counts, "seed": args.seed}, results, args))


if __name__ == "__main__":
    main()
