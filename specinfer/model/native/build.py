"""Compiles `kernels.cpp` and its headers on first use and loads it.

Needs a C++ compiler and a processor with AVX2 (simd256.h) or AVX-512 (simd512.h). Where either is missing
`load_library` says why, and the caller decides (the torch executor always works). CXX and CXXFLAGS choose the
compiler and add to its options, as usual: `CXXFLAGS=-mno-avx512f` builds for AVX2. The library lies in the
cache directory (`specinfer.cache_directory`) under a name that changes with source, compiler, options and
processor, and appears there atomically: services starting at once do not collide.
"""

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from specinfer.cache_directory import cache_directory
from specinfer.errors import UnavailableError
from specinfer.model.native.bindings import bind
from specinfer.processor import processor_flags

log = logging.getLogger(__name__)
_FOLDER = Path(__file__).with_name("csrc")
_SOURCE = _FOLDER / "kernels.cpp"
_SOURCES = (_SOURCE, *sorted(_FOLDER.rglob("*.h")))
_FLAGS = [f"-I{_FOLDER}", "-O3", "-march=native", "-std=c++20", "-fopenmp", "-shared", "-fPIC"]
_NEEDED = {"avx2", "fma", "f16c"}


@cache
def load_library() -> ctypes.CDLL:
    """The compiled kernels.

    Raises:
        UnavailableError: if this machine cannot build or run them.
    """
    missing = _NEEDED - processor_flags()
    if missing:
        raise UnavailableError(f"native kernels: the processor lacks {', '.join(sorted(missing))}")
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise UnavailableError("native kernels: no C++ compiler (set CXX or install g++)")
    try:
        path = _library_path(compiler)
        if not path.is_file():
            _compile(compiler, path)
        return bind(ctypes.CDLL(str(path)))
    except OSError as error:  # no such compiler, no room to write, a library that does not load
        raise UnavailableError(f"native kernels: {error}") from error


def loaded_library() -> ctypes.CDLL | None:
    """The kernels if this process has loaded them already: nothing is compiled where they were not wanted."""
    return load_library() if load_library.cache_info().currsize else None


def multiplies_bytes() -> bool:
    """Whether the kernels run here and multiply bytes with bytes (`--weights w8a8`)."""
    try:
        return bool(load_library().si_multiplies_bytes())
    except UnavailableError:
        return False


def _flags() -> list[str]:
    return [*_FLAGS, *shlex.split(os.environ.get("CXXFLAGS", ""))]


def _library_path(compiler: str) -> Path:
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    sources = [path.read_text() for path in _SOURCES]
    key = "\0".join([*sources, version, *_flags()[1:], *sorted(processor_flags())])
    return cache_directory() / "native" / f"kernels-{hashlib.sha256(key.encode()).hexdigest()[:16]}.so"


def _compile(compiler: str, path: Path) -> None:
    log.info("compiling the native kernels (once)")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        output = Path(folder) / path.name
        command = [compiler, *_flags(), "-o", str(output), str(_SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise UnavailableError(f"native kernels: {compiler} failed: {done.stderr.strip()[-300:]}")
        output.replace(path)
