"""Size of a shortlist and iterations of its learning, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.runtime.settings import check_settings, setting

#: Iterations of expectation maximization.
ITERATIONS = 5


@dataclass(frozen=True)
class ShortlistSize:
    """Size of a shortlist's table.

    Raises:
        OptionError: A value is out of range.
    """

    frequent: int = setting(
        100, "F: number of most frequent target tokens, which are in every list.", least=1
    )
    best: int = setting(100, "C: maximum number of translations of a source token.", least=1)
    min_probability: float = setting(
        1e-5, "Minimum probability of a translation.", above=0, below=1
    )

    def __post_init__(self) -> None:
        check_settings(self)
