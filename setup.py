"""Build the compiled libraries for wheels, and tag wheels that contain any with their platform."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parent
# Exit code of scripts/build_library.sh if a requirement is missing, such as a compiler.
MISSING = 3


class PlatformDistribution(Distribution):
    """Distribution that is platform-specific if it contains compiled libraries."""

    def has_ext_modules(self) -> bool:
        return any(ROOT.glob("runtime/*/*.so"))


class PlatformWheel(bdist_wheel):
    """Wheel for every Python version, of one platform if it contains compiled libraries."""

    def run(self) -> None:
        build_libraries()
        self.root_is_pure = not self.distribution.has_ext_modules()
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", os.environ.get("TRANSLATE_TRT_PLATFORM", platform)


def build_libraries() -> None:
    """Build libtranslate_trt and the compiled kernels, unless TRANSLATE_TRT_LIBRARY is "none".

    If a requirement of the library is missing, only the kernels are built. A wheel without the
    library translates plain lines only.
    """
    if os.environ.get("TRANSLATE_TRT_LIBRARY") == "none":
        return
    if shutil.which("bash") is None:
        print("bash is missing: the wheel will contain no compiled libraries.", file=sys.stderr)
        return
    code = MISSING
    for name in ("build_library.sh", "build_kernels.sh"):
        if code == MISSING:
            code = subprocess.run(
                ["bash", ROOT / "scripts" / name],
                env={**os.environ, "TRANSLATE_TRT_VENV": "none", "PYTHON": sys.executable},
                check=False,
            ).returncode  # fmt: skip
    if code == MISSING:
        print("The wheel will contain no compiled libraries.", file=sys.stderr)
    elif code:
        raise SystemExit(
            "The compiled libraries cannot be built (see above). To install without them: "
            "TRANSLATE_TRT_LIBRARY=none pip install ..."
        )


# Where there is no compiler, Zig's wheel is one. An editable install builds nothing.
compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
setup(
    distclass=PlatformDistribution,
    cmdclass={"bdist_wheel": PlatformWheel},
    setup_requires=[] if any(map(shutil.which, compilers)) else ["ziglang>=0.15"],
)
