"""Directory of all that is fetched or built once: pulled models and compiled kernels."""

import os
from pathlib import Path

CACHE_HELP = (
    "Pulled models and compiled kernels lie in $SPECINFER_CACHE; if that is not set, in specinfer/ below "
    "$XDG_CACHE_HOME, or below ~/.cache."
)


def cache_directory() -> Path:
    """Return $SPECINFER_CACHE, else specinfer/ in $XDG_CACHE_HOME, else in ~/.cache; it may not exist.

    A relative $XDG_CACHE_HOME is ignored, as the XDG specification requires.
    """
    if explicit := os.environ.get("SPECINFER_CACHE"):
        return Path(explicit).expanduser()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "specinfer"
