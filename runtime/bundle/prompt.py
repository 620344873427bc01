"""Prompts: language tokens and other special tokens around the text.

A token selects the target language of a multilingual model. In OPUS-MT the source begins with this
token (Johnson et al. 2017, section 3). In M2M100 (Fan et al. 2021, section 2.1), NLLB and mBART-50
the translation begins with this token, and the source with the token of the source language.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field, replace
from typing import Any

from translate_trt.runtime.bundle.contract import unscored
from translate_trt.runtime.bundle.fields import Fields
from translate_trt.runtime.errors import OptionError
from translate_trt.runtime.options import SearchOptions

# Language code at the start of a line, as in OPUS-MT: ">>deu<<".
_INLINE = re.compile(r"\s*>>([^<>\s]+)<<\s*")
# Form of all codes of OPUS-MT; other words between such marks are quotations.
_CODE = re.compile(r"[a-z]{2,3}([_-].*)?")

_MOST_LANGUAGES = 12  # in messages

#: Valid positions of the target language token.
SIDES = ("source", "target")


@dataclass(frozen=True)
class Prompt:
    """Special tokens before the text; detokenization drops them.

    Attributes:
        source: Tokens at the start of every source (BART's begin symbol).
        target: Tokens at the start of every translation (BART's forced_bos_token_id).
        source_languages: Source language tokens by language; they follow `source`.
        target_languages: Target language tokens by language.
        target_side: "source" if the target language token precedes the source text, after all
            other source tokens; "target" if it follows `target` in the translation.
    """

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    source_languages: dict[str, int] = field(default_factory=dict)
    target_languages: dict[str, int] = field(default_factory=dict)
    target_side: str = "target"

    @classmethod
    def from_json(cls, fields: Fields) -> Prompt:
        """Read a prompt that `to_json` wrote.

        Raises:
            BundleError: A field is missing or has the wrong type.
        """
        return cls(
            tuple(fields.integers("source", 0)),
            tuple(fields.integers("target", 0)),
            fields.object("source_languages").all_integers(0),
            fields.object("target_languages").all_integers(0),
            fields.choice("target_side", SIDES),
        )

    def to_json(self) -> dict[str, Any]:
        """Convert the prompt to JSON values, which `from_json` reads back."""
        return {**vars(self), "source": [*self.source], "target": [*self.target]}

    def largest(self) -> tuple[int, int]:
        """Return the largest token of the source side and of the target side; -1 for none."""
        source = [*self.source, *self.source_languages.values()]
        target = [*self.target]
        (source if self._before_source else target).extend(self.target_languages.values())
        return max(source, default=-1), max(target, default=-1)

    @property
    def _before_source(self) -> bool:
        return self.target_side == "source"

    @property
    def inline_languages(self) -> dict[str, int]:
        """Target languages that a line may begin with, by their codes, and their tokens."""
        return self.target_languages if self._before_source else {}

    @property
    def source_length(self) -> int:
        """Maximum number of tokens before a source text."""
        return len(self.source) + bool(self.source_languages) + bool(self.inline_languages)

    def inline_language(self, line: str) -> re.Match[str] | None:
        """Match a target language at the start of a line, as in ">>deu<< A text.".

        Returns:
            The match, whose group 1 is the code; None if the model takes no such codes, or the line
            begins with none that it knows or that has the form of one.
        """
        if not self.inline_languages:
            return None
        found = _INLINE.match(line)
        if found is None or found[1] in self.target_languages:
            return found
        return found if _CODE.fullmatch(found[1]) else None

    def split_language(self, line: str) -> tuple[str, str]:
        """Return the language code that a line may begin with, and the rest."""
        found = self.inline_language(line)
        end = 0 if found is None else found.end()
        return line[:end], line[end:]

    def of_line(self, line: str, options: SearchOptions) -> tuple[str, SearchOptions]:
        """Move an inline language code from the line into the options.

        Lines for OPUS-MT may name their own target language, as in ">>deu<< A text."; the code
        applies to all segments of the line.

        Raises:
            OptionError: The model does not know the language.
        """
        if (found := self.inline_language(line)) is None:
            return line, options
        _check_language("the language code of the line", self.target_languages, found[1], True)
        return line[found.end() :], replace(options, target_language=found[1])

    def check_line(self, options: SearchOptions, name: str) -> None:
        """Refuse a line without a target language, if the model knows several before the source.

        Args:
            options: Options of the line, as `of_line` returns them.
            name: Name of the line, which has text.

        Raises:
            OptionError: Neither the line nor the options name a language.
        """
        languages = self.inline_languages
        if len(languages) > 1 and options.target_language is None:
            raise OptionError(
                f"target_language is not given, and {name} does not begin with a language such as "
                f">>{min(languages)}<<; choose one of {format_languages(languages)}."
            )

    def of_source(self, options: SearchOptions) -> list[int]:
        """Return the tokens before a source text; `check` must have accepted the options."""
        tokens = [*self.source]
        if self.source_languages and options.source_language is not None:
            tokens.append(self.source_languages[options.source_language])
        if self.inline_languages and options.target_language is not None:
            tokens.append(self.inline_languages[options.target_language])
        return tokens

    def of_target(self, options: SearchOptions) -> list[int]:
        """Return the forced prefix of a translation, encoded by `contract.unscored`."""
        tokens = [*self.target]
        languages = {} if self._before_source else self.target_languages
        if languages and options.target_language is not None:
            tokens.append(languages[options.target_language])
        return [unscored(token) for token in tokens]

    def check(self, options: SearchOptions, languages: tuple[str | None, str | None]) -> None:
        """Refuse language options that the model does not support.

        Args:
            options: Search options.
            languages: Source and target language of a bilingual model, where known.

        Raises:
            OptionError: A language is unknown to the model, or a required language is missing.
        """
        for name, tokens, wanted, own, needed in (
            ("source_language", self.source_languages, options.source_language, languages[0], True),
            (
                "target_language", self.target_languages, options.target_language, languages[1],
                not self._before_source,
            ),
        ):  # fmt: skip
            if tokens:
                _check_language(name, tokens, wanted, needed)
            elif wanted not in (None, own):
                raise OptionError(
                    f"{name} {wanted!r}: this model was made for {own or 'one language'} alone; "
                    f"leave {name} out."
                )


def _check_language(name: str, tokens: dict[str, int], wanted: str | None, needed: bool) -> None:
    if wanted is None:
        if needed:
            raise OptionError(
                f"{name} is not given, and this model translates between several languages; "
                f"choose one of {format_languages(tokens)}."
            )
        return
    if wanted not in tokens:
        near = difflib.get_close_matches(wanted, tokens, n=3, cutoff=0.5)
        hint = f"do you mean {' or '.join(near)}? It knows" if near else "choose one of"
        raise OptionError(
            f"{name} {wanted!r} is unknown to this model; {hint} {format_languages(tokens)}."
        )


def format_languages(tokens: dict[str, int]) -> str:
    """Format the first languages in alphabetical order and the number of others."""
    names = sorted(tokens)
    rest = len(names) - _MOST_LANGUAGES
    return ", ".join(names[:_MOST_LANGUAGES]) + (f" and {rest} more" if rest > 0 else "")
