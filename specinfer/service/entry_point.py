"""What every service's `main` does: read settings, set up logs, serve, and end with the right exit code."""

import asyncio
import logging
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from specinfer.errors import SettingError, SpecInferError
from specinfer.service.logs import set_up_logs
from specinfer.service.settings import ProcessSettings, exit_with

log = logging.getLogger(__name__)
Settings = TypeVar("Settings", bound=ProcessSettings)


def run_service(
    program: str,
    settings_class: type[Settings],
    argv: Sequence[str] | None,
    name_of: Callable[[Settings], str],
    serve: Callable[[Settings], Coroutine[Any, Any, None]],
) -> None:
    """Serves until signalled. Exit code 2 for a bad setting, 1 if the service cannot start."""
    try:
        settings = settings_class.load(program, sys.argv[1:] if argv is None else argv)
        set_up_logs(name_of(settings), settings.log_level, settings.log_requests, settings.log_format)
        asyncio.run(serve(settings))
    except SettingError as error:
        exit_with(error, program)
    except SpecInferError as error:
        log.error("cannot start: %s", error)
        sys.exit(1)
