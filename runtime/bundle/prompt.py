"""What models read and write around a text: tokens that say languages, and the like.

A model of many languages is told by a token which one it shall write. In OPUS-MT it stands before
the source (Johnson et al. 2017, section 3); in M2M100 (Fan et al. 2021, section 2.1), NLLB and
mBART-50 the translation begins with it, and the source with the token of its own language.
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

# At the start of a line, in the manner of OPUS-MT.
_INLINE = re.compile(r"\s*>>([^<>\s]+)<<\s*")

#: Where the token of the target's language may stand.
SIDES = ("source", "target")


@dataclass(frozen=True)
class Prompt:
    """Tokens that stand before the text; none of them is text, so that no translation shows them.

    Attributes:
        source: every source begins with them (BART's begin symbol).
        target: every translation begins with them (BART's forced_bos_token_id).
        source_languages: by language, the token behind `source` that says what a source is in.
        target_languages: by language, the token that says what to translate into.
        target_side: "source" if that stands behind all these, before the source's text; "target" if
            the translation begins with it, behind `target`.
    """

    source: tuple[int, ...] = ()
    target: tuple[int, ...] = ()
    source_languages: dict[str, int] = field(default_factory=dict)
    target_languages: dict[str, int] = field(default_factory=dict)
    target_side: str = "target"

    @classmethod
    def from_json(cls, fields: Fields) -> Prompt:
        """Read what `to_json` made.

        Raises:
            BundleError: it is something else.
        """
        side = fields.text("target_side")
        if side not in SIDES:
            fields.fail("target_side", f"one of {', '.join(SIDES)}", side)
        return cls(
            tuple(fields.integers("source", 0)),
            tuple(fields.integers("target", 0)),
            fields.object("source_languages").all_integers(0),
            fields.object("target_languages").all_integers(0),
            side,
        )

    def to_json(self) -> dict[str, Any]:
        """The same as values that JSON knows."""
        return {**vars(self), "source": [*self.source], "target": [*self.target]}

    def largest(self) -> tuple[int, int]:
        """The largest token before a source and before a translation; -1: there is none."""
        source = [*self.source, *self.source_languages.values()]
        target = [*self.target]
        (source if self._before_source else target).extend(self.target_languages.values())
        return max(source, default=-1), max(target, default=-1)

    @property
    def _before_source(self) -> bool:
        return self.target_side == "source"

    @property
    def source_length(self) -> int:
        """So many tokens stand before a source at most."""
        language = bool(self.target_languages) and self._before_source
        return len(self.source) + bool(self.source_languages) + language

    def of_line(self, line: str, options: SearchOptions) -> tuple[str, SearchOptions]:
        """A line without the language that it begins with, and the options with that.

        Lines for OPUS-MT may say themselves what they shall be translated into, as
        ">>deu<< A text."; that counts for the whole line, in however many pieces it is translated.
        """
        if not self.target_languages or not self._before_source:
            return line, options
        found = _INLINE.match(line)
        if found is None or found[1] not in self.target_languages:
            return line, options
        return line[found.end() :], replace(options, target_language=found[1])

    def of_source(self, options: SearchOptions) -> list[int]:
        """The tokens before a source, once `check` has nothing against the options."""
        tokens = [*self.source]
        if self.source_languages and options.source_language is not None:
            tokens.append(self.source_languages[options.source_language])
        if self._before_source and self.target_languages and options.target_language is not None:
            tokens.append(self.target_languages[options.target_language])
        return tokens

    def of_target(self, options: SearchOptions) -> list[int]:
        """The same before a translation, as a forced prefix (`contract.unscored`)."""
        tokens = [*self.target]
        languages = {} if self._before_source else self.target_languages
        if languages and options.target_language is not None:
            tokens.append(languages[options.target_language])
        return [unscored(token) for token in tokens]

    def check(self, options: SearchOptions, languages: tuple[str | None, str | None]) -> None:
        """Find out whether a model of this prompt can do what the options say of languages.

        Args:
            options: of the search.
            languages: that the model was made for, source and target, where that is known.

        Raises:
            OptionError: it does not know a language, or has to be told one and is not.
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
                f"choose one of {listed(tokens)}."
            )
        return
    if wanted not in tokens:
        near = difflib.get_close_matches(wanted, tokens, n=3, cutoff=0.5)
        hint = f"do you mean {' or '.join(near)}? It knows" if near else "choose one of"
        raise OptionError(f"{name} {wanted!r} is unknown to this model; {hint} {listed(tokens)}.")


def listed(tokens: dict[str, int], most: int = 12) -> str:
    """The first languages by name, and how many more there are."""
    names = sorted(tokens)
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
