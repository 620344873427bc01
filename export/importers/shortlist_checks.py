"""Checks of lexical shortlists that importers read."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from translate_trt.runtime.errors import InputError

log = logging.getLogger("translate_trt")

#: Largest tables: in memory, each has so many numbers for every source token.
MOST = 1024


def check_sizes(path: Path, frequent: int, longest: int, remedy: str) -> None:
    """Check the sizes of a shortlist before memory is allocated for its table.

    Args:
        path: Path of the shortlist, for error messages.
        frequent: Number of tokens that are in every list.
        longest: Largest number of translations of a token.
        remedy: Advice for the user.

    Raises:
        InputError: A size is too large.
    """
    for what, count in (("frequent tokens", frequent), ("translations of a token", longest)):
        if count > MOST:
            raise InputError(
                f"{path} has {count:,} {what}; at most {MOST:,} are supported. {remedy}"
            )


@dataclass
class Fit:
    """Number of translations in a shortlist whose two tokens the model has.

    Attributes:
        path: Path of the shortlist, for messages.
        sources: Tokens of the source vocabulary.
        targets: Tokens of the target vocabulary.
        translations: Number of translations.
        known: Number of those with two tokens of the model.
        swapped: Number of those that would be known if source and target were exchanged.
    """

    path: Path
    sources: Collection[str]
    targets: Collection[str]
    translations: int = 0
    known: int = 0
    swapped: int = 0

    def add(self, source: str, target: str) -> None:
        """Count a translation."""
        self.translations += 1
        self.known += source in self.sources and target in self.targets
        self.swapped += target in self.sources and source in self.targets

    def check(self) -> None:
        """Log a warning if some translations have tokens that the model lacks.

        Raises:
            InputError: All translations have such tokens.
        """
        unknown = self.translations - self.known
        if not unknown:
            return
        hint = ""
        if self.swapped > self.known:
            hint = (
                f" Exchanged, source and target would fit {self.swapped / self.translations:.1%} "
                "of them: the shortlist may be for the other direction, or its columns swapped."
            )
        if not self.known:
            raise InputError(
                f"{self.path}: none of its {self.translations:,} translations has only tokens of "
                f"the model; it belongs to another model.{hint}"
            )
        log.warning(
            "%s: %s of %s translations (%s) have tokens that the model lacks, which count as "
            "unknown.%s", self.path, f"{unknown:,}", f"{self.translations:,}",
            f"{unknown / self.translations:.1%}", hint,
        )  # fmt: skip
