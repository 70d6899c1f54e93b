"""Name and instruction sets of this processor: they select compiled kernels and identify measurements."""

import platform
from functools import cache
from pathlib import Path

_VECTORS = (  # usable by the kernels, best first
    ("avx512_bf16", "AVX-512 and bfloat16"),
    ("avx512bw", "AVX-512"),
    ("avx2", "AVX2"),
)


def processor_name() -> str:
    """Return for example "AMD EPYC (family 25, model 1) with AVX2": virtual machines hide the exact EPYC."""
    name = _field("model name") or platform.processor() or platform.machine()
    family, model = _field("cpu family"), _field("model")
    if family and model:
        name += f" (family {family}, model {model})"
    vectors = next((words for flag, words in _VECTORS if flag in processor_flags()), None)
    return f"{name} with {vectors}" if vectors else name


@cache
def processor_flags() -> frozenset[str]:
    """Return its instruction sets; empty where they cannot be read."""
    return frozenset(_field("flags").split())


def _field(name: str) -> str:
    """Return the system's description of its first processor, or nothing."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")
