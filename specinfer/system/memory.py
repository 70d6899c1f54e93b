"""Memory that this process may still use: what the machine has available, within the limit of its cgroup."""

import os
import re
from pathlib import Path

_UNLIMITED = 2**62


def available_memory(root: Path = Path("/")) -> int:
    """Return bytes; `root` is where proc and sys are mounted."""
    return min(_of_machine(root), _of_cgroup(root / "sys/fs/cgroup"))


def _of_machine(root: Path) -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", _read(root / "proc/meminfo"), re.MULTILINE)
    if found:
        return 1024 * int(found[1])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _of_cgroup(folder: Path) -> int:
    """Return what the limit of a container leaves; caches of files give way and do not count."""
    limit, used = _read(folder / "memory.max").strip(), _read(folder / "memory.current").strip()
    if not limit.isdigit() or not used.isdigit():  # no limit, or cgroup v1
        return _UNLIMITED
    files = re.search(r"^inactive_file (\d+)", _read(folder / "memory.stat"), re.MULTILINE)
    return max(0, int(limit) - int(used) + (int(files[1]) if files else 0))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
