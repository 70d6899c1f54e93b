"""A process as one of the ranks with parts of a model.

Gateways see rank 0, the verifier; the others follow it. When one ends or hangs, all end. They are started by
torchrun, on one machine or several, or on this machine by `verifier_svc.launcher`.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import torch

from specinfer.model.parallel.executor import ParallelExecutor
from specinfer.model.parallel.layout import Layout
from specinfer.model.parallel.ranks import Ranks
from specinfer.service.threads import EngineThread
from specinfer.system.parent_process import end_with_parent
from verifier_svc.settings import VerifierSettings

log = logging.getLogger(__name__)
_BEATS = 3
"""Signs of life in the time after which a rank is lost."""


def layout_of(settings: VerifierSettings) -> Layout:
    """Return the division of the model in the settings."""
    return Layout(settings.tensor_parallel, settings.pipeline_parallel)


def own_rank() -> int | None:
    """Return this process' number, if torchrun or `launch` started it."""
    return int(os.environ["RANK"]) if torch.distributed.is_torchelastic_launched() else None


def join(settings: VerifierSettings) -> Ranks | None:
    """Join the ranks; None if there is only one."""
    if layout_of(settings).ranks == 1:
        return None
    end_with_parent(signal.SIGKILL)
    return Ranks.join(layout_of(settings), settings.device, settings.rank_timeout_seconds)


async def follow(executor: ParallelExecutor, thread: EngineThread) -> None:
    """Work as any rank but the first. Only rank 0 ends it."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)
    await thread.call(executor.follow)
    await thread.call(executor.ranks.leave)


@asynccontextmanager
async def leading(
    executor: ParallelExecutor | None, thread: EngineThread, timeout_s: float
) -> AsyncIterator[None]:
    """Send heartbeats of rank 0 to the others; end them after it."""
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
            log.info("stages were idle for %.0f %% of all passes", 100 * executor.stage_seconds.bubble)
        await thread.call(executor.stop)
        await thread.call(executor.ranks.leave)


async def _beat(executor: ParallelExecutor, thread: EngineThread, every_s: float) -> None:
    while True:
        await asyncio.sleep(every_s)
        await thread.call(executor.beat)
