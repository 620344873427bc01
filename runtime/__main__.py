"""Command line for `python -m translate_trt.runtime`."""

from translate_trt.runtime.cli import main

main(prog_name="translate-trt")
