"""The processes of a verifier whose model several ranks share.

    python -m verifier_svc --tensor-parallel 2          starts them on this machine, by torchrun's own API
    torchrun ... -m verifier_svc --tensor-parallel 2    starts them on one machine or several

Rank 0 is the verifier that gateways see; the others do what it says. When one ends or hangs, all end.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import torch
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from specinfer.hub import resolve_model
from specinfer.model.parallel.executor import ParallelExecutor
from specinfer.model.parallel.layout import Layout, check_layout
from specinfer.model.parallel.ranks import LOST_GROUP, Ranks
from specinfer.model.weights.config import load_config
from specinfer.service.engine_thread import EngineThread
from specinfer.service.parent import end_with_parent
from verifier_svc.settings import VerifierSettings

log = logging.getLogger(__name__)
_BEATS = 3
"""In the time after which a rank is lost."""


def layout_of(settings: VerifierSettings) -> Layout:
    """How the settings divide the model."""
    return Layout(settings.tensor_parallel, settings.pipeline_parallel)


def own_rank() -> int | None:
    """This process' number, if torchrun or `launch` started it."""
    return int(os.environ["RANK"]) if torch.distributed.is_torchelastic_launched() else None


def launch(settings: VerifierSettings, program: str) -> None:
    """Starts all ranks on this machine with this process' flags and waits for their end.

    Raises:
        SettingError: if the model cannot be divided so.
    """
    layout = layout_of(settings)
    check_layout(load_config(resolve_model(settings.model)), layout)  # said once, not by every rank
    threads = max(1, (os.cpu_count() or 1) // layout.ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # `_explain` says it in a line
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=layout.ranks,
        run_id=secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        shutdown_timeout=round(2 * settings.drain_seconds) + 1,
    )
    log.info("starting %d ranks: %s", layout.ranks, layout)
    try:
        elastic_launch(config, sys.executable)("-m", program, *sys.argv[1:])
    except SignalException:
        log.info("all ranks have ended")
    except ChildFailedError as error:
        log.critical("%s", _explain(error.failures))
        sys.exit(1)


def _explain(failures: Mapping[int, ProcessFailure]) -> str:
    """Which rank ended first: those that lost it say so by their exit code."""
    first = {rank: each for rank, each in failures.items() if each.exitcode != LOST_GROUP}
    rank, failure = next(iter((first or failures).items()))
    how = (
        f"was ended by {signal.Signals(-failure.exitcode).name}"
        if failure.exitcode < 0
        else f"ended with code {failure.exitcode}"
    )
    return f"rank {rank} (process {failure.pid}) {how}; the verifier ends with all of its ranks"


def join(settings: VerifierSettings) -> Ranks | None:
    """This process' place among the ranks; None if there are no others."""
    if layout_of(settings).ranks == 1:
        return None
    end_with_parent(signal.SIGKILL)
    return Ranks.join(layout_of(settings), settings.device, settings.rank_timeout_seconds)


async def follow(executor: ParallelExecutor, thread: EngineThread) -> None:
    """What every rank but the first does; rank 0 says when it ends, signals do not."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: None)
    await thread.call(executor.follow)
    await thread.call(executor.ranks.leave)


@asynccontextmanager
async def leading(
    executor: ParallelExecutor | None, thread: EngineThread, timeout_s: float
) -> AsyncIterator[None]:
    """Shows the other ranks that rank 0 lives, and lets them end behind it."""
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
