"""The ranks of one model: their places and their messages.

The only file that knows `torch.distributed`.

Two kinds of groups: messages of ranks (commands, times) go over gloo from host to host;
activations go over NCCL between GPUs and over gloo between processors. A rank that does not answer within the
timeout, or whose connection breaks, is lost, and with it the group: `end_process` is the only way out.
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
"""Timeout for all ranks to start, perhaps on several machines."""
LOST_GROUP = 75
"""Exit code after other ranks are lost or a part failed."""


class Ranks:
    """This process' place among the ranks, and its connections to them."""

    def __init__(self, place: Place, device: str, timeout_s: float) -> None:
        """Make the groups, simultaneously with all ranks, after `dist` is initialised."""
        self.place, self.device, self._timeout_s = place, device, timeout_s
        layout, timeout = place.layout, timedelta(seconds=timeout_s)
        self._control = dist.new_group(backend="gloo", timeout=timeout)
        stages = [
            list(range(stage * layout.tensor, (stage + 1) * layout.tensor)) for stage in range(layout.stages)
        ]
        groups = [dist.new_group(ranks, timeout=timeout) for ranks in stages]
        self._stage = groups[place.stage]
        # two: on a GPU a connection sends in the order of its calls, and neither way may wait for the other
        self._onward, self._back = dist.new_group(timeout=timeout), dist.new_group(timeout=timeout)

    @classmethod
    def join(cls, layout: Layout, device: str, timeout_s: float) -> "Ranks":
        """Join with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, ...).

        Args:
            device: "cpu", or "cuda": then each rank takes the GPU of its number on its machine.
            timeout_s: after which a rank that does not answer is lost.

        Raises:
            SettingError: if there are not as many ranks as the layout has.
        """
        started = int(os.environ["WORLD_SIZE"])
        if started != layout.ranks:
            raise SettingError(
                "tensor_parallel",
                layout.tensor,
                f"times pipeline_parallel = {layout.stages} is not the number of started ranks, {started}",
            )
        backend = "gloo"
        if torch.device(device).type == "cuda":
            device, backend = f"cuda:{os.environ['LOCAL_RANK']}", "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device)
        dist.init_process_group(backend, timeout=timedelta(seconds=_START_SECONDS))
        return cls(Place(layout, dist.get_rank()), device, timeout_s)

    @property
    def is_leader(self) -> bool:
        """True if this is rank 0."""
        return self.place.rank == 0

    def tell(self, command: Sequence[Any]) -> None:
        """Send the next command from rank 0 to all."""
        dist.broadcast_object_list([command], 0, self._control, torch.device("cpu"))

    def receive_command(self) -> Sequence[Any]:
        """Return rank 0's next command, waiting at most the timeout."""
        box: list[Any] = [None]
        dist.broadcast_object_list(box, 0, self._control, torch.device("cpu"))
        command: Sequence[Any] = box[0]
        return command

    def gather(self, item: Any) -> list[Any]:
        """Return all ranks' objects at rank 0; nothing elsewhere."""
        box: list[Any] | None = [None] * self.place.layout.ranks if self.is_leader else None
        dist.gather_object(item, box, 0, self._control)
        return box or []

    def gather_number(self, number: float) -> list[float]:
        """Return all ranks' numbers at rank 0; nothing elsewhere."""
        tensor = torch.tensor([number], dtype=torch.float64)
        box = [torch.empty_like(tensor) for _ in range(self.place.layout.ranks)] if self.is_leader else None
        dist.gather(tensor, box, 0, self._control)
        return [float(value) for value in box or ()]

    def meet(self, timeout_s: float | None = None) -> None:
        """Wait for all ranks, half the usual time.

        Rank 0's error names a missing one, which may itself wait for a lost one.
        """
        # less than the others wait for rank 0, which else could lose one of them first and blame that one
        timeout = timedelta(seconds=timeout_s or self._timeout_s / 2)
        dist.monitored_barrier(self._control, timeout)

    def add(self, x: torch.Tensor) -> torch.Tensor:
        """Sum the stage's tensors in place, and return the sum."""
        dist.all_reduce(x, group=self._stage)
        return x

    def concatenated(self, x: torch.Tensor) -> torch.Tensor:
        """Concatenate [R, columns] at this stage's first rank.

        Elsewhere, x itself is returned.
        """
        layout, first = self.place.layout, self.place.stage * self.place.layout.tensor
        parts = None
        if not self.place.tensor:
            parts = [torch.empty_like(x) for _ in range(layout.tensor)]
        dist.gather(x.contiguous(), parts, first, self._stage)
        return x if parts is None else torch.cat(parts, dim=-1)

    def forward(self, x: torch.Tensor) -> Callable[[], object]:
        """Send to the next stage; call the result before changing x."""
        return _sent(dist.isend(x, self.place.rank + self.place.layout.tensor, self._onward))

    def from_previous_stage(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Wait for a tensor from the same place of the stage before."""
        x = torch.empty(*shape, dtype=dtype, device=self.device)
        dist.recv(x, self.place.rank - self.place.layout.tensor, self._onward)
        return x

    def back(self, x: torch.Tensor) -> Callable[[], object]:
        """Send to rank 0."""
        return _sent(dist.isend(x.contiguous(), 0, group=self._back))

    def from_stage(self, stage: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Receive a stage's tensor at rank 0."""
        x = torch.empty(*shape, dtype=dtype, device=self.device)
        dist.recv(x, stage * self.place.layout.tensor, group=self._back)
        return x

    def leave(self) -> None:
        """Close the connections; every rank does, when all is done."""
        dist.destroy_process_group()


def _sent(work: dist.Work | None) -> Callable[[], object]:
    assert work is not None, "both are members of the group"
    return work.wait


def end_process(rank: int, what: str, error: BaseException) -> NoReturn:
    """End this rank at once, after a failed exchange.

    The others' state is unknown. Rank 0 logs a critical error, the others a warning.
    """
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    level = logging.CRITICAL if rank == 0 else logging.WARNING
    log.log(level, "rank %d: %s failed, the whole group ends: %s", rank, what, reason)
    logging.shutdown()
    sys.stderr.flush()
    os._exit(LOST_GROUP)
