"""Bound of a value in a graph; passes compute it (value_bounds.py) and hand it to other graphs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """Bound of a value whose last axis is features, or was before keys were transposed.

    Attributes:
        columns: Bound of each feature's magnitude; a single number bounds any number of features.
        norm: Bound of the Euclidean norm of the features of one position.
    """

    columns: Vector
    norm: float

    @classmethod
    def of(cls, columns: Vector, norm: float = math.inf) -> Bound:
        """Make a bound whose norm is at most the norm of its columns, if those are all known."""
        return cls(columns, min(norm, float(np.linalg.norm(columns))) if len(columns) > 1 else norm)

    @property
    def largest(self) -> float:
        """Bound of the magnitude of any element."""
        return min(float(self.columns.max()), self.norm)

    def __add__(self, other: Bound) -> Bound:
        columns = self.columns + other.columns
        # A single broadcast number adds to every feature.
        norm = sum(x.norm * math.sqrt(len(columns) / len(x.columns)) for x in (self, other))
        return Bound.of(columns, norm)
