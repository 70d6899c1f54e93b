"""Where the numbers of a pass lie on the device: always in the same place, copied there once per pass."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class Inputs:
    """A pinned array on the host and its copy on the device."""

    def __init__(self, capacity: int, device: str) -> None:
        """`capacity` counts int32 numbers: what captured passes need at most. Others may need more."""
        self._device = torch.device(device)
        self._cuda = self._device.type == "cuda"
        self._copied: Any = None
        if self._cuda:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._host = torch.zeros(capacity, dtype=torch.int32, pin_memory=self._cuda)
        self.numbers = torch.zeros(capacity, dtype=torch.int32, device=self._device)
        """[capacity] int32 on the device."""

    def load(self, numbers: NDArray[np.int32]) -> torch.Tensor:
        """Copies the numbers of a pass; returns where they lie, [capacity]."""
        count = len(numbers)
        if self._copied is not None:
            self._copied.synchronize()  # the copy before, which may still read the host's array
        if count > len(self._host):
            return torch.from_numpy(numbers).to(self._device)
        self._host[:count] = torch.from_numpy(numbers)
        self.numbers[:count].copy_(self._host[:count], non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        return self.numbers
