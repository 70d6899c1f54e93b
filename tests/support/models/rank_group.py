"""Run the ranks of a model as processes, forked from a server that has imported torch."""

import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

import torch

from specinfer.cli.local.processes import free_ports
from specinfer.model.parallel.layout import Layout
from specinfer.model.parallel.ranks import Ranks
from tests.support.preloaded import FORK_SERVER

_PATIENCE_S = 240.0
STILL_RUNNING = -1000


def run_ranks(layout: Layout, work: Callable[..., Any], *arguments: Any, device: str = "cpu") -> Any:
    """Call `work(ranks, *arguments)` in every rank; return the result of rank 0. Every rank must succeed."""
    with ranks_of(layout, _PATIENCE_S, work, arguments, device) as (processes, receiver):
        assert receiver.poll(_PATIENCE_S), "rank 0 says nothing"
        failed, result = receiver.recv()
        assert not failed, result
        assert _exit_codes(processes) == [0] * layout.ranks
    return result


def exit_codes(layout: Layout, timeout_s: float, work: Callable[..., Any], *arguments: Any) -> list[int]:
    """Return the exit codes of all ranks; they wait for each other for at most `timeout_s`."""
    with ranks_of(layout, timeout_s, work, arguments) as (processes, _):
        return _exit_codes(processes)


@contextmanager
def ranks_of(
    layout: Layout,
    timeout_s: float,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    device: str = "cpu",
) -> Iterator[tuple[list[ForkServerProcess], Connection]]:
    """Start the ranks; end the remaining ones at the end of the context."""
    receiver, sender = FORK_SERVER.Pipe(duplex=False)
    (port,) = free_ports(1)
    processes = [
        FORK_SERVER.Process(
            target=_rank, args=(rank, layout, port, timeout_s, sender, work, arguments, device), daemon=True
        )
        for rank in range(layout.ranks)
    ]
    for process in processes:
        process.start()
    try:
        yield processes, receiver
    finally:
        for process in processes:
            process.kill()


def _exit_codes(processes: Sequence[ForkServerProcess]) -> list[int]:
    for process in processes:
        process.join(_PATIENCE_S)
    return [process.exitcode if process.exitcode is not None else STILL_RUNNING for process in processes]


def _rank(
    rank: int,
    layout: Layout,
    port: int,
    timeout_s: float,
    sender: Connection,
    work: Callable[..., Any],
    arguments: tuple[Any, ...],
    device: str,
) -> None:
    """Set torchrun's environment variables, and call `work`."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(layout.ranks))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    try:
        ranks = Ranks.join(layout, device, timeout_s)
        result = work(ranks, *arguments)
        ranks.leave()
    except BaseException:
        sender.send((True, f"rank {rank}: {traceback.format_exc()}"))
        raise
    if rank == 0:
        sender.send((False, result))
