"""Finds compiled kernels of this processor, or compiles them on first use.

Libraries that were built ahead of time (`python -m specinfer.model.native.build --all DIRECTORY`, as images
and wheels do) are searched in $SPECINFER_KERNELS, else in `prebuilt` next to this file: the best one for this processor
and the sources of this version is used. With CXXFLAGS none is used. Otherwise the machine's compiler makes
one (`specinfer.model.native.compiler`) in the cache directory (`specinfer.system.cache_directory`), under a
name that changes with source, compiler, options and processor; it appears there atomically, so services
starting at once do not collide.

Needs a processor with AVX2 (simd256.h) or AVX-512 (simd512.h), and a library or a compiler. Without these
`load_library` reports the reason, and the caller decides (the torch executor always works). The sources
choose between AVX2 and AVX-512, and within AVX-512 by whether it multiplies bytes (VNNI) and bfloat16; each
combination is a variant.
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
    """One instruction set."""

    name: str
    options: tuple[str, ...]
    """Options of the compiler, which may use these instructions and no others."""
    flags: frozenset[str]
    """Flags that the processor must have, by their names in /proc/cpuinfo."""


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
    """Return the variants that a processor with these flags runs, best first."""
    return [variant for variant in VARIANTS if variant.flags <= frozenset(flags)]


log = logging.getLogger(__name__)
KERNELS_VARIABLE = "SPECINFER_KERNELS"
"""Environment variable with a directory of libraries built ahead of time."""
PREBUILT = Path(__file__).with_name("prebuilt")
"""Directory of the libraries in a wheel, which `setup.py` builds."""
_X86_64 = ("x86_64", "AMD64")
_NEEDED = {"avx2", "fma", "f16c"}


@cache
def load_library() -> ctypes.CDLL:
    """Return the compiled kernels.

    Raises:
        UnavailableError: if this machine cannot build or run them.
    """
    missing = _NEEDED - processor_flags()
    if missing:
        raise UnavailableError(f"native kernels: the processor lacks {', '.join(sorted(missing))}")
    try:
        return bind(ctypes.CDLL(str(_prebuilt() or _compiled())))
    except OSError as error:  # no such compiler, no space to write, a library that does not load
        raise UnavailableError(f"native kernels: {error}") from error


def loaded_library() -> ctypes.CDLL | None:
    """Return the kernels if this process has loaded them already; compile nothing."""
    return load_library() if load_library.cache_info().currsize else None


def variant_path(directory: Path, variant: Variant) -> Path:
    """Return a variant's library path, whose name changes with the sources."""
    return directory / f"kernels-{variant.name}-{sources_digest()}.so"


def choose_prebuilt(directory: Path, flags: Collection[str]) -> Path | None:
    """Return a directory's best library for a processor with these flags."""
    paths = (variant_path(directory, variant) for variant in fitting(flags))
    return next((path for path in paths if path.is_file()), None)


def build_variants(directory: Path, variants: Sequence[Variant] = VARIANTS) -> list[Path]:
    """Compile missing libraries in parallel; return all paths.

    On other machines than x86-64 there are none: the directory stays empty.

    Raises:
        UnavailableError: if there is no compiler, or if it fails.
        OSError: if it cannot be run, or if nothing can be written there.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if platform.machine() not in _X86_64:
        log.warning("no native kernels for %s: the torch executor runs there", platform.machine())
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
            log.warning("CXXFLAGS is set: compiling the native kernels instead of looking in %s", directory)
        return None
    found = choose_prebuilt(directory, processor_flags())
    if found is not None:
        log.info("native kernels: %s", found.name)
    elif explicit:
        log.warning("no native kernels in %s for this processor and this version; compiling them", directory)
    return found


def _compiled() -> Path:
    compiler = find_compiler()
    path = _library_path(compiler)
    if not path.is_file():
        log.info("compiling the native kernels (once)")
        compile_library(compiler, THIS_PROCESSOR, path)
    return path


def _library_path(compiler: str) -> Path:
    digest = build_digest(compiler, sorted(processor_flags()))
    return cache_directory() / "native" / f"kernels-{digest}.so"


def main(argv: Sequence[str] | None = None) -> None:
    """Compile the native kernels ahead of time."""
    parser = argparse.ArgumentParser(prog="python -m specinfer.model.native.build", description=main.__doc__)
    parser.add_argument("--all", required=True, type=Path, metavar="DIRECTORY", help="Where all variants go.")
    try:
        for path in build_variants(parser.parse_args(argv).all):
            print(path)
    except (SpecInferError, OSError) as error:
        sys.exit(f"{parser.prog}: error: {error}")


if __name__ == "__main__":
    main()
