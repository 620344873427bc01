"""Terms of a glossary in lines and translations, for one bundle (docs/terminology.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from translate_trt.runtime.arguments import checked_texts, describe
from translate_trt.runtime.bundle.checks import max_segment_length
from translate_trt.runtime.bundle.manifest import Manifest
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.options import SearchOptions
from translate_trt.runtime.results import Translation
from translate_trt.runtime.text.documents import SplitText
from translate_trt.runtime.text.glossary import Glossary
from translate_trt.runtime.text.segments import segment_texts
from translate_trt.runtime.text.tokenizer import Tokenizer


class Terms:
    """Application of glossaries: by annotated lines, or by constraints of the search.

    Args:
        manifest: Manifest of the bundle.
        tokenizer: Its tokenizer.
    """

    def __init__(self, manifest: Manifest, tokenizer: Tokenizer) -> None:
        self._manifest, self._tokenizer = manifest, tokenizer

    def check(self, terminology: Glossary | None, aligned: bool = False) -> None:
        """Refuse a glossary that the model or the call cannot use.

        Args:
            terminology: Glossary; None is always valid.
            aligned: Whether the words of lines and translations are aligned.

        Raises:
            OptionError: The argument is no glossary, or annotations would move the words.
        """
        if terminology is None:
            return
        if not isinstance(terminology, Glossary):
            raise OptionError(f"terminology is {describe(terminology)}; write Glossary.read(PATH).")
        if aligned:
            check_positions(self._manifest)

    def apply(
        self, lines: Sequence[str], terminology: Glossary
    ) -> tuple[list[str], list[list[str]]]:
        """Return annotated lines or, if the model does not read annotations, the lines as they are.

        Returns:
            The lines, and the phrases that each translation must have.
        """
        if self._manifest.term_annotation is not None:
            return [self.annotate(line, terminology) for line in lines], [[] for _ in lines]
        return list(lines), [self.required_phrases(line, terminology) for line in lines]

    def annotate(self, line: str, terminology: Glossary) -> str:
        """See `Translator.annotate`."""
        self.check(terminology)
        if self._manifest.term_annotation is None:
            raise OptionError(
                "this model was not trained on annotated text: train one on the output of "
                "translate-trt data prepare --terminology (docs/terminology.md), or make the terms "
                "of a line constraints (Translator.required_phrases)."
            )
        code, text = self._without_language(line)
        return code + self._manifest.term_annotation.annotate_source(text, terminology)

    def required_phrases(self, line: str, terminology: Glossary) -> list[str]:
        """See `Translator.required_phrases`."""
        self.check(terminology)
        _, text = self._without_language(line)
        return [match.entry.targets[0] for match in terminology.find(text)]

    def phrase_tokens(self, phrases: Iterable[str], name: str = "constraints") -> list[list[int]]:
        """Tokenize phrases that a translation must have.

        Args:
            phrases: Texts.
            name: Name of the argument in error messages.

        Raises:
            InputError: A phrase is not a string, or has a character that the vocabulary lacks.
        """
        texts = list(checked_texts(name, "phrase", phrases))
        if not texts:
            return []
        encoded = self._tokenizer.encode_target_batch(texts)
        for text, tokens in zip(texts, encoded, strict=True):
            if self._manifest.model.unknown_token in tokens:
                raise InputError(
                    f"{name}: {text!r} has a character that the vocabulary cannot spell; leave it "
                    "out."
                )
        return encoded

    def split(self, line: str, options: SearchOptions) -> SplitText | None:
        """Split a line that is too long for the model, so that each segment has its own terms.

        Returns:
            The segments; None if the line is short enough, or the model reads annotations.

        Raises:
            OptionError: A long line cannot have alternatives.
        """
        if self._manifest.term_annotation is not None:
            return None
        code, text = self._without_language(line)
        longest = max_segment_length(self._manifest)
        parts = segment_texts(text, self._tokenizer.encode_source, longest)
        if len(parts) < 2:
            return None
        if options.alternatives:
            raise OptionError(
                "alternatives belong to one sentence, and a line with terms is too long for one; "
                "leave out alternatives or terminology."
            )
        between = [" "] * (len(parts) - 1)
        return SplitText(tuple(code + part for part in parts), ("", *between, ""))

    def look_up(
        self, lines: Iterable[str], translations: list[Translation], terminology: Glossary | None
    ) -> list[Translation]:
        """Look up the terms of each line in the hypotheses of its translation, and add them."""
        texts = (self._without_language(line)[1] for line in lines)
        return with_terms(texts, translations, terminology)

    def _without_language(self, line: str) -> tuple[str, str]:
        """Return the language code that a line may begin with, and the rest."""
        found = self._manifest.prompt.inline_language(line)
        end = 0 if found is None else found.end()
        return line[:end], line[end:]


def check_positions(manifest: Manifest) -> None:
    """Raise OptionError if terms move the words of a line, which are to be aligned."""
    if manifest.term_annotation is not None:
        raise OptionError(
            "terminology goes with neither alignments nor markup: positions in an annotated line "
            "are not those of the line. Leave out one of them."
        )


def with_terms(
    lines: Iterable[str], translations: list[Translation], terminology: Glossary | None
) -> list[Translation]:
    """Look up the terms of lines without language codes, and add them to the translations."""
    if terminology is None:
        return translations
    return [
        replace(
            translation,
            hypotheses=tuple(
                replace(one, terms=tuple(terminology.terms(line, one.text)))
                for one in translation.hypotheses
            ),
        )
        for line, translation in zip(lines, translations, strict=True)
    ]
