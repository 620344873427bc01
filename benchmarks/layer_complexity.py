"""Measure the paper's Table 1: time and memory of layers by length and width.

    python benchmarks/layer_complexity.py [--device cuda --precision bf16]

The layers map a sequence of n vectors of d columns to another, as in section 4 of the paper: those
of torch.nn, and a self-attention restricted to a window, which torch.nn lacks. Each is run forward,
and forward and backward. `render.py` fits the orders of growth.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import torch
from harness import alternate, cpu_seconds_of, parser, peak_bytes, seconds_of, spread, write
from layer_growth import CONVOLUTIONAL, RECURRENT, RESTRICTED, SELF_ATTENTION, STORED
from torch import Tensor, nn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

#: Sizes of the growth by length, and of that by width, if none are given.
LENGTHS = {"cpu": (128, 256, 512, 1024, 2048, 4096), "cuda": (512, 1024, 2048, 4096, 8192, 16384)}
WIDTHS = {"cpu": (64, 128, 256, 512, 1024), "cuda": (128, 256, 512, 1024)}
LENGTH_OF_WIDTHS = {"cpu": 2048, "cuda": 8192}


class RestrictedSelfAttention(nn.Module):
    """Multi-head self-attention of each position to a window centred around it.

    Queries are processed in blocks as wide as the window, each with the keys of the block and of
    half a window on both sides, so that time and memory grow with length times window.
    """

    def __init__(self, d: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.projections = nn.Linear(d, 3 * d)
        self.output = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:  # [N, n, d]
        rows, length, d = x.shape
        if length % self.window:
            raise ValueError(f"length {length} is not a multiple of the window {self.window}")
        half, blocks = self.window // 2, length // self.window
        query, key, value = self.projections(x).chunk(3, dim=-1)
        query = self._split(query).unflatten(1, (blocks, self.window))  # [N * H, B, r, d / H]
        key, value = (
            nn.functional.pad(self._split(one), (0, 0, half, half))
            .unfold(1, self.window + 2 * half, self.window)
            .transpose(2, 3)  # [N * H, B, 2 r, d / H]
            for one in (key, value)
        )
        mask = self._mask(blocks, half, x.device)
        found = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        found = found.flatten(1, 2).unflatten(0, (rows, self.heads))  # [N, H, n, d / H]
        return self.output(found.transpose(1, 2).reshape(rows, length, d))

    def _split(self, x: Tensor) -> Tensor:
        """Move the heads to the rows: [N * H, n, d / H]."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)

    def _mask(self, blocks: int, half: int, device: torch.device) -> Tensor:
        """Return the keys that each query sees, [B, r, 2 r]."""
        block = self.window * torch.arange(blocks, device=device)[:, None, None]
        query = torch.arange(self.window, device=device)[:, None]
        key = torch.arange(self.window + 2 * half, device=device) - half
        position = block + key  # of the key in the sequence
        exists = (position >= 0) & (position < blocks * self.window)
        return exists & ((key - query).abs() <= half)


Layer = Callable[[Tensor], Tensor]  # [N, n, d] to [N, n, d]


def layers(d: int, given: argparse.Namespace) -> dict[str, tuple[nn.Module, Layer]]:
    """Return the layers of Table 1 by name: the module, and its application to a sequence."""
    attention = nn.MultiheadAttention(d, given.heads, batch_first=True)
    recurrent = nn.LSTM(d, d, batch_first=True)
    convolution = nn.Conv1d(d, d, given.kernel, padding="same")
    restricted = RestrictedSelfAttention(d, given.heads, given.window)

    def attend(x: Tensor, stored: bool) -> Tensor:
        found: Tensor = attention(x, x, x, need_weights=stored, average_attn_weights=False)[0]
        return found

    return {
        SELF_ATTENTION: (attention, functools.partial(attend, stored=False)),
        STORED: (attention, functools.partial(attend, stored=True)),
        RESTRICTED: (restricted, restricted),
        RECURRENT: (recurrent, lambda x: recurrent(x)[0]),
        CONVOLUTIONAL: (convolution, lambda x: convolution(x.transpose(1, 2)).transpose(1, 2)),
    }


def passes(module: nn.Module, layer: Layer, x: Tensor) -> dict[str, Callable[[], None]]:
    """Return a forward pass, and one with the backward pass after it."""
    gradient = torch.randn_like(x)

    def synchronize() -> None:
        if x.device.type == "cuda":
            torch.cuda.synchronize()

    def forward() -> None:
        with torch.no_grad():
            layer(x)
        synchronize()

    def training() -> None:
        layer(x.detach().requires_grad_()).backward(gradient)
        module.zero_grad()  # else the next pass begins by freeing these gradients
        synchronize()

    return {"forward": forward, "training": training}


def measure(length: int, d: int, given: argparse.Namespace) -> tuple[dict[str, Any], Any]:
    """Return figures and raw seconds of all layers at one size, by layer and pass."""
    torch.manual_seed(1)
    device, dtype = torch.device(given.device), DTYPES[given.precision]
    x = torch.randn(given.batch, length, d, device=device, dtype=dtype)
    found = {
        name: passes(module.to(device, dtype), layer, x)
        for name, (module, layer) in layers(d, given).items()
    }
    # Other processes on the machine add little to processor seconds.
    timed = seconds_of if given.device == "cuda" else cpu_seconds_of
    runs = {(name, kind): run for name, both in found.items() for kind, run in both.items()}
    samples = alternate({key: timed(run) for key, run in runs.items()}, given.rounds)
    figures: dict[str, Any] = {name: {} for name in found}
    raw: dict[str, Any] = {name: {} for name in found}
    for (name, kind), seconds in samples.items():
        peak = peak_bytes(runs[name, kind], given.device)
        figures[name][kind] = {"seconds": spread(seconds), "peak_bytes": peak}
        raw[name][kind] = seconds
        milliseconds, mebibytes = 1e3 * figures[name][kind]["seconds"][0], peak / 2**20
        size = f"n {length:6} d {d:5}"
        print(f"{size} {name:30} {kind:8} {milliseconds:10.2f} ms {mebibytes:9.1f} MiB", flush=True)
    return figures, raw


def main() -> None:
    """Measure the growth by length and by width, and write the report."""
    options = parser(__doc__)
    options.add_argument("--device", choices=list(LENGTHS), default="cpu", help="cpu or cuda")
    options.add_argument("--precision", choices=list(DTYPES), default="fp32", help="of all tensors")
    options.add_argument("--batch", type=int, default=1, help="sequences")
    options.add_argument("--heads", type=int, default=8, help="h of the attention layers")
    options.add_argument("--window", type=int, default=64, help="r, of the restricted attention")
    options.add_argument("--kernel", type=int, default=3, help="k, width of the convolution")
    options.add_argument("--lengths", type=int, nargs="+", help="n of the growth by length")
    options.add_argument("--width", type=int, default=256, help="d of the growth by length")
    options.add_argument("--widths", type=int, nargs="+", help="d of the growth by width")
    options.add_argument("--length", type=int, help="n of the growth by width")
    options.add_argument("--note", default="", help="conditions of the run")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    lengths = given.lengths or LENGTHS[given.device]
    widths = given.widths or WIDTHS[given.device]
    length = given.length or LENGTH_OF_WIDTHS[given.device]
    results: dict[str, Any] = {"length": {}, "width": {}}
    samples: dict[str, Any] = {"length": {}, "width": {}}
    for n in lengths:
        found = measure(n, given.width, given)
        results["length"][str(n)], samples["length"][str(n)] = found
    for d in widths:
        found = measure(length, d, given)
        results["width"][str(d)], samples["width"][str(d)] = found
    names = ("precision", "batch", "heads", "window", "kernel", "width", "threads", "rounds")
    settings = {name: getattr(given, name) for name in names}
    settings |= {"length": length, "note": given.note}
    settings["device"] = "cpu" if given.device == "cpu" else torch.cuda.get_device_name()
    name = "layer-complexity" if given.device == "cpu" else "layer-complexity-cuda"
    print(write(name, settings, results, given, samples))


if __name__ == "__main__":
    main()
