"""Translate lines of standard input with a Triton server, many requests at a time, in order.

python client.py --url 127.0.0.1:8001 --beam-size 4 < test.en > test.de
"""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import tritonclient.grpc as triton

IN_FLIGHT = 64  # requests; the server batches those that run at the same time


def make_inputs(
    line: str, beam_size: int | None, markup: str | None = None
) -> list[triton.InferInput]:
    """Tensors of a request with one line. Options that are not sent are the bundle's."""
    inputs = [triton.InferInput("TEXT", [1, 1], "BYTES")]
    inputs[0].set_data_from_numpy(np.array([[line.encode()]], dtype=object))
    if beam_size is not None:
        inputs.append(triton.InferInput("BEAM_SIZE", [1, 1], "INT32"))
        inputs[-1].set_data_from_numpy(np.array([[beam_size]], dtype=np.int32))
    if markup is not None:
        inputs.append(triton.InferInput("MARKUP", [1, 1], "BYTES"))
        inputs[-1].set_data_from_numpy(np.array([[markup.encode()]], dtype=object))
    return inputs


def submit(
    client: triton.InferenceServerClient,
    line: str,
    beam_size: int | None,
    timeout: float,
    markup: str | None = None,
) -> Future[str]:
    """Send a line; the future is its translation, or the server's error."""
    future: Future[str] = Future()

    def receive(result: Any, error: Exception | None) -> None:
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result.as_numpy("TRANSLATION")[0, 0].decode())

    client.async_infer(
        "translation",
        make_inputs(line, beam_size, markup),
        receive,
        outputs=[triton.InferRequestedOutput("TRANSLATION")],
        client_timeout=timeout,
    )
    return future


def translate(
    client: triton.InferenceServerClient,
    lines: Iterable[str],
    beam_size: int | None = None,
    timeout: float = 60.0,
    markup: str | None = None,
) -> Iterator[str]:
    """Yield the translation of each line, with at most `IN_FLIGHT` requests under way."""
    pending: deque[Future[str]] = deque()
    for line in lines:
        if len(pending) == IN_FLIGHT:
            yield pending.popleft().result()
        pending.append(submit(client, line, beam_size, timeout, markup))
    while pending:
        yield pending.popleft().result()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="the server's gRPC address")
    parser.add_argument("--beam-size", type=int, help="default: the bundle's")
    parser.add_argument("--markup", choices=["html", "xml", "text"], help="keep tags")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds per request")
    arguments = parser.parse_args()
    client = triton.InferenceServerClient(arguments.url)
    lines = (line.rstrip("\n") for line in sys.stdin)
    for translation in translate(
        client, lines, arguments.beam_size, arguments.timeout, arguments.markup
    ):
        print(translation)


if __name__ == "__main__":
    main()
