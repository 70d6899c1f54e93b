"""Describe this machine: processor, instruction sets, available memory."""

import os
import platform
import re
from functools import cache
from pathlib import Path

_VECTORS = (  # instruction sets of the kernels, best first
    ("avx512_bf16", "AVX-512 and bfloat16"),
    ("avx512bw", "AVX-512"),
    ("avx2", "AVX2"),
)


def processor_name() -> str:
    """Return, for example, "AMD EPYC (family 25, model 1) with AVX2".

    Family and model identify the processor where virtual machines hide its full name.
    """
    name = _field("model name") or platform.processor() or platform.machine()
    family, model = _field("cpu family"), _field("model")
    if family and model:
        name += f" (family {family}, model {model})"
    vectors = next((words for flag, words in _VECTORS if flag in processor_flags()), None)
    return f"{name} with {vectors}" if vectors else name


@cache
def processor_flags() -> frozenset[str]:
    """Return the processor's flags in /proc/cpuinfo; empty if unreadable."""
    return frozenset(_field("flags").split())


def _field(name: str) -> str:
    """Return the first field of this name in /proc/cpuinfo; "" if missing."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    fields = (line.partition(":") for line in lines)
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


_UNLIMITED = 2**62


def available_memory(root: Path = Path("/")) -> int:
    """Return the available bytes; `root` is the directory of proc and sys."""
    return min(_of_machine(root), _of_cgroup(root / "sys/fs/cgroup"))


def _of_machine(root: Path) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    if match:
        return 1024 * int(match[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_cgroup(folder: Path) -> int:
    """Return a cgroup's free bytes; inactive page cache counts as free."""
    limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():  # no limit, or cgroup v1
        return _UNLIMITED
    files = re.search(r"^inactive_file (\d+)", _read(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(files[1]) if files else 0))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
