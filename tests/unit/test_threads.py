"""The number of threads by affinity and quotas, over made-up trees of cgroups."""

import os
from pathlib import Path

import pytest

from specinfer.errors import SettingError
from specinfer.system import threads
from specinfer.system.threads import default_threads, thread_count, usable_processors

V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "33 31 0:28 {root} /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct\n"


def tree(directory: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    (directory / "proc/self").mkdir(parents=True)
    (directory / "proc/self/cgroup").write_text(cgroup)
    (directory / "proc/self/mountinfo").write_text(mountinfo)
    for name, text in files.items():
        path = directory / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def v2(directory: Path, group: str, files: dict[str, str], root: str = "/") -> int:
    return usable_processors(tree(directory, f"0::{group}\n", V2.format(root=root), files), affinity=16)


def v1(directory: Path, group: str, files: dict[str, str], root: str = "/") -> int:
    cgroup = f"12:pids:/elsewhere\n4:cpu,cpuacct:{group}\n0::/unified\n"
    return usable_processors(tree(directory, cgroup, V1.format(root=root), files), affinity=16)


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    assert v2(tmp_path, "/", {"cpu.max": "400000 100000\n"}) == 4


def test_parts_of_processors_do_not_count(tmp_path: Path) -> None:
    assert v2(tmp_path, "/", {"cpu.max": "765000 100000\n"}) == 7


def test_there_is_one_thread_at_least(tmp_path: Path) -> None:
    assert v2(tmp_path, "/", {"cpu.max": "50000 100000\n"}) == 1


def test_no_limit_leaves_affinity(tmp_path: Path) -> None:
    assert v2(tmp_path, "/a", {"cpu.max": "max 100000\n", "a/cpu.max": "max 100000\n"}) == 16


def test_affinity_may_be_the_lower_limit(tmp_path: Path) -> None:
    root = tree(tmp_path, "0::/\n", V2.format(root="/"), {"cpu.max": "400000 100000\n"})
    assert usable_processors(root, affinity=3) == 3


@pytest.mark.parametrize("limited", ["cpu.max", "a/cpu.max", "a/b/cpu.max"])
def test_quotas_of_ancestors_count(tmp_path: Path, limited: str) -> None:
    files = dict.fromkeys(("a/cpu.max", "a/b/cpu.max"), "max 100000\n")
    assert v2(tmp_path, "/a/b", {**files, limited: "200000 100000\n"}) == 2


def test_a_group_that_is_mounted_itself_is_found(tmp_path: Path) -> None:
    assert v2(tmp_path, "/docker/x/inner", {"inner/cpu.max": "300000 100000\n"}, root="/docker/x") == 3


def test_for_a_group_outside_the_namespace_the_mounted_one_counts(tmp_path: Path) -> None:
    assert v2(tmp_path, "/../other", {"cpu.max": "500000 100000\n"}) == 5


def test_quotas_of_version_1(tmp_path: Path) -> None:
    at = "cpu,cpuacct/job/cpu.cfs_"
    assert v1(tmp_path, "/job", {f"{at}quota_us": "150000\n", f"{at}period_us": "50000\n"}) == 3


def test_ancestors_count_in_version_1(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/pod/cpu.cfs_quota_us": "600000\n",
        "cpu,cpuacct/pod/cpu.cfs_period_us": "100000\n",
        "cpu,cpuacct/pod/job/cpu.cfs_quota_us": "-1\n",
        "cpu,cpuacct/pod/job/cpu.cfs_period_us": "100000\n",
    }
    assert v1(tmp_path, "/pod/job", files) == 6


def test_version_1_in_a_container(tmp_path: Path) -> None:
    files = {"cpu,cpuacct/cpu.cfs_quota_us": "200000\n", "cpu,cpuacct/cpu.cfs_period_us": "100000\n"}
    assert v1(tmp_path, "/docker/x", files, root="/docker/x") == 2


def test_a_machine_without_cgroups_has_no_quota(tmp_path: Path) -> None:
    assert usable_processors(tmp_path, affinity=5) == 5


@pytest.mark.parametrize("text", ["", "max\n", "x y\n", "100000 0\n"])
def test_an_invalid_quota_is_ignored(tmp_path: Path, text: str) -> None:
    assert v2(tmp_path, "/", {"cpu.max": text}) == 16


def test_affinity_of_this_process_counts() -> None:
    assert 1 <= usable_processors() <= len(os.sched_getaffinity(0))


@pytest.mark.parametrize("count", [-1, 100_000])
def test_an_impossible_number_is_an_error(count: int) -> None:
    with pytest.raises(SettingError, match=rf"threads = {count}:"):
        thread_count(count)


def test_a_number_in_range_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(threads, "usable_processors", lambda: 5)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert (thread_count(8), thread_count(1), thread_count(0)) == (8, 1, 5)


@pytest.mark.parametrize(("given", "count"), [("2", 2), ("64", 5), ("", 5), ("0", 5), ("4,2", 5)])
def test_openmp_may_have_fewer(monkeypatch: pytest.MonkeyPatch, given: str, count: int) -> None:
    monkeypatch.setattr(threads, "usable_processors", lambda: 5)
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert default_threads() == count
