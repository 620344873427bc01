"""Annotation of training pairs with the target phrases of a glossary (`data prepare`)."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from translate_trt.runtime.bundle.term_annotation import APPEND, TermAnnotation
from translate_trt.runtime.errors import InputError, OptionError
from translate_trt.runtime.io.lines import is_stream
from translate_trt.runtime.text.glossary import Glossary


@dataclass(frozen=True)
class TerminologyOptions:
    """Annotation of training pairs.

    Attributes:
        terminology: File of the glossary.
        terminology_form: Form of `TermAnnotation`.
        terminology_share: Share of the pairs with terms on both sides that are annotated.
        terminology_ignore_case: Whether phrases match in any case.

    Raises:
        OptionError: A value is out of range.
    """

    terminology: Path
    terminology_form: str = APPEND
    terminology_share: float = 0.5
    terminology_ignore_case: bool = False

    def __post_init__(self) -> None:
        TermAnnotation(self.terminology_form)  # checks the form
        if not 0 < self.terminology_share <= 1:
            raise OptionError(
                f"terminology_share is {self.terminology_share}; it must be above 0 and at most 1."
            )

    @property
    def annotation(self) -> TermAnnotation:
        """Form of the annotations."""
        return TermAnnotation(self.terminology_form)

    def glossary(self) -> Glossary:
        """Read the glossary, once per process.

        Raises:
            InputError: The file cannot be read more than once, or is no glossary.
        """
        if is_stream(str(self.terminology)):
            raise InputError(
                f"{self.terminology} is a pipe, and every process reads the glossary; write it to "
                "a file first."
            )
        return _glossary(self.terminology, self.terminology_ignore_case)

    def annotate(
        self, source: list[str], target: list[str], seed: int
    ) -> tuple[list[str], list[str], int]:
        """Annotate a share of the pairs, and escape the symbols in all others.

        The choice depends on the seed and the text of a pair alone, not on its place.

        Args:
            source: Source lines.
            target: Target lines, one per source line.
            seed: Seed of the choice.

        Returns:
            Source lines, target lines, and the number of annotated pairs.
        """
        annotation, glossary, annotated = self.annotation, self.glossary(), 0
        sources = []
        for line, translation in zip(source, target, strict=True):
            found = None
            if _draw(seed, line, translation) < self.terminology_share:
                found = annotation.annotate_pair(line, translation, glossary)
            annotated += found is not None
            sources.append(annotation.escape(line) if found is None else found)
        return sources, [annotation.escape(line) for line in target], annotated

    def record(self, annotated: int) -> dict[str, Any]:
        """Return the record in data.json, of which `PreparedData` reads the annotation."""
        return {
            "annotation": self.annotation.to_json(),
            "annotated": annotated,
            "glossary": str(self.terminology),
            "entries": len(self.glossary().entries),
            "share": self.terminology_share,
            "ignore_case": self.terminology_ignore_case,
        }


@functools.lru_cache(maxsize=1)
def _glossary(path: Path, ignore_case: bool) -> Glossary:
    return Glossary.read(path, ignore_case)


def _draw(seed: int, source: str, target: str) -> float:
    """Draw a number from 0 to 1 for a pair."""
    text = f"{seed}\n{source}\n{target}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) / 2**64
