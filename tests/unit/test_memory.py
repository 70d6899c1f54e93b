"""Available memory: that of the machine, within the limit of a container."""

from pathlib import Path

import pytest

from specinfer.system.machine import available_memory

MACHINE = "MemTotal: 9000 kB\nMemAvailable:    2000 kB\n"
UNLIMITED = {"memory.max": "max\n", "memory.current": "5\n"}
LIMITED = {
    "memory.max": "1000000\n",
    "memory.current": "400000\n",
    "memory.stat": "anon 1\ninactive_file 50000\n",
}
FULL = LIMITED | {"memory.current": "1000001\n", "memory.stat": ""}


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [({}, 2_048_000), (UNLIMITED, 2_048_000), (LIMITED, 650_000), (FULL, 0)],
    ids=["no cgroup", "no limit", "a limit", "full"],
)
def test_the_smaller_of_machine_and_container_counts(
    cgroup: dict[str, str], expected: int, tmp_path: Path
) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(MACHINE)
    for name, text in cgroup.items():
        (folder / name).write_text(text)
    assert available_memory(tmp_path) == expected


def test_without_proc_the_memory_of_the_machine_counts(tmp_path: Path) -> None:
    assert available_memory(tmp_path) > 1 << 26
