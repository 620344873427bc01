"""Systems that are compared: ours and each peer behind one narrow interface."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from translate_trt.runtime import SearchOptions, Translator

OURS = "translate-trt"


@dataclass(frozen=True)
class Setting:
    """System and how it runs."""

    system: str  # a key of SYSTEMS
    precision: str = "int8"  # or "fp32"

    # ---- cores and batches: each system is measured at its own best ----
    workers: int = 1  # batches translated side by side
    threads: int = 1  # of each worker
    batch_tokens: int = 512  # source tokens of a batch, padding included
    weights: str = ""  # format of packed int8 weights, where a system has several (Marian)
    environment: tuple[
        tuple[str, str], ...
    ] = ()  # variables that the system reads when it is imported

    # ---- the search ----
    beam_size: int = 4
    length_penalty: float = 0.6
    # CTranslate2, fairseq and Hugging Face divide by length ** alpha, and can stop a sentence once
    # its pool of finished hypotheses is full. Ours supports both; its default is the paper's rule,
    # which searches longer.
    paper_rule: bool = False
    shortlist: bool = False  # restrict the vocabulary of a sentence to its shortlist

    @property
    def label(self) -> str:
        """Name of the row in tables."""
        ends = (
            f", beam {self.beam_size}" if self.beam_size != 4 else "",
            ", paper's rule" if self.paper_rule else "",
            ", shortlist" if self.shortlist else "",
        )
        return f"{self.system} {self.precision}{''.join(ends)}"

    def search_options(self) -> SearchOptions:
        """Return the search options of ours and of the PyTorch reference."""
        if self.paper_rule:
            return SearchOptions(self.beam_size, self.length_penalty)
        return SearchOptions(
            self.beam_size, self.length_penalty, length_penalty_form="length", early_stopping=True
        )


@dataclass(frozen=True)
class Models:
    """One model in the formats of all systems."""

    checkpoint: Path
    bundle: Path
    converted: Path  # with a folder per peer and precision


class System(Protocol):
    """Interface of a loaded system."""

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the best translations; token ids on both sides have no start or end symbols."""


class Ours:
    """Bundle behind the public API."""

    def __init__(self, setting: Setting, models: Models) -> None:
        self._options = setting.search_options()
        self._translator = Translator(
            models.bundle,
            f"onnx-{setting.precision}",
            shortlist=setting.shortlist,
            threads=setting.threads,
            batch_tokens=setting.batch_tokens,
            workers=setting.workers,
        )

    def translate(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        found = self._translator.translate_ids(sources, self._options)
        return [list(hypotheses[0].tokens) for hypotheses in found]


#: Module and class of each system, imported only in the process that runs it: libraries of one
#: system must not count in the memory or start-up of another.
SYSTEMS = {
    OURS: ("systems", "Ours"),
    "ctranslate2": ("peers", "CTranslate2"),
    "marian": ("marian", "Marian"),
    "torch": ("peers", "Torch"),
    "torch-compiled": ("peers", "CompiledTorch"),
    "onnx-host-search": ("peers", "HostSearch"),
}


def open_system(setting: Setting, models: Models) -> System:
    """Load a system in this process."""
    module, name = SYSTEMS[setting.system]
    opened: System = getattr(importlib.import_module(module), name)(setting, models)
    return opened
