"""One process of the system, which can be killed, stopped for a while, and restarted."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx2

from specinfer.errors import UnavailableError
from tests.support.preloaded import Started, start_service

_START_TIMEOUT_S = 120.0
_LOOK_S = 0.05
_END_S = 10.0


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
        self._process: Started | None = None
        self.starts = 0
        self.disturbed = False
        """True while the process is killed or stopped."""

    @property
    def log(self) -> Path:
        """Log file of the latest start; each start has its own file."""
        return self._logs / f"{self.name}-{self.starts}.log"

    @property
    def pid(self) -> int:
        """Id of the running process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process."""
        self.starts += 1
        self._process = start_service(self._command, self.log, {**os.environ, **self._environment})

    async def ready(self) -> None:
        """Wait until the process listens.

        Raises:
            UnavailableError: if the process ends, or does not listen in time.
        """
        for _ in range(round(_START_TIMEOUT_S / _LOOK_S)):
            self.check()
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            await asyncio.sleep(_LOOK_S)
        raise UnavailableError(f"{self.name} does not listen after {_START_TIMEOUT_S:.0f} s")

    async def loaded(self) -> None:
        """Wait until `/health` answers 200: the port of a server is open before its model is loaded.

        Raises:
            UnavailableError: if the process ends, or does not listen in time.
        """
        await self.ready()
        async with httpx2.AsyncClient(timeout=60) as client:
            while (await client.get(f"http://127.0.0.1:{self.port}/health")).status_code != 200:
                self.check()
                await asyncio.sleep(_LOOK_S)

    def check(self) -> None:
        """Raise UnavailableError with the end of the log if the process has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            end = self.log.read_text(errors="replace")[-300:]
            raise UnavailableError(f"{self.name} ended with code {self._process.poll()}: {end}")

    async def kill(self) -> None:
        """Kill the process."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            await asyncio.to_thread(process.wait)

    def pause(self) -> None:
        """Stop the process: it keeps its connections and does not answer."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the stopped process."""
        self._signal(signal.SIGCONT)

    async def stop(self) -> None:
        """End the process with SIGTERM; kill it if that takes too long."""
        if self._process is not None:
            self._signal(signal.SIGTERM)
            try:
                await asyncio.to_thread(self._process.wait, _END_S)
            except subprocess.TimeoutExpired:
                await self.kill()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # `check` tells of one that has ended
                os.kill(self._process.pid, number)
