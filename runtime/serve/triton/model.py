"""Triton Python backend model, which `model.py` of a model repository imports."""

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
from translate_trt.runtime.json_lines import WordsOf
from translate_trt.runtime.process import return_large_blocks
from translate_trt.runtime.serve.admission import Admission, BusyError
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.batch import Answer, Limits, read_lines, write_outputs
from translate_trt.runtime.serve.triton.metrics import Metrics, Outcome
from translate_trt.runtime.serve.triton.watch import Watch
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator

log = logging.getLogger("translate_trt")

_SECONDS_TO_CANCEL = 0.2  # maximum delay in noticing that a client has cancelled
# Requests above this cost are tokenized in a separate thread: 10,000 characters take up to 0.1 s,
# which would block the server's next call.
_EXPENSIVE = 20_000
# Cost budget of an instance in multiples of the maximum cost of one request.
_COST_OF_ALL = 16


class TritonPythonModel:
    """Triton model that serves a bundle; `execute` accepts requests while others are running."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle that the configuration names.

        Args:
            args: Arguments of the server: `model_config` as JSON, `model_repository` and
                `model_version`, `model_instance_kind` and `model_instance_device_id`.

        Raises:
            TranslateTrtError: See `Translator`. The server logs the error and does not serve the
                model.
        """
        self._watch = Watch()
        try:
            self._load(args)
        except BaseException:
            self._watch.stop()  # the server handles the error
            raise
        self._watch.arm()

    def _load(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: one["string_value"] for name, one in config["parameters"].items()}
        if parameters.get("format") != interface.FORMAT:
            raise BundleError(
                f"{args['model_repository']} was created by another version of translate-trt "
                f"(format {parameters.get('format')}, this version reads {interface.FORMAT}); "
                "create it again with translate-trt triton."
            )
        threads, device = int(parameters.get("threads", 1)), _device(args)
        workers = _number(parameters, "workers")
        if workers is None and device == "cpu":
            processes = sum(group["count"] for group in config["instance_group"])
            workers = max(1, available_cores() // (threads * processes))
        self._limits = Limits(
            int(parameters["max_beam_size"]),
            int(parameters["max_characters"]),
            int(parameters["max_cost"]),
        )
        return_large_blocks()
        # `/` with an absolute path yields that path.
        home = Path(args["model_repository"], args["model_version"])
        self._translator = Translator(
            home / parameters["bundle"],
            parameters["target"],
            threads=threads,
            workers=workers,
            batch_tokens=_number(parameters, "batch_tokens"),
            cache_mib=_number(parameters, "cache_mib") or 0,
            device=device,
            trust_code=parameters["trust_code"] == "true",
        )
        self._service = TranslationService(self._translator)
        self._admission = Admission(int(parameters["capacity"]), _COST_OF_ALL * self._limits.cost)
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
        self._responder = _Responder(
            self._service, self._admission, self._metrics, self._translator.words
        )

    def execute(self, requests: list[Any]) -> None:
        """Submit requests to the service; each is answered when it is done.

        This method never blocks: it refuses requests when the instance is at its capacity.
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
            except Exception as error:  # the other requests must still be answered
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
        """Finish and answer all requests."""
        self._watch.disarm()
        self._reader.shutdown()
        self._service.close()
        self._responder.close()
        self._metrics.close()


@dataclass(frozen=True)
class _Client:
    """Client of a request.

    Attributes:
        sender: Response sender of the backend.
        wanted: Names of the requested outputs.
        timeout: Timeout in microseconds; 0 for none.
        since: Arrival time of the request (`time.monotonic`).
    """

    sender: Any
    wanted: list[str]
    timeout: int
    since: float = field(default_factory=time.monotonic)


class _Responder:
    """Thread that sends answers, so that workers do not wait for the server."""

    def __init__(
        self,
        service: TranslationService,
        admission: Admission,
        metrics: Metrics,
        words: WordsOf,
    ) -> None:
        self._service, self._admission, self._metrics = service, admission, metrics
        self._words = words
        self._answers: SimpleQueue[Answer | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._expected: dict[Answer, _Client] = {}
        self._deadlines: list[tuple[float, int, Answer]] = []  # a heap
        self._numbers = itertools.count()
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)
        self._thread.start()

    def expect(self, answer: Answer, client: _Client) -> None:
        """Register a client, which is answered on `done` or when its timeout expires."""
        with self._lock:
            self._expected[answer] = client
            if client.timeout:
                deadline = client.since + client.timeout / 1e6
                entry = (deadline, next(self._numbers), answer)
                heapq.heappush(self._deadlines, entry)
                if len(self._deadlines) > 2 * len(self._expected):  # most are answered
                    self._deadlines = [one for one in self._deadlines if one[2] in self._expected]
                    heapq.heapify(self._deadlines)

    def done(self, answer: Answer) -> None:
        """Enqueue an answer whose sentences are all done."""
        self._answers.put(answer)

    def refuse(self, client: _Client, error: Exception | None, outcome: Outcome) -> None:
        """Send an error to a client whose request was not accepted."""
        self._send(client, _error(_message(error), outcome), outcome)

    def close(self) -> None:
        """Send all remaining answers, which must be done, and stop."""
        self._answers.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # without this thread no client would be answered
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
                if client is not None:  # None after a timeout
                    self._respond(client, answer)
                self._admission.leave(answer.cost)
            self._give_up_late()
            if time.monotonic() > look:
                self._drop_cancelled()
                look = time.monotonic() + _SECONDS_TO_CANCEL
                if self._service.failed and not self._expected:
                    _end_instance("its workers have ended")

    def _pause(self) -> float:
        """Return the seconds until the next deadline or check for cancelled clients."""
        with self._lock:
            first = self._deadlines[0][0] if self._deadlines else float("inf")
        return min(max(first - time.monotonic(), 0.0), _SECONDS_TO_CANCEL)

    def _give_up_late(self) -> None:
        """Answer clients whose timeout has expired, and cancel their sentences."""
        while True:
            with self._lock:
                if not self._deadlines or self._deadlines[0][0] > time.monotonic():
                    return
                answer = heapq.heappop(self._deadlines)[2]
                client = self._expected.pop(answer, None)
            if client is not None:
                answer.cancel()
                message = (
                    f"the request's timeout of {client.timeout} microseconds expired before it "
                    "was translated; send it again later, or with a longer timeout."
                )
                self._send(client, _error(message, Outcome.TIMEOUT), Outcome.TIMEOUT)

    def _drop_cancelled(self) -> None:
        """Cancel the sentences of clients that have cancelled their requests."""
        with self._lock:
            expected = list(self._expected.items())
        for answer, client in expected:
            # The query is a round trip to the server, so only older requests are checked.
            late = time.monotonic() - client.since > _SECONDS_TO_CANCEL
            if late and client.sender.is_cancelled():
                answer.cancel()

    def _respond(self, client: _Client, answer: Answer) -> None:
        try:
            response, outcome = _response(client, answer, self._words)
        except Exception as error:  # other clients must still be answered
            log.exception("an answer could not be written")
            outcome = Outcome.FAILED
            response = _error(_message(error), outcome)
        self._send(client, response, outcome)

    def _send(self, client: _Client, response: Any, outcome: Outcome) -> None:
        self._metrics.answered(outcome, time.monotonic() - client.since)
        try:
            client.sender.send(response, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        except Exception:  # Triton's own exception classes
            log.exception("an answer could not be sent")


def _end_instance(why: object) -> None:
    """Exit this process after a fatal failure; `Watch` then terminates the server."""
    with contextlib.suppress(BaseException):
        log.critical("this instance has failed and exits: %r", why)
    os._exit(1)


def _number(parameters: dict[str, str], name: str) -> int | None:
    """Return a parameter; None for the translator's default."""
    return int(parameters[name]) if name in parameters else None


def _device(args: dict[str, str]) -> str:
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


# Names of error codes, because the backend defines its constants after this module is imported.
_CODES = {
    Outcome.REFUSED: "INVALID_ARG",
    Outcome.BUSY: "UNAVAILABLE",
    Outcome.TIMEOUT: "UNAVAILABLE",
    Outcome.CANCELLED: "CANCELLED",
    Outcome.FAILED: "INTERNAL",
}


def _response(client: _Client, answer: Answer, words: WordsOf) -> tuple[Any, Outcome]:
    found = answer.result()
    if isinstance(found, list):
        outputs = write_outputs(answer.lines, found, client.wanted, words)
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
