"""Available memory: that of the machine, within the limit of a container."""

from pathlib import Path

import pytest

from specinfer.errors import SettingError
from specinfer.system.machine import available_memory, check_device

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


V2 = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "31 23 0:27 {root} /sys/fs/cgroup/memory rw - cgroup cgroup rw,hugetlb,memory\n"


def machine(root: Path, mountinfo: str, cgroup: str, files: dict[str, str]) -> int:
    """Return the available memory of a made-up machine with 2,048,000 free bytes."""
    proc = {"proc/meminfo": MACHINE, "proc/self/mountinfo": mountinfo, "proc/self/cgroup": cgroup}
    for name, text in (proc | {f"sys/fs/cgroup/{name}": text for name, text in files.items()}).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return available_memory(root)


@pytest.mark.parametrize("limited", ["", "system.slice", "system.slice/a.service"])
@pytest.mark.parametrize("kind", ["memory.max", "memory.high"])
def test_limits_of_services_and_of_slices_above_count(limited: str, kind: str, tmp_path: Path) -> None:
    files = {f"{limited}/{name}": text for name, text in (LIMITED | {"memory.max": "max"}).items()}
    files[f"{limited}/{kind}"] = "1000000\n"
    assert machine(tmp_path, V2, "0::/system.slice/a.service\n", files) == 650_000


@pytest.mark.parametrize(
    ("root", "group", "limited"),
    [("/", "/", ""), ("/", "/job/step", "job"), ("/docker/x", "/docker/x", "")],
    ids=["top", "ancestor", "container"],
)
def test_limits_of_version_1_count(root: str, group: str, limited: str, tmp_path: Path) -> None:
    limits = {"memory.limit_in_bytes": "1000000\n", "memory.usage_in_bytes": "400000\n"}
    limits["memory.stat"] = "inactive_file 7\ntotal_inactive_file 50000\n"
    files = {f"memory/{limited}/{name}": text for name, text in limits.items()}
    unlimited = {"memory/memory.limit_in_bytes": f"{2**63 - 4096}\n", "memory/memory.usage_in_bytes": "5\n"}
    whole = V1.format(root=root) + V2
    assert machine(tmp_path, whole, f"4:hugetlb,memory:{group}\n0::/\n", unlimited | files) == 650_000


def test_version_1_counts_without_a_list_of_mounts(tmp_path: Path) -> None:
    files = {"memory/memory.limit_in_bytes": "1000000\n", "memory/memory.usage_in_bytes": "400000\n"}
    assert machine(tmp_path, "", "4:memory:/\n", files) == 600_000


def test_a_limit_of_version_1_counts_above_what_a_container_sees(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": f"{2**63 - 4096}\n",
        "memory/memory.usage_in_bytes": "400000\n",
        "memory/memory.stat": "hierarchical_memory_limit 1000000\ntotal_inactive_file 50000\n",
    }
    assert machine(tmp_path, V1.format(root="/docker/x"), "4:memory:/docker/x\n", files) == 650_000


@pytest.mark.parametrize(("device", "count"), [("cuda", 1), ("cuda:1", 2), ("cpu", 0)])
def test_a_device_that_is_there_is_accepted(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    check_device(device)


@pytest.mark.parametrize(
    ("device", "why"),
    [
        ("cuda", "torch finds 0 GPUs"),
        ("cuda:3", "torch finds 0 GPUs"),
        ("meta", "has no memory"),
        ("mps", ""),
        ("abacus", ""),
    ],
)
def test_a_device_that_is_not_there_is_refused(
    device: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(SettingError, match=f"device = '{device}': {why}"):
        check_device(device)
