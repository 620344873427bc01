"""Selection of a compiled library: the installed file, or a path from the environment."""

from __future__ import annotations

import os
from pathlib import Path

from translate_trt.runtime.errors import OptionError

#: Value of the environment variable that disables a library.
NONE = "none"


def find_library(variable: str, built: Path, script: str) -> Path | None:
    """Find a compiled library.

    Args:
        variable: Environment variable that holds NONE or the path of a library to use instead.
        built: Path at which the build script installs the library.
        script: The build script, named in errors.

    Returns:
        Path of the library; None if it is not built or is disabled.

    Raises:
        OptionError: The environment variable names a file that does not exist.
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
