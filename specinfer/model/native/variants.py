"""Instruction sets for which the kernels are built ahead of time, and the ones that a processor runs.

The sources choose between AVX2 and AVX-512, and within AVX-512 by whether it multiplies bytes (VNNI) and
bfloat16; each combination is a variant. Nothing here looks at the machine: flags are passed in.
"""

from collections.abc import Collection
from dataclasses import dataclass

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
