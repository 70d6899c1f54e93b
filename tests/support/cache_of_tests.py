"""A cache directory for tests: the user's, but without its list of GGUF files."""

from pathlib import Path
from tempfile import mkdtemp

from specinfer.system.cache_directory import cache_directory

_SHARED = ("float", "models", "native", "node", "probes", "test-images")
"""Folders of the user's cache that tests read and extend: downloads, builds and measurements."""


def cache_of_tests() -> str:
    """Return a new cache directory that shares downloads and builds with the user's."""
    folder = Path(mkdtemp(prefix="specinfer-cache-"))
    for name in _SHARED:
        (cache_directory() / name).mkdir(parents=True, exist_ok=True)
        (folder / name).symlink_to(cache_directory() / name)
    return str(folder)
