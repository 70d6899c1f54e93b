"""Keeps values derived from a model's files in the cache directory.

One start computes a value, later ones read it. It is stored as JSON under a hash of all that it depends on. The
directory may be emptied at any time.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

from specinfer.system.cache_directory import cache_directory
from specinfer.system.json_files import parse_json

log = logging.getLogger(__name__)
_TEXTS = (".json", ".jinja")
"""Suffixes of the files that describe a model."""


def derived(kind: str, parts: Iterable[str], compute: Callable[[], Any]) -> Any:
    """Return a stored JSON value, or compute and store it.

    Args:
        kind: name of the value, and of its directory.
        parts: hashes and names of everything that the value depends on.
        compute: returns a value that JSON can represent.
    """
    path = derived_path(kind, parts)
    value = stored_value(path)
    if value is None:
        value = compute()
        store_value(path, value)
    return value


def stored_value(path: Path) -> Any:
    """Return the value in a file; None if it is missing or damaged."""
    try:
        return parse_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def derived_path(kind: str, parts: Iterable[str]) -> Path:
    """Return the file for a value of these parts."""
    name = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    return cache_directory() / kind / f"{name}.json"


def store_value(path: Path, value: Any) -> None:
    """Write a value atomically; an error is only logged."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(value) + "\n")
        part.replace(path)
    except OSError as error:
        log.warning("%s cannot be kept, the next start computes it again: %s", path.parent.name, error)


def texts_digest(directory: Path) -> str:
    """Return a hash of the files that describe a model: all but weights."""
    found = [*directory.glob("*"), *directory.glob("*/*")]  # templates may be in a folder
    paths = sorted(path for path in found if path.suffix in _TEXTS and path.is_file())
    stats = [(path, stat.st_size, stat.st_mtime_ns) for path in paths for stat in [path.stat()]]
    return _digest(tuple(stats))


@cache
def code_digest(root: Path) -> str:
    """Return a hash of the source files in a directory."""
    digest = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".h", ".cpp")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@cache
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    digest = hashlib.sha256()
    for path, size, _ in files:
        digest.update(f"{path.name}\0{size}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
