"""Run each part of the benchmark in a process of its own.

A crash or a time-out loses only that part. Processes are forked before any of them uses the GPU, so that torch is
imported once.
"""

import logging
import multiprocessing
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any, TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")


class PartEndedError(RuntimeError):
    """A part failed, or its process crashed, or was late and was killed."""


class WrongResultError(RuntimeError):
    """A part found a wrong result."""


def in_child(make: Callable[[], Iterator[T]], seconds: float) -> Iterator[T]:
    """Yield the items of a generator that runs in a forked process.

    Raises:
        WrongResultError: as the generator raised it.
        PartEndedError: if the generator failed otherwise, or the process crashed or did not end within `seconds`.
    """
    forked = multiprocessing.get_context("fork")
    receiver, sender = forked.Pipe(duplex=False)
    child = forked.Process(target=_send, args=(make, sender))
    child.start()
    sender.close()
    end = time.monotonic() + seconds
    try:
        while receiver.poll(max(0.0, end - time.monotonic())):
            try:
                item, error = receiver.recv()
            except EOFError:
                child.join()
                if child.exitcode:
                    raise PartEndedError(f"its process ended with code {child.exitcode}") from None
                return
            if error is not None:
                raise error
            yield item
        raise PartEndedError(f"time is up after {seconds:.0f} s")
    finally:
        child.kill()
        child.join()


def _send(make: Callable[[], Iterator[Any]], sender: Connection) -> None:
    try:
        for item in make():
            sender.send((item, None))
    except WrongResultError as error:
        sender.send((None, error))
    except Exception as error:  # of any library; other parts are still measured
        log.exception("a part of the benchmark failed")
        sender.send(
            (None, PartEndedError(f"{type(error).__name__}: {error}"))
        )  # not all errors can be pickled
