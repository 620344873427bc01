"""What pyproject.toml cannot say: a wheel with the compiled kernels is for one system only."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

KERNELS = Path(__file__).resolve().parent / "runtime/kernels"


class PlatformDistribution(Distribution):
    """Goes where files of one system go, if it has the kernels."""

    def has_ext_modules(self) -> bool:
        return any(KERNELS.glob("*.so"))


class PlatformWheel(bdist_wheel):
    """Names the system that it is for, if any, but no version of Python."""

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform = super().get_tag()
        return "py3", "none", platform


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": PlatformWheel})
