"""Command line for `python -m translate_trt`.

pyproject.toml installs this folder as `translate_trt` itself. That is a namespace package: it has
no `__init__.py`, and this is its only module.
"""

from translate_trt.runtime.cli import main

main(prog_name="translate-trt")
