"""The command line, as `python -m translate_trt`.

The folder is `translate_trt` itself where the project is installed (pyproject.toml). It has no
`__init__.py`, since `translate_trt` is a namespace, and this is its one module.
"""

from translate_trt.runtime.cli import main

main(prog_name="translate-trt")
