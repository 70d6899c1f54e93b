"""Directory of fetched or built files: pulled models and compiled kernels."""

import os
from pathlib import Path

from specinfer.errors import SettingError

CACHE_HELP = (
    "Pulled models and compiled kernels lie in $SPECINFER_CACHE; if that is not set, in specinfer/ below "
    "$XDG_CACHE_HOME, or below ~/.cache."
)


def cache_directory() -> Path:
    """Return the cache directory, which may not exist.

    It is $SPECINFER_CACHE, else specinfer/ in $XDG_CACHE_HOME, else in ~/.cache. A relative $XDG_CACHE_HOME
    is ignored, as the XDG specification requires.

    Raises:
        SettingError: if none of them is known: a user without $HOME and without an entry in the system's
            list.
    """
    explicit, base = os.environ.get("SPECINFER_CACHE", ""), Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if explicit:
            return Path(explicit).expanduser()
        return (base if base.is_absolute() else Path.home() / ".cache") / "specinfer"
    except RuntimeError as error:
        reason = "this user has no home directory; set it to a directory for models and kernels"
        raise SettingError("SPECINFER_CACHE", explicit, reason) from error
