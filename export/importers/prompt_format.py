"""Parser of --source-format and --target-prefix, such as "{source_language} {text} </s>"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError

_TEXT = "{text}"
_SOURCE_LANGUAGE = "{source_language}"
_TARGET_LANGUAGE = "{target_language}"
# In the order of `Prompt`.
_LANGUAGES = (_SOURCE_LANGUAGE, _TARGET_LANGUAGE)


@dataclass(frozen=True)
class Format:
    """Tokens and language placeholders around texts.

    Attributes:
        source: Tokens and placeholders before a source.
        target: Tokens and placeholders before a translation.
        source_end: Whether a source ends with the end token.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    source_end: bool

    @classmethod
    def parse(cls, source: str, target: str, end: str) -> Format:
        """Parse --source-format and --target-prefix.

        Args:
            source: Space-separated tokens and placeholders around "{text}".
            target: Space-separated tokens and placeholders before a translation.
            end: Name of the end token.

        Raises:
            InputError: A format is malformed or not supported.
        """
        words, prefix = source.split(), tuple(target.split())
        if words.count(_TEXT) != 1:
            raise InputError(
                f"--source-format {source!r} must contain {_TEXT} exactly once, as in "
                f"'<s> {_TEXT} {end}'."
            )
        position = words.index(_TEXT)
        before, after = tuple(words[:position]), words[position + 1 :]
        if after not in ([], [end]):
            raise InputError(
                f"--source-format {source!r} has {' '.join(after)} after {_TEXT}; only the end "
                f"token {end}, or nothing, is supported there."
            )
        _check("--source-format", source, before, _LANGUAGES)
        _check("--target-prefix", target, prefix, (_TARGET_LANGUAGE,))
        if _TARGET_LANGUAGE in before and _TARGET_LANGUAGE in prefix:
            raise InputError(
                f"{_TARGET_LANGUAGE} is in --source-format and in --target-prefix; use it in one "
                "of them."
            )
        return cls(before, prefix, bool(after))

    @property
    def has_languages(self) -> bool:
        """Whether a format contains a language placeholder."""
        return any(word in _LANGUAGES for word in (*self.source, *self.target))

    def prompt(
        self,
        names: tuple[Sequence[str], Sequence[str]],
        languages: tuple[Mapping[str, int], Mapping[str, int]],
    ) -> Prompt:
        """Convert the format to token ids.

        Args:
            names: Tokens of source and target, by our ids.
            languages: Ids by language, of source and target.

        Raises:
            InputError: The vocabulary lacks a token, or has no languages.
        """
        before_source = _TARGET_LANGUAGE in self.source
        source, target = (dict(side) for side in languages)
        for word, known in (
            (_SOURCE_LANGUAGE, source), (_TARGET_LANGUAGE, source if before_source else target)
        ):  # fmt: skip
            if word in (*self.source, *self.target) and not known:
                raise InputError(
                    f"{word}: the vocabulary has no language tokens such as __de__, deu_Latn or "
                    "de_DE."
                )
        has_target = before_source or _TARGET_LANGUAGE in self.target
        return Prompt(
            source=_ids(self.source, names[0]),
            target=_ids(self.target, names[1]),
            source_languages=source if _SOURCE_LANGUAGE in self.source else {},
            target_languages=(source if before_source else target) if has_target else {},
            target_side="source" if before_source else "target",
        )


def _check(flag: str, given: str, words: tuple[str, ...], allowed: tuple[str, ...]) -> None:
    """Require tokens first, and then languages in the order of `Prompt`."""
    languages = [word for word in words if word in _LANGUAGES]
    ordered = [word for word in allowed if word in languages]
    if languages != ordered or words[len(words) - len(languages) :] != tuple(languages):
        raise InputError(
            f"{flag} {given!r} must consist of tokens, followed by at most one each of "
            f"{' '.join(allowed)}, in this order."
        )


def _ids(words: tuple[str, ...], names: Sequence[str]) -> tuple[int, ...]:
    tokens = [word for word in words if word not in _LANGUAGES]
    for token in tokens:
        if token not in names:
            raise InputError(
                f"the vocabulary has no token {token!r}, which --source-format or --target-prefix "
                "contains."
            )
    return tuple(names.index(token) for token in tokens)
