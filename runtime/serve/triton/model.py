"""What Triton's Python backend runs; `model.py` of a model repository imports it."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import logging
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import triton_python_backend_utils as triton

from translate_trt.runtime.cores import available_cores
from translate_trt.runtime.errors import BundleError, InputError, OptionError
from translate_trt.runtime.process import return_large_blocks
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.admission import Admission, BusyError
from translate_trt.runtime.serve.triton.batch import Answer, Limits, read_lines, write_outputs
from translate_trt.runtime.serve.triton.metrics import Metrics, Outcome
from translate_trt.runtime.serve.triton.watch import Watch
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

_SECONDS_TO_CANCEL = 0.2  # in which one is noticed that waits in the service
# Requests whose characters, times their beams, are more are cut into pieces and tokens in a thread
# of its own: 10,000 characters take up to 0.1 s, in which the server could hand nothing over.
_EXPENSIVE = 20_000
# Together, requests in an instance cost at most so many times what one may cost.
_COST_OF_ALL = 16


class TritonPythonModel:
    """A bundle. The server calls `execute` with requests that wait, others being translated."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle that the configuration names.

        Args:
            args: `model_config` as JSON, `model_repository` and `model_version`, which say where
                the model lies, `model_instance_kind` and `model_instance_device_id`.

        Raises:
            TranslateTrtError: as for `Translator`; the server logs it and does not serve the model.
        """
        self._watch = Watch()
        try:
            self._load(args)
        except BaseException:
            self._watch.stop()  # the server knows
            raise
        self._watch.arm()

    def _load(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        given = {name: one["string_value"] for name, one in config["parameters"].items()}
        if given.get("format") != interface.FORMAT:
            raise BundleError(
                f"{args['model_repository']} was made by another version of translate-trt (format "
                f"{given.get('format')}, this one reads {interface.FORMAT}); make it again with "
                "translate-trt triton."
            )
        threads = int(given.get("threads", 1))
        processes = sum(group["count"] for group in config["instance_group"])
        workers = given.get("workers", max(1, available_cores() // (threads * processes)))
        self._limits = Limits(
            int(given["max_beam_size"]), int(given["max_characters"]), int(given["max_cost"])
        )
        return_large_blocks()
        # An absolute path stays what it is.
        home = Path(args["model_repository"], args["model_version"])
        self._translator = Translator(
            home / given["bundle"],
            given["target"],
            threads=threads,
            workers=int(workers),
            batch_tokens=int(given["batch_tokens"]),
            device=_device(args),
            trust_code=given["trust_code"] == "true",
        )
        self._service = TranslationService(self._translator)
        self._admission = Admission(int(given["capacity"]), _COST_OF_ALL * self._limits.cost)
        self._metrics = Metrics(
            {
                "model": args["model_name"],
                "version": args["model_version"],
                "instance": args["model_instance_name"],
            },
            self._service.statistics,
            lambda: self._admission.requests,
        )
        self._reader = ThreadPoolExecutor(1, "reader")
        self._responder = _Responder(self._service, self._admission, self._metrics)

    def execute(self, requests: list[Any]) -> None:
        """Hand requests over to the service; each is answered when it is done.

        This never waits: a request that the instance has no capacity for is refused.
        """
        for request in requests:
            client = _Client(
                request.get_response_sender(), request.requested_output_names(), request.timeout()
            )
            try:
                self._accept(request, client)
            except (InputError, OptionError) as error:
                self._responder.refuse(client, error, Outcome.REFUSED)
            except BusyError as error:
                self._responder.refuse(client, error, Outcome.BUSY)
            except Exception as error:  # its neighbours get their answers, whatever it was
                log.exception("a request could not be read")
                self._responder.refuse(client, error, Outcome.FAILED)

    def _accept(self, request: Any, client: _Client) -> None:
        if client.sender.is_cancelled():
            self._responder.refuse(client, None, Outcome.CANCELLED)
            return
        inputs = {one.name(): one.as_numpy() for one in request.inputs()}
        answer = Answer(read_lines(inputs, self._translator, self._limits), self._service)
        self._admission.admit(answer.cost)
        self._responder.expect(answer, client)
        if answer.cost > _EXPENSIVE:
            self._reader.submit(answer.send, self._responder.done)
        else:
            answer.send(self._responder.done)

    def finalize(self) -> None:
        """Answer what is under way."""
        self._watch.disarm()
        self._reader.shutdown()
        self._service.close()
        self._responder.close()
        self._metrics.close()


@dataclass(frozen=True)
class _Client:
    """Client that waits for an answer.

    Attributes:
        sender: takes the answer.
        wanted: outputs that are asked for.
        timeout: microseconds after which nobody waits any more; 0: none.
        since: when the instance took the request (`time.monotonic`).
    """

    sender: Any
    wanted: list[str]
    timeout: int
    since: float = field(default_factory=time.monotonic)

    @property
    def deadline(self) -> float:
        return self.since + self.timeout / 1e6


class _Responder:
    """Sends answers in a thread of its own, so that no worker waits for the server meanwhile."""

    def __init__(self, service: TranslationService, admission: Admission, metrics: Metrics) -> None:
        self._service, self._admission, self._metrics = service, admission, metrics
        self._answers: SimpleQueue[Answer | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._expected: dict[Answer, _Client] = {}
        self._deadlines: list[tuple[float, int, Answer]] = []  # a heap
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)
        self._thread.start()

    def expect(self, answer: Answer, client: _Client) -> None:
        """Answer that client once `done` is called, or its time is up."""
        with self._lock:
            self._expected[answer] = client
            if client.timeout:
                entry = (client.deadline, next(self._numbers), answer)
                heapq.heappush(self._deadlines, entry)

    def done(self, answer: Answer) -> None:
        """All sentences of an answer are."""
        self._answers.put(answer)

    def refuse(self, client: _Client, error: Exception | None, outcome: Outcome) -> None:
        """Answer a client that nothing is translated for."""
        self._send(client, _error(_message(error), outcome), outcome)

    def close(self) -> None:
        """Return once everybody has an answer; all answers must be done."""
        self._answers.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # without this thread nobody is answered any more
            _end_instance(error)

    def _serve(self) -> None:
        look = time.monotonic() + _SECONDS_TO_CANCEL
        while True:
            with contextlib.suppress(Empty):
                answer = self._answers.get(timeout=self._pause())
                if answer is None:
                    return
                with self._lock:
                    client = self._expected.pop(answer, None)
                if client is not None:  # else its time was up
                    self._respond(client, answer)
                self._admission.leave(answer.cost)
            self._give_up_late()
            if time.monotonic() > look:
                self._drop_cancelled()
                look = time.monotonic() + _SECONDS_TO_CANCEL
                if self._service.failed and not self._expected:
                    _end_instance("its workers have ended")

    def _pause(self) -> float:
        """Seconds to the next look at clients, or the next deadline."""
        with self._lock:
            first = self._deadlines[0][0] if self._deadlines else float("inf")
        return min(max(first - time.monotonic(), 0.0), _SECONDS_TO_CANCEL)

    def _give_up_late(self) -> None:
        """Answer whose time is up, and drop what was not begun."""
        while True:
            with self._lock:
                if not self._deadlines or self._deadlines[0][0] > time.monotonic():
                    return
                answer = heapq.heappop(self._deadlines)[2]
                client = self._expected.pop(answer, None)
            if client is not None:
                answer.cancel()
                message = (
                    f"the request's timeout of {client.timeout} microseconds was over before it "
                    "was translated; send it again later, or with a longer one."
                )
                self._send(client, _error(message, Outcome.TIMEOUT), Outcome.TIMEOUT)

    def _drop_cancelled(self) -> None:
        """Drop what waits for a batch and nobody waits for any more."""
        with self._lock:
            expected = list(self._expected.items())
        for answer, client in expected:
            # Asking is a message to the server and back, so ask of those alone that wait for long.
            late = time.monotonic() - client.since > _SECONDS_TO_CANCEL
            if late and client.sender.is_cancelled():
                answer.cancel()

    def _respond(self, client: _Client, answer: Answer) -> None:
        try:
            response, outcome = _response(client, answer)
        except Exception as error:  # the next ones get theirs, whatever it was
            log.exception("an answer could not be written")
            outcome = Outcome.FAILED
            response = _error(_message(error), outcome)
        self._send(client, response, outcome)

    def _send(self, client: _Client, response: Any, outcome: Outcome) -> None:
        self._metrics.answered(outcome, time.monotonic() - client.since)
        try:
            client.sender.send(response, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception:  # of the backend, which has its own kinds
            log.exception("an answer could not be sent")


def _end_instance(why: object) -> None:
    """End this process, which has failed for good; `Watch` ends the server."""
    with contextlib.suppress(BaseException):
        log.critical("this instance cannot go on and ends: %r", why)
    os._exit(1)


def _device(args: dict[str, str]) -> str:
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


# Names, as the backend fills its module in after this one is imported.
_CODES = {
    Outcome.REFUSED: "INVALID_ARG",
    Outcome.BUSY: "UNAVAILABLE",
    Outcome.TIMEOUT: "UNAVAILABLE",
    Outcome.CANCELLED: "CANCELLED",
    Outcome.FAILED: "INTERNAL",
}


def _response(client: _Client, answer: Answer) -> tuple[Any, Outcome]:
    found = answer.result()
    if isinstance(found, list):
        outputs = write_outputs(answer.lines, found, client.wanted)
        tensors = [triton.Tensor(*output) for output in outputs.items()]
        return triton.InferenceResponse(tensors), Outcome.SUCCESS
    outcome = Outcome.FAILED
    if found is None:
        outcome = Outcome.CANCELLED
    elif isinstance(found, (InputError, OptionError)):
        outcome = Outcome.REFUSED
    return _error(_message(found), outcome), outcome


def _message(error: Exception | None) -> str:
    return "the request was cancelled" if error is None else str(error) or repr(error)


def _error(message: str, outcome: Outcome) -> Any:
    code = getattr(triton.TritonError, _CODES[outcome])
    return triton.InferenceResponse(error=triton.TritonError(message, code))
