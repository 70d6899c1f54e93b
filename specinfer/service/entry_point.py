"""Run a service: settings, signals, exit status."""

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from specinfer.errors import SettingError, SpecInferError
from specinfer.service.logs import set_up_logs
from specinfer.service.settings import ProcessSettings, exit_with
from specinfer.system.open_files import raise_limit

log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def start_and_wait_for_signal(start: Callable[[], Awaitable[object]] | None = None) -> None:
    """Start a server; return on the first SIGTERM or SIGINT. The second ends the process."""
    stopped, loop = asyncio.Event(), asyncio.get_running_loop()

    def stop(number: int) -> None:
        if stopped.is_set():
            _end_at_once(number)
        stopped.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, stop, number)
    if start is not None:
        await start()
    gc.freeze()  # objects loaded so far stay alive, so the collector need not scan them
    await stopped.wait()
    log.info("signal received: draining, then ending")


@contextmanager
def signals_end_at_once() -> Iterator[None]:
    """End the process on a signal within the block: nothing has to be finished."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _end_at_once) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_at_once(number: int, frame: object = None) -> None:
    print(f"{signal.Signals(number).name}: ended", file=sys.stderr, flush=True)
    os._exit(128 + number)  # threads may be loading weights


Settings = TypeVar("Settings", bound=ProcessSettings)


def run_service(
    program: str,
    settings_class: type[Settings],
    argv: Sequence[str] | None,
    name_of: Callable[[Settings], str],
    serve: Callable[[Settings], Coroutine[Any, Any, None]],
) -> None:
    """Serve until signalled, or print help.

    Exits with 2 for bad settings, 1 for failures.
    """
    arguments = sys.argv[1:] if argv is None else argv
    try:
        with signals_end_at_once():
            settings = settings_class.load(program, arguments)
            set_up_logs(name_of(settings), settings.log_level, settings.log_requests, settings.log_format)
            raise_limit()
            asyncio.run(serve(settings))
    except SettingError as error:
        exit_with(settings_class.as_given(error, arguments), program)
    except OSError as error:
        if error.filename is None:
            raise
        exit_with(SettingError("file", str(error.filename), error.strerror or str(error)), program)
    except (SpecInferError, MemoryError) as error:
        log.error("cannot start: %s", error or "the memory is exhausted")
        sys.exit(1)
