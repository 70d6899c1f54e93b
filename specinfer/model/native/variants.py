"""Which instruction sets the kernels are built for ahead of time, and which of them a processor runs.

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
    """What the compiler is told; it may use these instructions and no others."""
    flags: frozenset[str]
    """What the processor must have, as /proc/cpuinfo names it."""


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
"""Best first."""


def fitting(flags: Collection[str]) -> list[Variant]:
    """The variants that a processor with these flags runs, best first."""
    return [variant for variant in VARIANTS if variant.flags <= frozenset(flags)]
