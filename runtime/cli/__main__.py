"""Command line for `python -m translate_trt.runtime.cli`, which torchrun can start."""

from translate_trt.runtime.cli import main

main(prog_name="translate-trt")
