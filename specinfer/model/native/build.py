"""Finds the compiled kernels for this processor, or compiles them.

Precompiled libraries (`python -m specinfer.model.native.build --all DIRECTORY`, in images and wheels) are searched in
$SPECINFER_KERNELS, or in `prebuilt` next to this file if that is unset. The best one for this processor and these
sources is used, unless CXXFLAGS is set. Otherwise the machine's compiler makes a library
(`specinfer.model.native.compiler`) in the cache directory (`specinfer.system.cache_directory`), under a hash of source,
compiler, options and processor. It is written atomically, so services that start at once do not collide.

Needs a processor with AVX2 (simd256.h) or AVX-512 (simd512.h), and a library or a compiler. Otherwise `load_library`
raises the reason, and the caller decides (the torch executor always works). A variant is AVX2, or AVX-512 with or
without products of bytes (VNNI) and of bfloat16.
"""

import argparse
import ctypes
import logging
import os
import platform
import sys
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from specinfer.errors import SpecInferError, UnavailableError
from specinfer.model.native.bindings import bind
from specinfer.model.native.compiler import (
    THIS_PROCESSOR,
    added_options,
    build_digest,
    compile_library,
    find_compiler,
    sources_digest,
)
from specinfer.system.cache_directory import cache_directory
from specinfer.system.machine import processor_flags
from specinfer.system.threads import usable_processors

_AVX2 = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


@dataclass(frozen=True, slots=True)
class Variant:
    """An instruction set for which the kernels are compiled."""

    name: str
    options: tuple[str, ...]
    """Compiler options that allow these instructions and no others."""
    flags: frozenset[str]
    """Flags in /proc/cpuinfo that the processor must have."""


VARIANTS = (
    Variant(
        "avx512bf16",
        ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16"),
        frozenset((*_AVX512, "avx512_vnni", "avx512_bf16")),
    ),
    Variant("avx512vnni", ("-march=x86-64-v4", "-mavx512vnni"), frozenset((*_AVX512, "avx512_vnni"))),
    Variant("avx512", ("-march=x86-64-v4",), frozenset(_AVX512)),
    Variant("avx2", ("-march=x86-64-v3",), frozenset(_AVX2)),
)
"""Variants, best first."""


def fitting(flags: Collection[str]) -> list[Variant]:
    """Return the variants that a processor with these flags can run."""
    return [variant for variant in VARIANTS if variant.flags <= frozenset(flags)]


log = logging.getLogger(__name__)
KERNELS_VARIABLE = "SPECINFER_KERNELS"
"""Name of the environment variable for a directory of precompiled libraries."""
PREBUILT = Path(__file__).with_name("prebuilt")
"""Directory of precompiled libraries in a wheel (`setup.py`)."""
_X86_64 = ("x86_64", "AMD64")
_NEEDED = {"avx2", "fma", "f16c"}


@cache
def load_library() -> ctypes.CDLL:
    missing = _NEEDED - processor_flags()
    if missing:
        raise UnavailableError(f"native kernels: the processor lacks {', '.join(sorted(missing))}")
    try:
        return bind(ctypes.CDLL(str(_prebuilt() or _compiled())))
    except OSError as error:  # no such compiler, a full disk, or a library that does not load
        raise UnavailableError(f"native kernels: {error}") from error


def loaded_library() -> ctypes.CDLL | None:
    """Return the kernels if this process has loaded them; otherwise None."""
    return load_library() if load_library.cache_info().currsize else None


def variant_path(directory: Path, variant: Variant) -> Path:
    """Return the path of a variant's library, which contains the sources' hash."""
    return directory / f"kernels-{variant.name}-{sources_digest()}.so"


def choose_prebuilt(directory: Path, flags: Collection[str]) -> Path | None:
    """Return a directory's best library for a processor with these flags."""
    paths = (variant_path(directory, variant) for variant in fitting(flags))
    return next((path for path in paths if path.is_file()), None)


def build_variants(directory: Path, variants: Sequence[Variant] = VARIANTS) -> list[Path]:
    """Compile missing libraries in parallel; return the paths of all.

    On machines other than x86-64, return an empty list and compile nothing.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if platform.machine() not in _X86_64:
        log.warning("native kernels need x86-64: none are compiled for %s", platform.machine())
        return []
    compiler = find_compiler()
    paths = [variant_path(directory, variant) for variant in variants]
    missing = [(v, path) for v, path in zip(variants, paths, strict=True) if not path.is_file()]
    with ThreadPoolExecutor(usable_processors()) as pool:
        list(pool.map(lambda pair: compile_library(compiler, pair[0].options, pair[1]), missing))
    return paths


def _prebuilt() -> Path | None:
    explicit = os.environ.get(KERNELS_VARIABLE)
    directory = Path(explicit).expanduser() if explicit else PREBUILT
    if added_options():
        if explicit:
            log.warning(
                "CXXFLAGS is set: the native kernels are compiled; those in %s are ignored", directory
            )
        return None
    found = choose_prebuilt(directory, processor_flags())
    if found is not None:
        log.info("native kernels: %s", found.name)
    elif explicit:
        log.warning("%s has no native kernels for this processor and version: compiling them", directory)
    return found


def _compiled() -> Path:
    compiler = find_compiler()
    path = _library_path(compiler)
    if not path.is_file():
        log.info("compiling the native kernels; later starts use the result")
        compile_library(compiler, THIS_PROCESSOR, path)
    return path


def _library_path(compiler: str) -> Path:
    digest = build_digest(compiler, sorted(processor_flags()))
    return cache_directory() / "native" / f"kernels-{digest}.so"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile the native kernels ahead of time."""
    parser = argparse.ArgumentParser(prog="python -m specinfer.model.native.build", description=main.__doc__)
    parser.add_argument(
        "--all", required=True, type=Path, metavar="DIRECTORY", help="Directory for all variants."
    )
    try:
        for path in build_variants(parser.parse_args(argv).all):
            print(path)
    except (SpecInferError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")


if __name__ == "__main__":
    main()
