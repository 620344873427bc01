"""What the server's Python backend gives a model: `triton_python_backend_utils` without a server.

Tensors are held to what the real ones take; the rest does nothing but keep what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


class TritonError:
    INTERNAL, INVALID_ARG, CANCELLED = 1, 3, 7

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self.message, self.code = message, code


class Tensor:
    def __init__(self, name: str, array: NDArray[Any]) -> None:
        assert array.dtype != np.object_ or all(isinstance(one, bytes) for one in array.flat)
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._array


class InferenceResponse:
    def __init__(
        self, output_tensors: Sequence[Tensor] = (), error: TritonError | None = None
    ) -> None:
        self.outputs = {one.name(): one.as_numpy() for one in output_tensors}
        self.error = error


class Request:
    """A client's; cancelled once it has been asked `cancelled_after` times whether it is."""

    def __init__(
        self,
        inputs: Mapping[str, NDArray[Any]],
        outputs: Sequence[str],
        cancelled_after: int | None = None,
    ) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._asks_left = cancelled_after

    def inputs(self) -> list[Tensor]:
        return [Tensor(*one) for one in self._inputs.items()]

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def is_cancelled(self) -> bool:
        if self._asks_left is None:
            return False
        self._asks_left -= 1
        return self._asks_left < 0
