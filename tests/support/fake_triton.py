"""What the server's Python backend gives a model: `triton_python_backend_utils` without a server.

Tensors are held to what the real ones take; the rest does nothing but keep what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
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


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class Sender:
    """Takes the one answer to a request, from any thread."""

    def __init__(self, cancelled: Event) -> None:
        self._cancelled, self._answered = cancelled, Event()
        self._response: InferenceResponse | None = None

    def is_cancelled(self) -> bool:
        return self._cancelled.is_set()

    def send(self, response: InferenceResponse, flags: int) -> None:
        assert flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        assert not self._answered.is_set()
        self._response = response
        self._answered.set()

    def response(self) -> InferenceResponse:
        """Wait for it."""
        assert self._answered.wait(60)
        assert self._response is not None
        return self._response


class Request:
    """A client's."""

    def __init__(self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self.cancelled = Event()
        self.sender = Sender(self.cancelled)

    def inputs(self) -> list[Tensor]:
        return [Tensor(*one) for one in self._inputs.items()]

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def get_response_sender(self) -> Sender:
        return self.sender
