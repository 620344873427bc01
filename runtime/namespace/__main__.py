"""The program `translate-trt`, and `python -m translate_trt`.

pyproject.toml installs this folder as `translate_trt` itself. That is a namespace package: it has
no `__init__.py`, and this is its only module.
"""

import signal


def run() -> None:
    """Run the command line; Ctrl-C ends the process without a traceback while modules load."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from translate_trt.runtime.cli import main

    signal.signal(signal.SIGINT, handler)
    main(prog_name="translate-trt")


if __name__ == "__main__":
    run()
