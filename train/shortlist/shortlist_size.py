"""Size of a shortlist and iterations of its learning, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.runtime.errors import OptionError

#: Iterations of expectation maximization.
ITERATIONS = 5


@dataclass(frozen=True)
class ShortlistSize:
    """Size of a shortlist's table.

    Attributes:
        frequent: F: number of most frequent target tokens, which are in every list.
        best: C: maximum number of translations of a source token.
        min_probability: Minimum probability of a translation.
    """

    frequent: int = 100
    best: int = 100
    min_probability: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("frequent", "best"):
            if getattr(self, name) < 1:
                raise OptionError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not 0.0 < self.min_probability < 1.0:
            raise OptionError(
                f"min_probability is {self.min_probability}; it must be between 0 and 1."
            )
