"""Print which package builds and runs engines on a GPU, for scripts and documents.

python -m translate_trt.runtime.backends.gpu_package           # extra for this machine's GPU
python -m translate_trt.runtime.backends.gpu_package 9.0       # extra for a compute capability
python -m translate_trt.runtime.backends.gpu_package --table   # the table of docs/engines.md
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from translate_trt.runtime.backends.nvidia_driver import compute_capability
from translate_trt.runtime.backends.packages import (
    CUDA,
    SUPPORT,
    cubin_for,
    extra,
    package_for,
    precisions,
    supports,
)

# GPUs by compute capability, from https://developer.nvidia.com/cuda-gpus.
_GPUS = {
    "7.5": "T4, GeForce RTX 20, Quadro RTX",
    "8.0": "A100, A30",
    "8.6": "A10, A40, GeForce RTX 30, RTX A6000",
    "8.9": "L4, L40S, GeForce RTX 40, RTX 6000 Ada",
    "9.0": "H100, H200, GH200",
    "10.0": "B200, GB200",
    "10.3": "B300, GB300",
    "12.0": "GeForce RTX 50, RTX PRO Blackwell",
    "12.1": "GB10 (DGX Spark)",
}


def table() -> str:
    """Return the table of docs/engines.md: the extra to install by GPU, and the other ones."""
    rows = [("compute capability", "GPUs", "install", "also supported by", "precisions")]
    for capability, gpus in _GPUS.items():
        chosen = package_for(capability, installed=())
        assert chosen is not None
        others = [one for one in SUPPORT if supports(one, capability)]
        if cubin_for(capability) is not None:
            others.append(CUDA)
        others.remove(chosen)
        rows.append(
            (
                capability,
                gpus,
                f"`[{extra(chosen)}]`",
                ", ".join(f"`[{extra(package)}]`" for package in others),
                ", ".join(precisions(chosen, capability)),
            )
        )
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]])


def main(arguments: Sequence[str]) -> int:
    """Print the extra that supports a compute capability, by default this machine's.

    Returns:
        Exit code: 0, 1 if no package supports the GPU, or 3 without a GPU.
    """
    if list(arguments) == ["--table"]:
        print(table())
        return 0
    capability = arguments[0] if arguments else compute_capability()
    if capability is None:
        print("no NVIDIA GPU or driver was found (nvidia-smi lists the GPUs).", file=sys.stderr)
        return 3
    package = package_for(capability)
    if package is None:
        print(f"no package supports compute capability {capability}.", file=sys.stderr)
        return 1
    print(extra(package))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
