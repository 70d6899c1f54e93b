"""Describe this machine: processor, instruction sets, devices, available memory."""

import os
import platform
import re
from functools import cache
from importlib import import_module
from pathlib import Path

from specinfer.errors import SettingError
from specinfer.system.cgroups import Cgroup, cgroups, read_text

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
    fields = (line.partition(":") for line in read_text(Path("/proc/cpuinfo")).splitlines())
    return next((value.strip() for field, _, value in fields if field.strip() == name), "")


def is_cuda(device: str) -> bool:
    """Return whether a torch device is a GPU."""
    return device.partition(":")[0] == "cuda"


def check_device(device: str) -> None:
    """Check that torch can use a device."""
    if device == "cpu":  # the usual case, without torch
        return
    torch = import_module("torch")
    try:
        if is_cuda(device):  # counted without a context, which would take memory of the device
            number, count = torch.device(device).index or 0, torch.cuda.device_count()
            why = f"torch finds {count} GPUs" if number >= count else ""
        else:
            torch.empty(0, device=device)
            why = "has no memory" if device == "meta" else ""
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
    if why:
        raise SettingError("device", device, why)


def free_memory(device: str) -> int:
    """Return the free bytes of a GPU, or of machine and cgroups."""
    if not is_cuda(device):
        return available_memory()
    return int(import_module("torch").cuda.mem_get_info(device)[0])


def available_memory(root: Path = Path("/")) -> int:
    """Return the free bytes of machine and cgroups.

    Args:
        root: directory that contains `proc` and `sys`.
    """
    left = [free for group in cgroups(root, "memory") if (free := _free(group)) is not None]
    return min([_of_machine(root), *left])


def _of_machine(root: Path) -> int:
    match = re.search(r"^MemAvailable:\s+(\d+) kB", read_text(root / "proc/meminfo"), re.MULTILINE)
    if match:
        return 1024 * int(match[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _free(group: Cgroup) -> int | None:
    """Return a cgroup's free bytes; None without a limit.

    Inactive page cache counts as free.
    """
    names = ("memory.max", "memory.high") if group.unified else ("memory.limit_in_bytes",)
    used, cache = "memory.usage_in_bytes", "total_inactive_file"
    if group.unified:
        used, cache = "memory.current", "inactive_file"
    numbers = [int(text) for name in names if (text := group.read(name)).isdecimal()]
    taken, stat = group.read(used), group.read("memory.stat")
    # cgroup v1's lowest limit of the ancestors, which a container may not see
    numbers += map(int, re.findall(r"^hierarchical_memory_limit (\d+)", stat, re.MULTILINE))
    if not numbers or not taken.isdecimal():
        return None
    files = re.search(rf"^{cache} (\d+)", stat, re.MULTILINE)
    return max(0, min(numbers) - int(taken) + (int(files[1]) if files else 0))
