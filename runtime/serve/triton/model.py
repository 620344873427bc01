"""What Triton's Python backend runs; `model.py` of a model repository imports it."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import triton_python_backend_utils as triton

from translate_trt.runtime.errors import BundleError, InputError, OptionError
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.batch import Answer, Limits, read_lines, write_outputs
from translate_trt.runtime.service import TranslationService
from translate_trt.runtime.translator import Translator
from translate_trt.runtime.workers import available_cores

log = logging.getLogger("translate_trt")

_SECONDS_TO_CANCEL = 0.2  # in which one is noticed that waits in the service


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
        _end_with_server()
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
        self._limits = Limits(int(given["max_beam_size"]), int(given["max_characters"]))
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
        self._service = TranslationService(self._translator, capacity=int(given["capacity"]))
        self._responder = _Responder()

    def execute(self, requests: list[Any]) -> None:
        """Hand requests over to the service; each is answered when it is done.

        The server calls this again as soon as it returns, which it does once there is room for the
        sentences of all of them. So what the service has no room for waits in the server's queue.
        """
        for request in requests:
            client = _Client(request.get_response_sender(), request.requested_output_names())
            try:
                self._accept(request, client)
            except (InputError, OptionError) as error:
                client.send(_error(str(error), triton.TritonError.INVALID_ARG))
            except Exception as error:  # its neighbours get their answers, whatever it was
                log.exception("a request could not be read")
                client.send(_error(repr(error), triton.TritonError.INTERNAL))

    def _accept(self, request: Any, client: _Client) -> None:
        if client.sender.is_cancelled():
            client.send(_error("the request was cancelled", triton.TritonError.CANCELLED))
            return
        inputs = {one.name(): one.as_numpy() for one in request.inputs()}
        lines = read_lines(inputs, self._translator, self._limits)
        self._responder.expect(Answer(lines, self._service), client)

    def finalize(self) -> None:
        """Answer what is under way."""
        self._service.close()
        self._responder.close()


@dataclass(frozen=True)
class _Client:
    """Who waits for an answer, which outputs are asked for, and since when (`time.monotonic`)."""

    sender: Any
    wanted: list[str]
    since: float = field(default_factory=time.monotonic)

    def send(self, response: Any) -> None:
        self.sender.send(response, flags=triton.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


class _Responder:
    """Sends answers in a thread of its own, so that no worker waits for the server meanwhile."""

    def __init__(self) -> None:
        self._done: SimpleQueue[Answer | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._expected: dict[Answer, _Client] = {}
        self._thread = threading.Thread(target=self._run, name="responder", daemon=True)
        self._thread.start()

    def expect(self, answer: Answer, client: _Client) -> None:
        """Answer that client once it can be."""
        with self._lock:
            self._expected[answer] = client
        answer.call_when_done(self._done.put)

    def close(self) -> None:
        """Return once everybody has an answer; all answers must be done."""
        self._done.put(None)
        self._thread.join()

    def _run(self) -> None:
        look = time.monotonic() + _SECONDS_TO_CANCEL
        while True:
            with contextlib.suppress(Empty):
                answer = self._done.get(timeout=_SECONDS_TO_CANCEL)
                if answer is None:
                    return
                with self._lock:
                    client = self._expected.pop(answer)
                _respond(client, answer)
            if time.monotonic() > look:
                self._drop_cancelled()
                look = time.monotonic() + _SECONDS_TO_CANCEL

    def _drop_cancelled(self) -> None:
        """Drop what waits for a batch and nobody waits for any more."""
        with self._lock:
            expected = list(self._expected.items())
        for answer, client in expected:
            # Asking is a message to the server and back, so ask of those alone that wait for long.
            late = time.monotonic() - client.since > _SECONDS_TO_CANCEL
            if late and not answer.begun() and client.sender.is_cancelled():
                answer.cancel()


# Until process $2 has another parent than $1, or has ended.
_WATCH = r"""
while grep -qs "^PPid:[[:space:]]*$1\$" "/proc/$2/status"; do sleep 1; done
kill -9 "$2"
"""


def _end_with_server() -> None:
    """Let this process end soon after the server has.

    Where the server was killed, the backend waits for its next message forever, weights and all.
    While it waits for an answer to be taken it holds Python's lock, too: no thread could see it.
    """
    server, here = str(os.getppid()), str(os.getpid())
    nowhere = subprocess.DEVNULL
    subprocess.Popen(
        ["/bin/sh", "-c", _WATCH, "watch-server", server, here],
        stdin=nowhere, stdout=nowhere, stderr=nowhere,
        start_new_session=True,  # Ctrl-C is for the server, which lets instances finish
    )  # fmt: skip


def _device(args: dict[str, str]) -> str:
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


def _respond(client: _Client, answer: Answer) -> None:
    try:
        response = _response(client, answer)
    except Exception as error:  # the next ones get theirs, whatever it was
        log.exception("an answer could not be written")
        response = _error(repr(error), triton.TritonError.INTERNAL)
    try:
        client.send(response)
    except Exception:  # of the backend, which has its own kinds
        log.exception("an answer could not be sent")


def _response(client: _Client, answer: Answer) -> Any:
    found = answer.result()
    if found is None:
        return _error("the request was cancelled", triton.TritonError.CANCELLED)
    if isinstance(found, (InputError, OptionError)):
        return _error(str(found), triton.TritonError.INVALID_ARG)
    if isinstance(found, Exception):
        return _error(str(found) or repr(found), triton.TritonError.INTERNAL)
    outputs = write_outputs(answer.lines, found, client.wanted)
    return triton.InferenceResponse([triton.Tensor(*output) for output in outputs.items()])


def _error(message: str, code: int) -> Any:
    return triton.InferenceResponse(error=triton.TritonError(message, code))
