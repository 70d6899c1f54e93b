"""Compiles `kernels.cpp` for this processor or a variant.

CXX selects the compiler, CXXFLAGS adds options: `CXXFLAGS=-mno-avx512f` compiles for AVX2.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from specinfer.errors import UnavailableError

_FOLDER = Path(__file__).with_name("csrc")
_SOURCE = _FOLDER / "kernels.cpp"
_SOURCES = (_SOURCE, *sorted(_FOLDER.rglob("*.h")))
_OPTIONS = ("-O3", "-std=c++20", "-fopenmp", "-shared", "-fPIC")
THIS_PROCESSOR = ("-march=native",)


def find_compiler() -> str:
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise UnavailableError(
            "native kernels: no C++ compiler: install g++ (Debian: apt-get install g++, 0.2 GB; kernels then compile "
            "once, in a minute or two), or set CXX; without them a GGUF file takes two bytes a weight, and passes are "
            "several times slower"
        )
    return compiler


def added_options() -> list[str]:
    return shlex.split(os.environ.get("CXXFLAGS", ""))


@cache
def sources_digest() -> str:
    """Return a hash of all sources, and so of the library's interface."""
    texts = "\0".join(path.read_text() for path in _SOURCES)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


def build_digest(compiler: str, machine: Sequence[str]) -> str:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = [sources_digest(), version, *_OPTIONS, *THIS_PROCESSOR, *added_options(), *machine]
    return hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]


def compile_library(compiler: str, options: Sequence[str], path: Path) -> None:
    """Compile the kernels, and write the library to `path` atomically.

    Args:
        options: options that select the processor.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder) / path.name
        command = [compiler, f"-I{_FOLDER}", *_OPTIONS, *options, *added_options()]
        command += ["-o", str(output), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(f"native kernels: {compiler} failed: {done.stderr.strip()[-300:]}")
        output.replace(path)
