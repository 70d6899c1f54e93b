"""Release ended requests at verifier and speculators, in the background."""

import asyncio
import logging

from gateway.session.verifier import VerifierClient
from specinfer.errors import UnavailableError
from specinfer.remote.pool import SpeculatorPool

log = logging.getLogger(__name__)
_LAST_RELEASES_S = 0.5
"""Seconds that `close` waits; unreleased requests expire at the services."""


class Releases:
    """Releases requests at a session's verifier and speculators."""

    def __init__(self, verifier: VerifierClient, pool: SpeculatorPool) -> None:
        self._verifier, self._pool = verifier, pool
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, request_ids: list[str]) -> None:
        """Start a release; an empty list only ends the verifier's grant."""
        task = asyncio.get_running_loop().create_task(self._release(request_ids))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Wait `_LAST_RELEASES_S` for running releases, then cancel them."""
        tasks = list(self._tasks)
        if tasks:
            await asyncio.wait(tasks, timeout=_LAST_RELEASES_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self, request_ids: list[str]) -> None:
        try:
            await self._verifier.release(request_ids)
        except UnavailableError as error:
            log.warning(
                "%d requests are not released at the verifier; they will expire there: %s",
                len(request_ids),
                error,
            )
        if request_ids:
            await self._pool.release(request_ids)
