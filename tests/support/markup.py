"""Random texts with markup, and their translation by a function in place of a model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from support.cpp_library import Probe
from translate_trt.runtime.errors import InputError
from translate_trt.runtime.results import TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment

Translate = Callable[[Sequence[str]], Sequence[Translation]]


class MarkupCheck:
    """The program runtime/cpp/tests/markup_check.cc, which uses the library's markup."""

    def __init__(self, program: Probe) -> None:
        self.program = program
        #: Whether each line so far was searched without attention.
        self.tagless: list[bool] = []

    def tokens(self, text: str, markup: str) -> list[Any]:
        """Return the tokens of a text.

        Raises:
            InputError: XML is not well-formed.
        """
        found: list[Any] = self._ask(tokens=text, markup=markup)["tokens"]
        return found

    def translate(
        self,
        translate: Translate,
        texts: Sequence[str],
        markup: str,
        whole: bool,
        names: Sequence[str] | None = None,
    ) -> list[Translation]:
        """Translate texts with markup by a function that translates plain texts.

        Raises:
            InputError: A text is not well-formed XML.
        """
        rounds: list[list[Any]] = []
        while True:
            answer = self._ask(
                texts=list(texts), names=list(names or [f"text {n}" for n in range(len(texts))]),
                markup=markup, whole=whole, rounds=rounds,
            )  # fmt: skip
            if "texts" in answer:
                break
            lines, _, tagless = zip(*answer["lines"], strict=True)
            found = translate(lines)
            rounds.append([*map(_as_json, found, tagless)])
            self.tagless += tagless
        return [
            Translation(tuple(TextHypothesis(*one) for one in hypotheses), sentences)
            for sentences, hypotheses in answer["texts"]
        ]

    def _ask(self, **request: Any) -> Any:
        answer = self.program.ask(**request)
        if "error" in answer:
            raise InputError(answer["error"])
        return answer


def _as_json(translation: Translation, tagless: bool) -> list[dict[str, Any]]:
    # As by the library, the translation of a tagless line has no segments.
    return [
        {
            "text": one.text,
            "score": one.score,
            "segments": [
                {
                    "source": segment.source,
                    "target": segment.target,
                    "weights": segment.weights.tolist(),
                }
                for segment in (one.alignment.segments if one.alignment and not tagless else ())
            ],
        }
        for one in translation.hypotheses
    ]


INLINE, BLOCK = ("b", "i", "a", "span"), ("p", "div", "ul", "li", "td")


class Maker:
    """Random documents whose tags have numbers and ends, as HTML and XML have them."""

    def __init__(self, seed: int) -> None:
        self.random, self.count = random.Random(seed), 0

    def number(self) -> int:
        """Return the next number of a tag."""
        self.count += 1
        return self.count

    def text(self) -> str:
        """Return words, with white space at the ends at times."""
        words = [
            self.random.choice(
                ["cat", "dog,", "the", "A.", "x&amp;y", "&lt;", "don't", "日本", "é"]
            )
            if self.random.random() < 0.85
            else self.random.choice(["{n%d}", "${n%d}", "%%(n%d)s"]) % self.number()
            for _ in range(self.random.randint(0, 4))
        ]
        space = self.random.choice([" ", " ", "\n  "])
        edges = [self.random.choice(["", " "]) for _ in range(2)]
        return edges[0] + space.join(words) + edges[1]

    def inline(self, depth: int) -> str:
        """Return text, or an element that is part of a sentence, of at most that depth."""
        kind = self.random.randint(0, 9)
        if depth <= 0 or kind < 4:
            return self.text()
        number = self.number()
        if kind == 4:
            return self.random.choice([f"<!-- c{number} -->", f'<img n="{number}"/>'])
        if kind == 5:
            return f'<code n="{number}" translate="no">x {number}</code>'
        name = self.random.choice(INLINE)
        inside = "".join(self.inline(depth - 1) for _ in range(self.random.randint(0, 3)))
        return f'<{name} n="{number}">{inside}</{name}>'

    def block(self, depth: int) -> str:
        """Return an element that separates sentences."""
        name, number = self.random.choice(BLOCK), self.number()
        if depth > 0 and self.random.random() < 0.5:
            inside = "\n".join(self.block(depth - 1) for _ in range(self.random.randint(0, 3)))
        else:
            inside = "".join(self.inline(3) for _ in range(self.random.randint(0, 5)))
        between = f'<br n="{self.number()}"/>' if self.random.random() < 0.1 else ""
        return f'<{name} n="{number}">{inside}{between}</{name}>'


def random_translator(chance: random.Random) -> Translate:
    """Return a translator that shuffles, repeats and loses words.

    It aligns tokens of any size with anything.
    """

    def translate(texts: Sequence[str]) -> list[Translation]:
        return [Translation((anything(text),)) for text in texts]

    def anything(text: str) -> TextHypothesis:
        words = text.split()
        if len(words) < 4 or chance.random() < 0.7:
            return sentence(text)
        edge = chance.randint(1, len(words) - 1)
        parts = [sentence(" ".join(part)) for part in (words[:edge], words[edge:])]
        segments, source, target = [], 0, 0
        for part in parts:
            ((segment,), length) = part.alignment.segments, len(part.alignment.source)
            here, there = shifted(segment.source, source), shifted(segment.target, target)
            segments.append(AlignedSegment(here, there, segment.weights))
            source, target = source + length + 1, target + len(part.text) + 1
        joined = " ".join(part.text for part in parts)
        return TextHypothesis(joined, -1.0, (), Alignment(text, joined, tuple(segments)))

    def shifted(spans: Sequence[tuple[int, int]], by: int) -> tuple[tuple[int, int], ...]:
        return tuple((begin + by, end + by) for begin, end in spans)

    def sentence(text: str) -> TextHypothesis:
        words = chance.choices(text.split(), k=chance.randint(0, 9)) if chance.random() < 0.6 else (
            chance.sample(text.split(), len(text.split()))
        )  # fmt: skip
        target = " ".join(words)
        spans = [cut(one) for one in (text, target)]
        rows = np.random.default_rng(chance.randint(0, 99)).random(
            [len(one) for one in spans[::-1]]
        )
        kind = chance.random()
        if kind < 0.2:
            rows[:] = 0
        elif kind < 0.4:
            rows = np.round(rows * 4) / 4  # with ties
        segment = AlignedSegment(spans[0], spans[1], rows.astype(np.float32))
        alignment = Alignment(text, target, (segment,))
        return TextHypothesis(target, -chance.random(), (), alignment)

    def cut(text: str) -> tuple[tuple[int, int], ...]:
        edges = {0, len(text), *chance.choices(range(len(text) + 1), k=6)}
        return tuple(pairwise(sorted(edges)))

    return translate
