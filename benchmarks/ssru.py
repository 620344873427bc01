"""Time of the SSRU's recurrence in training: position by position, and in log2(T) rounds.

    python benchmarks/ssru.py [--sentences 64] [--length 32] [--width 256] [--device cpu]

Each time is that of the states and all gradients, in float32; on a CPU it is CPU time, of which
other processes take little. Prints the times and writes no report: they only decide which of two
methods a device uses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from harness import alternate, cpu_seconds_of, parser, seconds_of, spread
from torch import Tensor

from translate_trt.train import ssru

METHODS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"loop": ssru._loop, "scan": ssru._scan}


def run(method: str, factor: Tensor, added: Tensor) -> None:
    """Compute the states and the gradients of their sum by one method."""
    ssru._solve = METHODS[method]
    factor.grad = added.grad = None
    ssru.linear_recurrence(factor, added).sum().backward()
    if factor.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure both methods and print their times."""
    options = parser(__doc__)
    options.add_argument("--sentences", type=int, default=64)
    options.add_argument("--length", type=int, default=32, help="target tokens per sentence")
    options.add_argument("--width", type=int, default=256, help="d_model")
    options.add_argument("--device", default="cpu", help="cpu or cuda")
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(1)
    shape = (given.sentences, given.length, given.width)
    factor = torch.rand(shape, device=given.device).requires_grad_()
    added = torch.randn(shape, device=given.device).requires_grad_()
    timed = seconds_of if given.device == "cuda" else cpu_seconds_of
    works = {name: timed(functools.partial(run, name, factor, added)) for name in METHODS}
    for name, seconds in alternate(works, given.rounds, warmup=1).items():
        middle, least, most = (1e3 * value for value in spread(seconds))
        print(f"{name:6} {middle:8.2f} ms [{least:.2f}, {most:.2f}]")


if __name__ == "__main__":
    main()
