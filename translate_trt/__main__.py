"""The command line, as `python -m translate_trt`.

The folder has no `__init__.py`: `translate_trt` is a namespace, and this its one module.
"""

from translate_trt.runtime.cli import main

main(prog_name="translate-trt")
