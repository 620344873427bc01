"""A translator without a model, to test the command around it.

It reverses each line's words. Run as a program it is `translate-trt` with this translator in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from translate_trt.runtime import translator
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.line_names import LineNames
from translate_trt.runtime.native.core import plain_lines
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment
from translate_trt.runtime.text.documents import SplitText, TextSplitter
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.text.sentences import chosen_rules


class FakeTranslator:
    #: What the translators of this process were asked, newest last.
    calls: list[tuple[list[str], SearchOptions, list[str] | None]] = []  # noqa: RUF012
    #: Their argument `split_sentences` of each call.
    splits: list[bool | str] = []  # noqa: RUF012
    #: Their argument `constraints` of each call.
    constraints: list[Sequence[Sequence[str]] | None] = []  # noqa: RUF012
    translates_all: list[bool] = []  # noqa: RUF012
    made: list[dict[str, object]] = []  # noqa: RUF012

    def __init__(
        self,
        bundle: str | os.PathLike[str],
        target: str | None = None,
        *,
        shortlist: bool = False,
        threads: int | None = None,
        workers: int | None = None,
        batch_tokens: int | None = None,  # here: what was given
        check_hashes: bool = True,
    ) -> None:
        given = {"threads": threads, "workers": workers, "batch_tokens": batch_tokens}
        self.made.append({"target": target, "shortlist": shortlist, **given})
        self.manifest = read_manifest(Path(bundle))
        self.target = self.manifest.target(target)
        self.default_options = self.manifest.search_options()

    def translate(
        self,
        lines: Sequence[str],
        options: SearchOptions | None = None,
        target_prefixes: Sequence[str] | None = None,
        *,
        split_sentences: bool | str = False,
        alignments: bool = False,
        markup: str | None = None,
        terminology: Glossary | None = None,
        constraints: Sequence[Sequence[str]] | None = None,
        translate_all: bool = False,
        names: Sequence[str] | None = None,
    ) -> list[Translation]:
        options = options or self.default_options
        self.constraints.append(constraints)
        if terminology is not None:
            plain = self.translate(lines, options, target_prefixes, split_sentences=split_sentences)
            return [
                replace(
                    one,
                    hypotheses=tuple(
                        replace(h, terms=tuple(terminology.terms(line, h.text)))
                        for h in one.hypotheses
                    ),
                )
                for line, one in zip(lines, plain, strict=True)
            ]
        if markup is not None:
            return self._with_markup(lines, markup, False, names)
        self.aligns = alignments
        self.translates_all.append(translate_all)
        self.splits.append(split_sentences)
        prefixes = None if target_prefixes is None else list(target_prefixes)
        self.calls.append((list(lines), options, prefixes))
        if split_sentences is False:
            return [self._translate(line, options) for line in lines]
        splitter = self._splitter(split_sentences)
        texts = [splitter.split_line(line, options) for line in lines]
        return [self._joined(text, options, line) for text, line in zip(texts, lines, strict=True)]

    def translate_document(
        self,
        texts: Sequence[str],
        options: SearchOptions,
        *,
        split_sentences: bool | str,
        unwrap: bool,
        markup: str | None = None,
        terminology: Glossary | None = None,
        names: Sequence[str] | None = None,
    ) -> list[Translation]:
        self.splits.append(split_sentences)
        if markup is not None:
            return self._with_markup(texts, markup, True, names)
        self.aligns = False
        splitter = self._splitter(split_sentences)
        split = [splitter.split_document(text, options, unwrap) for text in texts]
        return [self._joined(text, options) for text in split]

    def _with_markup(
        self, texts: Sequence[str], markup: str, whole: bool, names: Sequence[str] | None
    ) -> list[Translation]:
        given = LineNames(names)
        for index, text in enumerate(texts):
            plain_lines(text, markup, given[index])  # refuses XML that is not well-formed
        return [
            Translation((TextHypothesis(re.sub(r"[^<>]+(?![^<]*>)", _reversed, text), 0.0),))
            for text in texts
        ]

    def _splitter(self, split_sentences: bool | str) -> TextSplitter:
        rules = chosen_rules(split_sentences, self.manifest.source_language)
        return TextSplitter(self.manifest.prompt, rules, self.manifest.target_language)

    def _joined(
        self, text: SplitText, options: SearchOptions, line: str | None = None
    ) -> Translation:
        parts = [self._translate(sentence, options) for sentence in text.sentences]
        joined = []
        for several in zip(*(one.hypotheses for one in parts), strict=True) if parts else [()]:
            texts = [*(one.text for one in several), ""]
            whole = "".join(a + b for a, b in zip(text.separators, texts, strict=True))
            segments = tuple(segment for one in several for segment in one.segments)
            alignment = None if line is None or not self.aligns else self._alignment(line, whole)
            score = sum(one.score for one in several)
            joined.append(TextHypothesis(whole, score, segments, alignment))
        return Translation(tuple(joined), len(parts))

    def _translate(self, line: str, options: SearchOptions) -> Translation:
        words = line.replace("\u2028", " ").split()
        limit = self.manifest.limits.max_source_length
        segments = [words[start : start + limit] for start in range(0, len(words), limit)]
        text = " ".join(reversed(words))
        return Translation(
            tuple(
                TextHypothesis(
                    f"{text} #{rank}" if rank else text,
                    float(-rank),
                    tuple(self._hypothesis(segment, options) for segment in segments),
                    self._alignment(line, text) if self.aligns else None,
                )
                for rank in range(options.num_hypotheses)
            )
        )

    def _alignment(self, line: str, text: str) -> Alignment:
        source, target = Alignment(line, text).source_words, Alignment(line, text).target_words
        weights = np.eye(len(source), dtype=np.float32)[::-1]
        return Alignment(line, text, (AlignedSegment(source, target, weights),))

    def _hypothesis(self, words: list[str], options: SearchOptions) -> Hypothesis:
        size = len(words) + 1
        return Hypothesis(
            tokens=tuple(range(size - 1)),
            score=0.0,
            token_log_probs=(*[-0.5] * (size - 1), float("-inf")),
            attention=np.eye(size, dtype=np.float32) if options.return_attention else None,
        )


def _reversed(found: re.Match[str]) -> str:
    """Reverse the words of a text between tags, whose white space stays."""
    text = found[0]
    words, start = " ".join(reversed(text.split())), len(text) - len(text.lstrip())
    return f"{text[:start]}{words}{text[len(text.rstrip()) :]}" if words else text


if __name__ == "__main__":
    from translate_trt.runtime.cli import main

    translator.Translator = FakeTranslator  # type: ignore[misc,assignment]
    main()
