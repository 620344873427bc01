"""Choice of a compiled library: the one beside its module, or what the environment names."""

from __future__ import annotations

import os
from pathlib import Path

from translate_trt.runtime.errors import OptionError

#: Value of an environment variable that switches a library off.
NONE = "none"


def find_library(variable: str, built: Path, script: str) -> Path | None:
    """Find a compiled library.

    Args:
        variable: environment variable: NONE, or the path of a library to use instead.
        built: where the script puts the library.
        script: builds it; named in errors.

    Returns:
        The library to use; None: it is not built, or switched off.

    Raises:
        OptionError: the environment variable names a file that does not exist.
    """
    chosen = os.environ.get(variable, "")
    if chosen == NONE:
        return None
    if not chosen:
        return built if built.is_file() else None
    if not Path(chosen).is_file():
        raise OptionError(
            f"{variable} is {chosen!r}, and there is no such file; name one that {script} made, "
            f"or write {NONE}, or leave it out."
        )
    return Path(chosen).absolute()
