"""One process of the system, as faults see it: it can be killed, stopped for a while, and started again."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from specinfer.cli.processes import Child
from specinfer.errors import UnavailableError

_START_TIMEOUT_S = 120.0
_LOOK_S = 0.05


class Service:
    """A process that listens on one port of loopback."""

    def __init__(
        self,
        name: str,
        kind: str,
        port: int,
        command: Sequence[str],
        logs: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.name, self.kind, self.port = name, kind, port
        self._command, self._logs, self._environment = command, logs, environment
        self._child: Child | None = None
        self.starts = 0
        self.disturbed = False
        """Killed or stopped and not back yet."""

    def start(self) -> None:
        """Starts it; every start has a log of its own."""
        log = self._logs / f"{self.name}-{self.starts}.log"
        self._child = Child(self.name, self._command, log, self._environment)
        self.starts += 1

    async def ready(self) -> None:
        """Waits until it listens.

        Raises:
            UnavailableError: if it ends or takes too long.
        """
        for _ in range(round(_START_TIMEOUT_S / _LOOK_S)):
            self.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            await asyncio.sleep(_LOOK_S)
        raise UnavailableError(f"{self.name} does not listen after {_START_TIMEOUT_S:.0f} s")

    def check(self) -> None:
        """Raises UnavailableError if it has ended by itself."""
        if self._child is not None:
            self._child.check()

    async def kill(self) -> None:
        """Ends it at once, without a chance to say anything."""
        if self._child is not None:
            child, self._child = self._child, None
            await asyncio.to_thread(child.kill)

    def pause(self) -> None:
        """Stops it: it holds its connections and says nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on, as if no time had passed."""
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """Ends it in order; kills it if that takes too long."""
        if self._child is not None:
            self._child.terminate()
            await asyncio.to_thread(self._child.join, 10.0)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):  # `check` tells of one that has ended
                os.kill(self._child.pid, number)
