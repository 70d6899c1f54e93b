"""Import a user's function by its name, MODULE:NAME."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from specinfer.errors import SettingError


def named_function(setting: str, text: str) -> Callable[..., Any]:
    """Return the function; modules may be in the working directory.

    Raises:
        SettingError: naming the setting, if there is no such function.
    """
    module, _, name = text.partition(":")
    if not module or not name:
        raise SettingError(setting, text, "must be MODULE:NAME, such as my_drafts:repeat_last")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        function: Callable[..., Any] = getattr(import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise SettingError(setting, text, str(error)) from error
    if not callable(function):
        raise SettingError(setting, text, "must be callable")
    return function
