"""Self-attention caches in a decoding step: reordered by parent beam, or left alone and masked.

    python benchmarks/cache_policy.py

Two ONNX graphs of the self-attention of a decoder (products left out, they are the same in both),
run in turn by ONNX Runtime:

- reordered: caches [N * K, H, T, D]; each beam attends to its own; after the search every cache is
  gathered by parent beam, which copies it.
- ancestry: caches [N, H, T * K, D] shared by the beams of a sentence and only appended to; a mask
  [N, K, T * K] hides other beams' tokens, and it alone is gathered.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch
from report import alternate, parser, ratios, seconds_of, write
from torch import Tensor, nn

LAYERS, HEADS, HEAD_SIZE, BEAMS = 6, 8, 64, 4
MASKED = -1e9


class Reordered(nn.Module):
    """x [N * K, 1, H * D], parents [N * K], then keys and values [N * K, H, T, D] per layer."""

    def forward(self, x: Tensor, parents: Tensor, *caches: Tensor) -> tuple[Tensor, ...]:
        grown = []
        for past_key, past_value in zip(caches[0::2], caches[1::2], strict=True):
            new = x.unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)  # [N * K, H, 1, D]
            key, value = torch.cat((past_key, new), 2), torch.cat((past_value, new), 2)
            weights = (new @ key.transpose(-1, -2)).softmax(-1)
            x = (weights @ value).transpose(1, 2).flatten(-2)
            grown += [key, value]
        return (x, *(cache[parents] for cache in grown))


class Ancestry(nn.Module):
    """x [N, K, H * D], parents [N, K], ancestry [N, K, P], caches [N, H, P, D] per layer."""

    def forward(
        self, x: Tensor, parents: Tensor, ancestry: Tensor, *caches: Tensor
    ) -> tuple[Tensor, ...]:
        beams = torch.arange(ancestry.shape[1])
        own = torch.where(beams[:, None] == beams, 0.0, MASKED)
        ancestry = torch.cat((ancestry, own.expand(ancestry.shape[0], -1, -1)), 2)
        grown = []
        for past_key, past_value in zip(caches[0::2], caches[1::2], strict=True):
            new = x.unflatten(-1, (HEADS, HEAD_SIZE)).transpose(1, 2)  # [N, H, K, D]
            key, value = torch.cat((past_key, new), 2), torch.cat((past_value, new), 2)
            weights = (new @ key.transpose(-1, -2) + ancestry[:, None]).softmax(-1)
            x = (weights @ value).transpose(1, 2).flatten(-2)
            grown += [key, value]
        return (x, ancestry.gather(1, parents[..., None].expand_as(ancestry)), *grown)


def inputs(policy: str, sentences: int, steps: int) -> list[np.ndarray]:
    """Example inputs after that many steps."""
    random = np.random.default_rng(0)

    def real(*shape: int) -> np.ndarray:
        return random.standard_normal(shape).astype(np.float32)

    size = HEADS * HEAD_SIZE
    if policy == "reordered":
        rows = sentences * BEAMS
        parents = random.integers(rows, size=rows)
        shape = (rows, HEADS, steps, HEAD_SIZE)
        return [real(rows, 1, size), parents, *(real(*shape) for _ in range(2 * LAYERS))]
    parents = random.integers(BEAMS, size=(sentences, BEAMS))
    owner = np.tile(np.arange(BEAMS), steps)
    ancestry = np.where(owner == np.arange(BEAMS)[:, None], 0.0, MASKED).astype(np.float32)
    ancestry = np.broadcast_to(ancestry, (sentences, BEAMS, steps * BEAMS)).copy()
    shape = (sentences, HEADS, steps * BEAMS, HEAD_SIZE)
    caches = (real(*shape) for _ in range(2 * LAYERS))
    return [real(sentences, BEAMS, size), parents, ancestry, *caches]


def session(policy: str, threads: int, directory: Path) -> ort.InferenceSession:
    """The policy's graph, exported and loaded."""
    module = {"reordered": Reordered, "ancestry": Ancestry}[policy]()
    arrays = inputs(policy, 2, 7)
    names = [f"x{index}" for index in range(len(arrays))]
    cache_axes = {0: "rows", 2: "past"}
    fixed: list[dict[int, str]] = [{0: "rows"}, {0: "rows"}]
    if policy == "ancestry":
        fixed.append({0: "rows", 2: "past"})
    axes = [*fixed, *(cache_axes for _ in range(2 * LAYERS))]
    dynamic = [dict.fromkeys(given, torch.export.Dim.DYNAMIC) for given in axes]
    arguments = tuple(torch.from_numpy(array) for array in arrays)
    parameters = 2 if policy == "reordered" else 3
    path = directory / f"{policy}.onnx"
    program = torch.onnx.export(
        module, arguments, dynamo=True, input_names=names, verbose=False,
        dynamic_shapes=(*dynamic[:parameters], tuple(dynamic[parameters:])),
    )  # fmt: skip
    assert program is not None
    program.save(path)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def step(loaded: ort.InferenceSession, arrays: list[np.ndarray], repeats: int) -> Callable[[], Any]:
    """A callable that runs the graph that often, its outputs left with the runtime."""
    values = {
        value.name: ort.OrtValue.ortvalue_from_numpy(array)
        for value, array in zip(loaded.get_inputs(), arrays, strict=True)
    }
    outputs = [value.name for value in loaded.get_outputs()]

    def run() -> None:
        for _ in range(repeats):
            loaded.run_with_ort_values(outputs, values)

    return run


def main() -> None:
    """Measure both policies for several batches and lengths."""
    arguments = parser(__doc__).parse_args()
    samples: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        sessions = {
            policy: session(policy, arguments.threads, Path(directory))
            for policy in ("reordered", "ancestry")
        }
        for sentences in (1, 8, 32):
            for steps in (5, 15, 30, 60, 120):
                repeats = max(1, 600 // (sentences * steps))
                runs = {
                    policy: seconds_of(step(loaded, inputs(policy, sentences, steps), repeats))
                    for policy, loaded in sessions.items()
                }
                found = alternate(runs, arguments.rounds)
                milliseconds = {
                    policy: [1e3 * seconds / repeats for seconds in values]
                    for policy, values in found.items()
                }
                samples[f"N={sentences} T={steps}"] = milliseconds
                middle, low, high = ratios(found, "ancestry", "reordered")
                shown = {p: f"{np.median(values):.2f} ms" for p, values in milliseconds.items()}
                print(
                    f"N={sentences:2} T={steps:3}  {shown}  {middle:.2f}x [{low:.2f}, {high:.2f}]"
                )
    settings = {"layers": LAYERS, "heads": HEADS, "head_size": HEAD_SIZE, "beams": BEAMS}
    settings["threads"] = arguments.threads
    print(write("cache-policy", settings, samples, arguments.out))


if __name__ == "__main__":
    main()
