"""A translator without a model, to test the command around it.

It reverses each line's words. Run as a program it is `translate-trt` with this translator in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from translate_trt.runtime import translator
from translate_trt.runtime.bundle.manifest import read_manifest
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Hypothesis, TextHypothesis, Translation
from translate_trt.runtime.text.alignment import AlignedSegment, Alignment
from translate_trt.runtime.text.glossary import Glossary


class FakeTranslator:
    #: Arguments of the translators of this process, and of each of their calls, newest last.
    made: list[dict[str, Any]] = []  # noqa: RUF012
    calls: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(
        self, bundle: str | os.PathLike[str], target: str | None = None, **loading: Any
    ) -> None:
        self.made.append({"target": target, **loading})
        self.manifest = read_manifest(Path(bundle))
        self.target = self.manifest.target(target)

    def translate(
        self,
        lines: Sequence[str],
        options: SearchOptions,
        target_prefixes: Sequence[str] | None = None,
        **more: Any,
    ) -> list[Translation]:
        self.calls.append({"lines": lines, "options": options, "prefixes": target_prefixes, **more})
        return [self._translation(line, _reversed(line), options, **more) for line in lines]

    def translate_document(
        self, texts: Sequence[str], options: SearchOptions, **more: Any
    ) -> list[Translation]:
        self.calls.append({"lines": texts, "options": options, **more})
        return [
            self._translation(
                text, re.sub(r"\S[^\r\n]*", lambda line: _reversed(line[0]), text), options, **more
            )
            for text in texts
        ]

    def _translation(
        self,
        source: str,
        text: str,
        options: SearchOptions,
        split_sentences: bool | str = False,
        alignments: bool = False,
        terminology: Glossary | None = None,
        **_: Any,
    ) -> Translation:
        limit = self.manifest.limits.max_source_length
        sentences = re.split(r"(?<=\.) ", source) if split_sentences else [source]
        segments = [
            _hypothesis(words[start : start + limit], options)
            for words in map(str.split, sentences)
            for start in range(0, len(words), limit)
        ]
        return Translation(
            tuple(
                TextHypothesis(
                    f"{text} #{rank}" if rank else text,
                    float(-rank),
                    tuple(segments),
                    _alignment(source, text) if alignments else None,
                    None if terminology is None else tuple(terminology.terms(source, text)),
                )
                for rank in range(options.num_hypotheses)
            ),
            len(sentences),
        )


def _reversed(line: str) -> str:
    """Reverse the words between tabs, which stay as in a line that is split into sentences."""
    return "\t".join(" ".join(reversed(part.split())) for part in line.split("\t"))


def _alignment(line: str, text: str) -> Alignment:
    source, target = Alignment(line, text).source_words, Alignment(line, text).target_words
    weights = np.eye(len(source), dtype=np.float32)[::-1]
    return Alignment(line, text, (AlignedSegment(source, target, weights),))


def _hypothesis(words: list[str], options: SearchOptions) -> Hypothesis:
    size = len(words) + 1
    return Hypothesis(
        tokens=tuple(range(size - 1)),
        score=0.0,
        token_log_probs=(*[-0.5] * (size - 1), float("-inf")),
        attention=np.eye(size, dtype=np.float32) if options.return_attention else None,
    )


if __name__ == "__main__":
    from translate_trt.runtime.cli import main

    translator.Translator = FakeTranslator  # type: ignore[misc,assignment]
    main()
