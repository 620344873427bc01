"""Options of the selection of training pairs."""

from __future__ import annotations

from dataclasses import dataclass

from translate_trt.train.setting import check_settings, setting


@dataclass(frozen=True)
class SelectionOptions:
    """Options of the selection.

    Raises:
        OptionError: A value is out of range.
    """

    hypotheses: int | None = setting(
        None, "Hypotheses of the teacher per line. [8 with references, else 1]",
        flag="--n-best", least=1,
    )  # fmt: skip
    metric: str = setting(
        "bleu", "Sentence metric that compares hypotheses with the reference.", ("bleu", "chrf")
    )
    keep: float = setting(
        1.0, "Share of the pairs to keep: those that the teacher finds most probable per token.",
        above=0, most=1,
    )  # fmt: skip
    keep_references: bool = setting(False, "Train on the references, too.")

    def __post_init__(self) -> None:
        check_settings(self)
