"""Runs a process that is one of the model's ranks.

Rank 0 is the verifier that gateways call; the other ranks run the passes that rank 0 sends. If a rank ends or hangs,
all end. torchrun starts them, on one machine or several, or `verifier_svc.launcher` does on this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from specinfer.model.parallel.layout import Layout
from specinfer.service.threads import EngineThread
from specinfer.system.parent_process import end_with_parent
from verifier_svc.settings import VerifierSettings

if TYPE_CHECKING:
    from specinfer.model.parallel.executor import ParallelExecutor
    from specinfer.model.parallel.ranks import Ranks

log = logging.getLogger(__name__)
_BEATS = 3
"""Number of heartbeats per `rank_timeout_seconds`."""


def layout_of(settings: VerifierSettings) -> Layout:
    return Layout(settings.tensor_parallel, settings.pipeline_parallel)


def own_rank() -> int | None:
    """Return this process's rank; None if neither torchrun nor `launch` started it."""
    return int(os.environ["RANK"]) if "TORCHELASTIC_RUN_ID" in os.environ else None


def join(settings: VerifierSettings) -> Ranks | None:
    """Join the group of ranks; return None if there is one rank."""
    if layout_of(settings).ranks == 1:
        return None
    from specinfer.model.parallel.ranks import Ranks

    end_with_parent(signal.SIGKILL)
    return Ranks.join(layout_of(settings), settings.device, settings.rank_timeout_seconds)


async def follow(executor: ParallelExecutor, thread: EngineThread) -> None:
    """Run rank 0's passes until rank 0 stops; ignore SIGTERM and SIGINT."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)
    await thread.call(executor.follow)
    await thread.call(executor.ranks.leave)


@asynccontextmanager
async def leading(
    executor: ParallelExecutor | None, thread: EngineThread, timeout_s: float
) -> AsyncIterator[None]:
    """Send heartbeats to the other ranks during the block; then stop them."""
    if executor is None:
        yield
        return
    beats = asyncio.create_task(_beat(executor, thread, timeout_s / _BEATS))
    try:
        yield
    finally:
        beats.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beats
        if executor.stage_seconds.busy:
            log.info("pipeline stages were idle %.0f %% of the time", 100 * executor.stage_seconds.bubble)
        await thread.call(executor.stop)
        await thread.call(executor.ranks.leave)


async def _beat(executor: ParallelExecutor, thread: EngineThread, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await thread.call(executor.beat)
