"""Compile the CPU kernels of every instruction set into the wheel; `pyproject.toml` has everything else.

This takes minutes, so wheels that are built from a clone (`pip install .`) have none and compile on first use:
`python -m build` makes its wheel from the source distribution. Without a C++ compiler, or on other machines than
x86-64, the wheel has no kernels and runs anywhere; the build prints the reason.
"""

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # builds do not put it there

from specinfer.errors import UnavailableError  # noqa: E402
from specinfer.model.native.build import PREBUILT, build_variants  # noqa: E402


class BuildWithKernels(build_py):
    """Compiles kernels next to the copied modules."""

    kernels: tuple[Path, ...] = ()

    def run(self) -> None:
        super().run()
        if self.editable_mode or not (ROOT / "PKG-INFO").is_file():  # which only a source distribution has
            return
        directory = Path(self.build_lib, PREBUILT.relative_to(ROOT))
        try:
            self.kernels = tuple(build_variants(directory))
        except UnavailableError as error:
            self.warn(f"the wheel has no compiled kernels: {error}")
        for path in set(directory.glob("*.so")) - set(self.kernels):  # of an earlier build
            path.unlink()

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        return [*super().get_outputs(include_bytecode), *map(str, self.kernels)]


class WheelWithKernels(bdist_wheel):
    """Tags a wheel with kernels for this system and any Python."""

    def run(self) -> None:
        self.run_command("build")
        if self.get_finalized_command("build_py").kernels:
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True  # files belong to this system's folder
        super().run()

    def get_tag(self) -> tuple[str, str, str]:
        tag = super().get_tag()
        return tag if self.root_is_pure else (self.python_tag, "none", tag[2])


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": WheelWithKernels})
