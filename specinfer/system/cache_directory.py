"""Locate the directory of pulled models and compiled kernels."""

import os
from pathlib import Path

from specinfer.errors import SettingError

CACHE_HELP = (
    "Pulled models and compiled kernels are in $SPECINFER_CACHE; if unset, in specinfer/ in "
    "$XDG_CACHE_HOME or in ~/.cache."
)


def cache_directory() -> Path:
    """Return the cache directory, which may not exist.

    It is $SPECINFER_CACHE, else specinfer/ in $XDG_CACHE_HOME, else in ~/.cache. A relative $XDG_CACHE_HOME
    is ignored, as the XDG specification requires.
    """
    explicit, base = os.environ.get("SPECINFER_CACHE", ""), Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if explicit:
            return Path(explicit).expanduser()
        return (base if base.is_absolute() else Path.home() / ".cache") / "specinfer"
    except RuntimeError as error:
        reason = "this user has no home directory; set the variable to a directory for models and kernels"
        raise SettingError("SPECINFER_CACHE", explicit, reason) from error
