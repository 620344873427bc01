"""Detection of loops: hypotheses that repeat one phrase (rule 11 of docs/beam-search.md)."""

from __future__ import annotations

from collections.abc import Sequence

#: Number of steps between two checks of a sentence.
CHECK_STEPS = 8

#: Longest phrase in tokens.
MAX_PHRASE = 32

#: Copies and tokens that the shortest loop has.
MIN_COPIES, MIN_TOKENS = 4, 16


class LoopGuard:
    """Detector of loops in the hypotheses of one sentence.

    Args:
        source: Source tokens. If the source itself repeats a phrase, a loop has at least twice as
            many copies.
    """

    def __init__(self, source: Sequence[int]) -> None:
        self._copies = max(MIN_COPIES, 2 * _copies(source))

    def loop_length(self, tokens: Sequence[int]) -> int:
        """Return the number of tokens at the end that repeat a phrase; 0 without a loop."""
        for phrase in range(1, MAX_PHRASE + 1):
            repeated = 0
            for token, before in zip(reversed(tokens), reversed(tokens[:-phrase]), strict=False):
                if token != before:
                    break
                repeated += 1
            if repeated + phrase >= max(self._copies * phrase, MIN_TOKENS):
                return repeated
        return 0

    def leaving(
        self, beams: Sequence[Sequence[int]], forced: int, has_constraints: bool
    ) -> list[bool]:
        """Return whether each live hypothesis leaves the search.

        Loops do, and hypotheses that share the first third of a loop's repetitions and a token that
        was not forced, since they do not avoid the loop but interrupt it. With constraints, their
        phrases may interrupt it.

        Args:
            beams: Tokens of the live hypotheses.
            forced: Number of forced tokens, fewer than a hypothesis has.
            has_constraints: Whether the sentence has constraints.
        """
        shared = [
            tokens
            if has_constraints
            else tokens[: max(len(tokens) - 2 * repeated // 3, forced + 1)]
            for tokens in beams
            if (repeated := self.loop_length(tokens))
        ]
        return [any(tokens[: len(begin)] == begin for begin in shared) for tokens in beams]


def _copies(tokens: Sequence[int]) -> int:
    """Largest number of adjacent copies of a phrase."""
    most = 1
    for phrase in range(1, MAX_PHRASE + 1):
        repeated = 0  # tokens that equal the token one phrase before them
        for before, token in zip(tokens, tokens[phrase:], strict=False):
            repeated = repeated + 1 if token == before else 0
            most = max(most, repeated // phrase + 1)
    return most
