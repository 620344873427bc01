"""Tokens around texts as a user writes them: "<s> {text} </s>", "{source_language} {text} </s>"."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from translate_trt.runtime.bundle.prompt import Prompt
from translate_trt.runtime.errors import InputError

_TEXT = "{text}"
_SOURCE_LANGUAGE = "{source_language}"
_TARGET_LANGUAGE = "{target_language}"
# In the order in which `Prompt` has them.
_LANGUAGES = (_SOURCE_LANGUAGE, _TARGET_LANGUAGE)


@dataclass(frozen=True)
class Format:
    """Tokens and languages before texts, and whether the end symbol stands behind the source.

    Attributes:
        source: before the source's text; a language is one of the two in braces.
        target: before the translation's.
        source_end: the source ends with the end symbol.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    source_end: bool

    @classmethod
    def parse(cls, source: str, target: str, end: str) -> Format:
        """Read what was given as --source-format and --target-prefix.

        Args:
            source: tokens and languages around "{text}", with spaces between.
            target: tokens and languages before the translation, with spaces between.
            end: name of the end symbol.

        Raises:
            InputError: it is something else, or not represented.
        """
        words, prefix = source.split(), tuple(target.split())
        if words.count(_TEXT) != 1:
            raise InputError(
                f"--source-format {source!r}: {_TEXT} must stand in it once, as in "
                f"'<s> {_TEXT} {end}'."
            )
        place = words.index(_TEXT)
        before, behind = tuple(words[:place]), words[place + 1 :]
        if behind not in ([], [end]):
            raise InputError(
                f"--source-format {source!r}: {' '.join(behind)} stands behind the text; "
                f"translate-trt represents the end symbol {end} there, or nothing."
            )
        _check("--source-format", source, before, _LANGUAGES)
        _check("--target-prefix", target, prefix, (_TARGET_LANGUAGE,))
        if _TARGET_LANGUAGE in before and _TARGET_LANGUAGE in prefix:
            raise InputError(
                f"{_TARGET_LANGUAGE} is in --source-format and in --target-prefix; translate-trt "
                "represents one of them."
            )
        return cls(before, prefix, bool(behind))

    @property
    def has_languages(self) -> bool:
        """Whether a language stands anywhere."""
        return any(word in _LANGUAGES for word in (*self.source, *self.target))

    def prompt(
        self,
        names: tuple[Sequence[str], Sequence[str]],
        languages: tuple[Mapping[str, int], Mapping[str, int]],
    ) -> Prompt:
        """The same in token ids.

        Args:
            names: tokens of source and target, by our ids.
            languages: ids by language, of source and target.

        Raises:
            InputError: a token is not in the vocabulary, or no language is.
        """
        before_source = _TARGET_LANGUAGE in self.source
        source, target = (dict(side) for side in languages)
        for word, known in (
            (_SOURCE_LANGUAGE, source), (_TARGET_LANGUAGE, source if before_source else target)
        ):  # fmt: skip
            if word in (*self.source, *self.target) and not known:
                raise InputError(
                    f"{word}: no token of the vocabulary is a language such as __de__, deu_Latn "
                    "or de_DE."
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
    """Tokens first, then languages in the order of `Prompt`."""
    languages = [word for word in words if word in _LANGUAGES]
    ordered = [word for word in allowed if word in languages]
    if languages != ordered or words[len(words) - len(languages) :] != tuple(languages):
        raise InputError(
            f"{flag} {given!r}: represented are tokens first, and then {' '.join(allowed)} or "
            "none of these, each once."
        )


def _ids(words: tuple[str, ...], names: Sequence[str]) -> tuple[int, ...]:
    tokens = [word for word in words if word not in _LANGUAGES]
    for token in tokens:
        if token not in names:
            raise InputError(f"the vocabulary has no token {token!r}, which a format names.")
    return tuple(names.index(token) for token in tokens)
