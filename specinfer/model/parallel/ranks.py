"""Connects the ranks of one model, and sends messages between them.

The only file that imports `torch.distributed`.

Commands and times go over gloo between hosts; activations go over NCCL between GPUs, or over gloo between CPUs. If a
rank does not answer within the timeout, or its connection breaks, all ranks end (`end_process`).
"""

import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from specinfer.errors import SettingError
from specinfer.model.parallel.layout import Layout, Place

log = logging.getLogger(__name__)
_START_SECONDS = 600.0
"""Timeout in seconds until all ranks, on all machines, have started."""
LOST_GROUP = 75
"""Exit code of a rank after a fault, or without another rank."""


class Ranks:
    """This process's place among the ranks, and its connections."""

    def __init__(self, place: Place, device: str, timeout_s: float) -> None:
        """Create the process groups; all ranks must call it together."""
        self.place, self.device, self._timeout_s = place, device, timeout_s
        layout, timeout = place.layout, timedelta(seconds=timeout_s)
        self._control = dist.new_group(backend="gloo", timeout=timeout)
        stages = [
            list(range(stage * layout.tensor, (stage + 1) * layout.tensor)) for stage in range(layout.stages)
        ]
        groups = [dist.new_group(ranks, timeout=timeout) for ranks in stages]
        self._stage = groups[place.stage]
        # two groups: on a GPU a connection sends in call order, and neither direction may wait for the other
        self._onward, self._back = dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)

    @classmethod
    def join(cls, layout: Layout, device: str, timeout_s: float) -> "Ranks":
        """Connect to the ranks that torchrun started (variables RANK, WORLD_SIZE, ...).

        Args:
            device: "cpu", or "cuda": each rank then uses the GPU with its LOCAL_RANK.
            timeout_s: seconds after which a rank that does not answer is lost.
        """
        started = int(os.environ["WORLD_SIZE"])
        if started != layout.ranks:
            raise SettingError(
                "tensor_parallel",
                layout.tensor,
                f"times pipeline_parallel = {layout.stages} must be the number of started ranks, {started}",
            )
        backend = "gloo"
        if torch.device(device).type == "cuda":
            device, backend = f"cuda:{os.environ['LOCAL_RANK']}", "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=timedelta(seconds=_START_SECONDS))
        return cls(Place(layout, dist.get_rank()), device, timeout_s)

    @property
    def is_leader(self) -> bool:
        return self.place.rank == 0

    def tell(self, command: Sequence[Any]) -> None:
        """Send a command from rank 0 to all other ranks."""
        dist.broadcast_object_list([command], 0, self._control, torch.device("cpu"))

    def receive_command(self) -> Sequence[Any]:
        """Wait for rank 0's next command, up to the timeout."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, 0, self._control, torch.device("cpu"))
        command: Sequence[Any] = box[0]
        return command

    def gather(self, item: Any) -> list[Any]:
        """Return all ranks' objects at rank 0; elsewhere return an empty list."""
        box: list[Any] | None = [None] * self.place.layout.ranks if self.is_leader else None
        dist.gather_object(item, box, 0, self._control)
        return box or []

    def gather_number(self, number: float) -> list[float]:
        """Return all ranks' numbers at rank 0; elsewhere return an empty list."""
        tensor = torch.tensor([number], dtype=torch.float64)
        box = [torch.empty_like(tensor) for _ in range(self.place.layout.ranks)] if self.is_leader else None
        dist.gather(tensor, box, 0, self._control)
        return [float(value) for value in box or ()]

    def meet(self, timeout_s: float | None = None) -> None:
        """Wait for all ranks, by default for half of the timeout.

        So rank 0 fails first and its error names the missing rank. Other ranks could blame a rank that only waits.
        """
        # less than the others' timeout for rank 0: see the docstring
        timeout = timedelta(seconds=timeout_s or self._timeout_s / 2)
        dist.monitored_barrier(self._control, timeout)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the stage's tensors in place, and return the sum."""
        dist.all_reduce(x, group=self._stage)
        return x

    def concatenated(self, x: torch.Tensor) -> torch.Tensor:
        """Concatenate columns [R, columns] of the stage's ranks, at its first rank.

        Other ranks return x.
        """
        layout, first = self.place.layout, self.place.stage * self.place.layout.tensor
        parts = None
        if not self.place.tensor:
            parts = [torch.empty_like(x) for _ in range(layout.tensor)]
        dist.gather(x.contiguous(), parts, first, self._stage)
        return x if parts is None else torch.cat(parts, dim=-1)

    def forward(self, x: torch.Tensor) -> Callable[[], object]:
        """Start sending x to the next stage; returns a function that waits.

        x must not change before the function returns.
        """
        return _sent(dist.isend(x, self.place.rank + self.place.layout.tensor, self._onward))

    def from_previous_stage(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Receive a tensor that `forward` sent."""
        x = torch.empty(*shape, dtype=dtype, device=self.device)
        dist.recv(x, self.place.rank - self.place.layout.tensor, self._onward)
        return x

    def back(self, x: torch.Tensor) -> Callable[[], object]:
        """Start sending x to rank 0; returns a function that waits.

        x must not change before the function returns.
        """
        return _sent(dist.isend(x.contiguous(), 0, group=self._back))

    def from_stage(self, stage: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Receive at rank 0 a tensor that a stage's first rank sent."""
        x = torch.empty(*shape, dtype=dtype, device=self.device)
        dist.recv(x, stage * self.place.layout.tensor, group=self._back)
        return x

    def leave(self) -> None:
        """Close the connections; all ranks must call it after the last command."""
        dist.destroy_process_group()


def _sent(work: dist.Work | None) -> Callable[[], object]:
    assert work is not None, "both are members of the group"
    return work.wait


def end_process(rank: int, what: str, error: BaseException) -> NoReturn:
    """End this process at once: other ranks may be in another state.

    Rank 0 logs a critical error, other ranks a warning.
    """
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    level = logging.CRITICAL if rank == 0 else logging.WARNING
    log.log(level, "rank %d: %s failed, so all ranks end: %s", rank, what, reason)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(LOST_GROUP)
