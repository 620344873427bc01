"""Texts as sentences to translate and the white space and markers between them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.text.sentences import (
    SentenceRules,
    base_language,
    chosen_rules,
    writes_spaces,
)

# Characters that end a line for str.splitlines; a translated line has none of them.
_LINE_ENDS = re.compile("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")

# Markers at the start of a document's line, with the white space around them: quotations ("> "),
# then a heading ("# "), a list item ("- ", "* ", "1. ", "1) ", "(1) ", "a) ") or nothing.
_MARKERS = re.compile(
    r"""\s*+ (?:> \s*+)*+
    (?: (?: \#{1,6} | [-*+\u2022\u2023\u2043\u25aa\u25cf\u25e6\u2013\u2014]
          | [0-9]{1,3} [.)] | [A-Za-z] \) | \( (?:[0-9]{1,3} | [A-Za-z]) \)
        ) \s++
    )?""",
    re.VERBOSE,
)


@dataclass(frozen=True)
class SplitText:
    """A text whose sentences are translated one by one.

    Attributes:
        sentences: Texts to translate, in order; each begins with the language code of its line, if
            the line has one (`Prompt.inline_language`).
        separators: Text before each sentence and after the last, one more than sentences.
        offsets: Offset in the text of each sentence without its language code, less the length of
            the code; empty if unknown, as in paragraphs of which one line was made.
    """

    sentences: tuple[str, ...]
    separators: tuple[str, ...]
    offsets: tuple[int, ...] = field(default=(), compare=False)


class TextSplitter:
    """Splitting of lines and documents for one model.

    Args:
        prompt: The model's prompt, for language codes at the start of lines.
        rules: Rules of the source language; None leaves the sentences of a line together.
        target_language: Target language of a bilingual model, in any form; None if unknown.
    """

    def __init__(
        self, prompt: Prompt, rules: SentenceRules | None, target_language: str | None
    ) -> None:
        self._prompt, self._rules, self._target_language = prompt, rules, target_language
        self._spaces = rules is None or writes_spaces(rules.language)
        self._has_codes = bool(prompt.inline_languages)

    def split_line(self, line: str, options: SearchOptions) -> SplitText:
        """Cut one line into sentences. Line ends between them become spaces."""
        pieces: list[str | _Sentence] = []
        self._add(pieces, line, options, 0)
        return _joined(
            [one if isinstance(one, _Sentence) else _LINE_ENDS.sub(" ", one) for one in pieces]
        )

    def split_document(self, text: str, options: SearchOptions, unwrap: bool) -> SplitText:
        """Cut a text of many lines into sentences.

        Line ends, indentation, markers of lists, quotations and headings, and lines without letters
        or digits are not translated.

        Args:
            text: The document.
            options: Search options.
            unwrap: Make one line of the lines of a paragraph before its sentences are found.
        """
        pieces: list[str | _Sentence] = []
        paragraphs = self._unwrapped(text) if unwrap else text.splitlines(keepends=True)
        begin = 0
        for paragraph in paragraphs:
            indentation = len(paragraph) - len(paragraph.lstrip())
            if not self._has_codes or self._prompt.inline_language(paragraph) is None:
                markers = _MARKERS.match(paragraph)
                indentation = markers.end() if markers else indentation
            if not any(map(str.isalnum, paragraph[indentation:])):
                indentation = len(paragraph)
            pieces.append(paragraph[:indentation])
            offset = None if unwrap else begin + indentation
            self._add(pieces, paragraph[indentation:], options, offset)
            begin += len(paragraph)
        return _joined(pieces)

    def _unwrapped(self, text: str) -> Iterator[str]:
        """Join the lines of each paragraph.

        A line continues a paragraph if it has text without a marker, and its indentation is not
        larger than that of the text in the paragraph's first line.
        """
        paragraph: list[str] = []
        column = -1  # of the text in the first line; -1 if nothing continues it
        for line in text.splitlines(keepends=True):
            markers = _MARKERS.match(line)
            start = markers.end() if markers else 0
            body = line.lstrip()
            has_text = any(map(str.isalnum, line[start:]))
            if has_text and start == len(line) - len(body) <= column:
                paragraph[-1] = paragraph[-1].rstrip()
                paragraph += (" " if self._spaces else "", body)
                continue
            yield "".join(paragraph)
            paragraph = [line]
            is_heading = line[:start].lstrip().startswith("#")
            column = start if has_text and not is_heading else -1
        yield "".join(paragraph)

    def _add(
        self,
        pieces: list[str | _Sentence],
        text: str,
        options: SearchOptions,
        offset: int | None = None,
    ) -> None:
        """Append the sentences of a text without line structure, which begins at an offset."""
        code, whole = "", text
        if self._has_codes and (found := self._prompt.inline_language(text)):
            code, target = f">>{found[1]}<< ", found[1]
            pieces.append(text[: found.start(1) - len(">>")])
            text = text[found.end(1) + len("<<") :]
            text = text.lstrip() or text
        else:
            target = options.target_language or self._target_language
        body = text.lstrip()
        if not body and self._has_codes:
            self._prompt.of_line(whole, options)  # no sentence would tell of an unknown language
        pieces.append(text[: len(text) - len(body)])
        sentences = [body] if self._rules is None else self._rules.split(body)
        if offset is not None:
            offset += len(whole) - len(body) - len(code)
        for number, part in enumerate(sentences):
            sentence = part.rstrip()
            space = part[len(sentence) :]
            if sentence:
                pieces.append(_Sentence(code + sentence, offset))
            if offset is not None:
                offset += len(part)
            if number + 1 < len(sentences):
                space = self._between(space, target)
            pieces.append(space)

    def _between(self, space: str, target_language: str | None) -> str:
        """Replace the white space between two sentences if the target language has another."""
        if self._rules is None or self._spaces == writes_spaces(base_language(target_language)):
            return space
        usual, wanted = (" ", "") if self._spaces else ("", " ")
        return wanted if space == usual else space


def splitter_of(
    manifest: Manifest, split_sentences: bool | str, options: SearchOptions
) -> TextSplitter:
    """Make the splitter of a model for its source language, or for the language named.

    Raises:
        OptionError: See `chosen_rules`.
    """
    rules = chosen_rules(split_sentences, options.source_language or manifest.source_language)
    return TextSplitter(manifest.prompt, rules, manifest.target_language)


class _Sentence(NamedTuple):
    """A sentence and its offset in the text, if known."""

    text: str
    offset: int | None


def _joined(pieces: Iterable[str | _Sentence]) -> SplitText:
    """Return the text of sentences and what is between them."""
    sentences, offsets, separators, between = [], [], [], list[str]()
    for piece in pieces:
        if isinstance(piece, str):
            between.append(piece)
            continue
        separators.append("".join(between))
        between.clear()
        sentences.append(piece.text)
        if piece.offset is not None:
            offsets.append(piece.offset)
    return SplitText(tuple(sentences), (*separators, "".join(between)), tuple(offsets))
