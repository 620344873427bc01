"""Run many clients of a Triton server at once, in the server's environment.

    .cache/triton-server/bin/python benchmarks/triton_client.py <job.json

Reads a job, a JSON object:

    protocol   "http" or "grpc"
    address    host:port
    model      name of the model
    clients    number of clients; each sends its next request when it has an answer
    requests   each {"inputs": {NAME: {"type", "shape", "data"}}, "outputs": [NAME, ...]}; strings
               hold a byte per character (Latin-1), which can represent bytes that are not text.
               "cancel": seconds after which the client disconnects; "timeout": microseconds after
               which the server gives up; "priority": Triton's priority of the request
    patience   seconds for which a request is sent again while no server answers

Writes a line of JSON for each answer: "request" (number of the request), "seconds" (duration), "at"
(seconds since the first request), and "outputs" (nested lists by name), or "error" and "status".
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from time import monotonic
from typing import Any

import numpy as np
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

# Errors of clients while a server goes down, is down, or comes up.
_NO_SERVER = (
    "UNAVAILABLE", "CANCELLED", "503", "Not ready", "no available versions",
    "is not healthy",  # Triton's of an instance that was killed, while the server goes down
)  # fmt: skip
_PAUSE_SECONDS = 0.2


def arrays(inputs: dict[str, Any], module: Any) -> list[Any]:
    """Convert a request's inputs for the client library."""
    found = []
    for name, one in inputs.items():
        kind = triton_to_np_dtype(one["type"])
        data = one["data"]
        if one["type"] == "BYTES":
            data = [text.encode("latin-1") for text in data]
        array = np.array(data, kind).reshape(one["shape"])
        tensor = module.InferInput(name, list(one["shape"]), one["type"])
        tensor.set_data_from_numpy(array)
        found.append(tensor)
    return found


def answer(result: Any, names: list[str]) -> dict[str, Any]:
    """Return outputs as nested lists."""
    outputs = {}
    for name in names:
        array = result.as_numpy(name)
        if array is None:
            continue
        if array.dtype == np.object_:
            array = np.vectorize(lambda one: one.decode("utf-8"), otypes=[np.object_])(array)
        outputs[name] = array.tolist()
    return {"outputs": outputs}


class Sender:
    """Clients of one job."""

    def __init__(self, job: dict[str, Any], client: Any, module: Any) -> None:
        self._job, self._client, self._module = job, client, module
        self._waiting = iter(enumerate(job["requests"]))

    async def run(self) -> None:
        """Send all requests."""
        self._begun = monotonic()
        await asyncio.gather(*(self._one_client() for _ in range(self._job["clients"])))

    async def _one_client(self) -> None:
        for number, request in self._waiting:
            begun = monotonic()
            found = await self._ask_until(request, begun + self._job.get("patience", 0))
            now = monotonic()
            line = {"request": number, "seconds": now - begun, "at": now - self._begun, **found}
            print(json.dumps(line), flush=True)

    async def _ask_until(self, request: dict[str, Any], end: float) -> dict[str, Any]:
        while True:
            try:
                return await self._ask(request)
            except InferenceServerException as error:
                found = {"error": error.message(), "status": error.status()}
                gone = any(word in f"{error.status()} {error.message()}" for word in _NO_SERVER)
            except Exception as error:
                # aiohttp's own are of a connection that is lost.
                lost = type(error).__module__.partition(".")[0] == "aiohttp"
                if not isinstance(error, TimeoutError | OSError) and not lost:
                    raise
                found, gone = {"error": repr(error), "status": None}, True
            if not gone or monotonic() > end:
                return found
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        names = request["outputs"]
        asked = asyncio.create_task(
            self._client.infer(
                self._job["model"],
                arrays(request["inputs"], self._module),
                outputs=[self._module.InferRequestedOutput(name) for name in names],
                timeout=request.get("timeout"),
                priority=request.get("priority", 0),
            )
        )
        if "cancel" in request:
            _, late = await asyncio.wait([asked], timeout=request["cancel"])
            if late:
                asked.cancel()
                await asyncio.wait([asked])
                return {"error": "cancelled by the client", "status": None}
        return answer(await asked, names)


async def main() -> None:
    """Do the job on standard input."""
    job = json.load(sys.stdin)
    module = importlib.import_module(f"tritonclient.{job['protocol']}.aio")
    several = {"conn_limit": job["clients"]} if job["protocol"] == "http" else {}
    async with module.InferenceServerClient(job["address"], **several) as client:
        await Sender(job, client, module).run()


if __name__ == "__main__":
    asyncio.run(main())
