"""Find the cgroups that limit this process.

They are its own and their ancestors, of versions 1 and 2.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple


class Cgroup(NamedTuple):
    """A directory with the limits of a group of processes."""

    path: Path
    unified: bool
    """True for cgroup v2."""

    def read(self, name: str) -> str:
        """Return a file's text without blanks at the ends; "" if unreadable."""
        return read_text(self.path / name).strip()


class _Mount(NamedTuple):
    """A mounted hierarchy of cgroups."""

    root: PurePosixPath
    """The cgroup at the mount point."""
    point: Path
    unified: bool


def cgroups(root: Path, controller: str) -> Iterator[Cgroup]:
    """Yield the groups of this process that limit a resource.

    Args:
        root: directory that contains `proc` and `sys`.
        controller: name of the resource, such as "cpu" or "memory".
    """
    usual = root / "sys/fs/cgroup"
    for mount in list(_mounts(root, controller)) or [
        _Mount(PurePosixPath("/"), usual, unified=True),
        _Mount(PurePosixPath("/"), usual / controller, unified=False),
    ]:
        group = _own_group(root, controller, mount.unified)
        inside = group.relative_to(mount.root) if group.is_relative_to(mount.root) else PurePosixPath()
        if ".." in inside.parts:  # the group is outside the cgroup namespace
            inside = PurePosixPath()
        for part in (inside, *inside.parents):
            yield Cgroup(mount.point / part, mount.unified)


def _mounts(root: Path, controller: str) -> Iterator[_Mount]:
    for line in read_text(root / "proc/self/mountinfo").splitlines():
        place, _, kind = line.partition(" - ")
        fields, types = place.split(), kind.split()
        if len(fields) < 5 or len(types) < 3:
            continue
        unified = types[0] == "cgroup2"
        if unified or (types[0] == "cgroup" and controller in types[2].split(",")):
            yield _Mount(PurePosixPath(fields[3]), root / fields[4].lstrip("/"), unified)


def _own_group(root: Path, controller: str, unified: bool) -> PurePosixPath:
    """Return this process's group in a hierarchy; the top one if unknown."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if (number == "0" and not controllers) if unified else controller in controllers.split(","):
            return PurePosixPath(path)
    return PurePosixPath("/")


def read_text(path: Path) -> str:
    """Return a file's text; "" if it is missing or unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
