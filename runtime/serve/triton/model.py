"""What Triton's Python backend runs; `model.py` of a model repository imports it."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import triton_python_backend_utils as triton

from translate_trt.runtime.errors import BundleError, InputError, OptionError
from translate_trt.runtime.serve.triton import interface
from translate_trt.runtime.serve.triton.batch import (
    Limits,
    Line,
    read_lines,
    translate,
    write_outputs,
)
from translate_trt.runtime.translator import Translator
from translate_trt.runtime.workers import available_cores

_SECONDS_BETWEEN_LOOKS = 1.0


class TritonPythonModel:
    """A bundle. The server calls `execute` with the requests that it has put together."""

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

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request by its translations or its own error."""
        read: dict[int, list[Line]] = {}
        failed: dict[int, Exception] = {}
        for number, request in enumerate(requests):
            if request.is_cancelled():
                continue
            inputs = {one.name(): one.as_numpy() for one in request.inputs()}
            try:
                read[number] = read_lines(inputs, self._translator, self._limits)
            except (InputError, OptionError) as error:
                failed[number] = error
        answers = translate(
            self._translator, read, lambda number: not requests[number].is_cancelled()
        )
        return [
            _response(request, read.get(number, []), failed.get(number) or answers.get(number))
            for number, request in enumerate(requests)
        ]


def _end_with_server() -> None:
    """Let this process end soon after the server has.

    The backend waits for its next message forever, weights and all, where the server was killed.
    """
    server = os.getppid()

    def watch() -> None:
        while os.getppid() == server:
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        os._exit(1)

    threading.Thread(target=watch, name="watch-server", daemon=True).start()


def _device(args: dict[str, str]) -> str:
    if args["model_instance_kind"] == "GPU":
        return f"cuda:{args['model_instance_device_id']}"
    return "cpu"


def _response(request: Any, lines: list[Line], answer: list[Any] | Exception | None) -> Any:
    if answer is None:
        return _error("the request was cancelled", triton.TritonError.CANCELLED)
    if isinstance(answer, (InputError, OptionError)):
        return _error(str(answer), triton.TritonError.INVALID_ARG)
    if isinstance(answer, Exception):
        return _error(str(answer) or repr(answer), triton.TritonError.INTERNAL)
    outputs = write_outputs(lines, answer, request.requested_output_names())
    return triton.InferenceResponse([triton.Tensor(*output) for output in outputs.items()])


def _error(message: str, code: int) -> Any:
    return triton.InferenceResponse(error=triton.TritonError(message, code))
