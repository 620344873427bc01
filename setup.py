"""Build the compiled libraries for wheels, and tag wheels that hold any with their platform."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
# Exit code of scripts/build_library.sh where a compiler, headers or the like are missing.
MISSING = 3


class PlatformDistribution(Distribution):
    """Goes where files of one system go, if it has any."""

    def has_ext_modules(self) -> bool:
        return any(ROOT.glob("runtime/*/*.so"))


class PlatformWheel(bdist_wheel):
    """Names the system that it is for, if any, but no version of Python."""

    def run(self) -> None:
        build_libraries()
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", os.environ.get("TRANSLATE_TRT_PLATFORM", platform)


def build_libraries() -> None:
    """Build libtranslate_trt and the compiled kernels, unless TRANSLATE_TRT_LIBRARY is "none".

    Where something is missing for the library, the kernels are built alone. Without a compiler the
    wheel holds neither, and Python translates, more slowly.
    """
    if os.environ.get("TRANSLATE_TRT_LIBRARY") == "none":
        return
    if shutil.which("bash") is None:
        print("There is no bash: the wheel will hold no compiled libraries.", file=sys.stderr)
        return
    code = MISSING
    for name in ("build_library.sh", "build_kernels.sh"):
        if code == MISSING:
            code = subprocess.run(
                ["bash", ROOT / "scripts" / name],
                env={**os.environ, "TRANSLATE_TRT_VENV": "none"}, check=False,
            ).returncode  # fmt: skip
    if code == MISSING:
        print("The wheel will hold no compiled libraries.", file=sys.stderr)
    elif code:
        raise SystemExit(
            "The compiled libraries cannot be built (see above). To install without them: "
            "TRANSLATE_TRT_LIBRARY=none pip install ..."
        )


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
