"""Names of lines in error messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LineNames:
    """Names of the lines of a call in error messages: those given, or numbers.

    Attributes:
        given: A name for each line, such as "sentence 3"; None: "line 1 of this call" and so on.
        first: Number of the first line, if none are given.
        noun: Word for a line, if none are given.
    """

    given: Sequence[str] | None = None
    first: int = 1
    noun: str = "line"

    def __getitem__(self, index: int) -> str:
        if self.given is not None:
            return self.given[index]
        return f"{self.noun} {self.first + index} of this call"


#: Names of lines by their numbers, from 1.
NUMBERED = LineNames()
