"""Fake of `triton_python_backend_utils`, the interface of Triton's Python backend.

Tensors are held to what the real ones take; the rest does nothing but keep what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Event
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray


class TritonError:
    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = 1, 3, 4, 7

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


class Metric:
    """Value of a metric, or the observations of a histogram."""

    def __init__(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> None:
        self.labels, self.buckets = dict(labels), list(buckets)
        self.value, self.observed = 0.0, list[float]()

    def increment(self, value: float) -> None:
        assert value > 0
        self.value += value

    def set(self, value: float) -> None:
        self.value = value

    def observe(self, value: float) -> None:
        assert self.buckets
        self.observed.append(value)


class MetricFamily:
    COUNTER, GAUGE, HISTOGRAM = range(3)
    ALL: ClassVar[dict[str, MetricFamily]] = {}

    def __init__(self, name: str, description: str, kind: int) -> None:
        self.kind, self.metrics = kind, list[Metric]()
        self.ALL[name] = self

    def Metric(  # noqa: N802
        self, labels: Mapping[str, str], buckets: Sequence[float] = ()
    ) -> Metric:
        assert bool(buckets) == (self.kind == self.HISTOGRAM)
        self.metrics.append(Metric(labels, buckets))
        return self.metrics[-1]


TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class Sender:
    """Receiver of the single response to a request, from any thread."""

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
        """Wait for the response."""
        assert self._answered.wait(60)
        assert self._response is not None
        return self._response


class Request:
    """Request of a client."""

    def __init__(
        self, inputs: Mapping[str, NDArray[Any]], outputs: Sequence[str], timeout: int = 0
    ) -> None:
        self._inputs, self._outputs, self._timeout = inputs, outputs, timeout
        self.cancelled = Event()
        self.sender = Sender(self.cancelled)

    def inputs(self) -> list[Tensor]:
        return [Tensor(*one) for one in self._inputs.items()]

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)

    def timeout(self) -> int:
        return self._timeout

    def get_response_sender(self) -> Sender:
        return self.sender
