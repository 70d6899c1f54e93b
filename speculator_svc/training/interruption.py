"""SIGINT and SIGTERM during long work: what is done is kept, and the user is told how to go on."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from specinfer.errors import SpecInferError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptionError(SpecInferError):
    """A signal ended the work; the message says what is kept and how to go on."""


@contextmanager
def deferred_signals() -> Iterator[Callable[[], bool]]:
    """Within, a signal only notes that it came, and the work ends where it can be saved.

    Yields a function that says whether one came. A second signal acts at once. On the main thread only.
    """
    came = False
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        restore()

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        restore()
