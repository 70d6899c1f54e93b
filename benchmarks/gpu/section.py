"""Input and output of a section."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from benchmarks.gpu.scale import Budget, Scale
from benchmarks.gpu.timers import Timer

Rows = list[dict[str, Any]]


def give_back_memory(device: str) -> None:
    """Lets others have the device's memory that nobody here uses; executors and their graphs form cycles."""
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()


@dataclass(frozen=True, slots=True)
class SectionContext:
    """The device, the timer and the scale that a section works with."""

    device: str
    timer: Timer
    scale: Scale
    budget: Budget
    """Budget of this section."""
    say: Callable[[str], None]
    results: dict[str, Rows]
    """Rows of the sections before, by name."""


class Measure(Protocol):
    """Measures; adds each row as soon as it stands, so that what there is is kept when time is up."""

    def __call__(self, context: SectionContext, rows: Rows) -> None: ...


@dataclass(frozen=True, slots=True)
class Section:
    """One part of the report."""

    name: str
    load: Callable[[], Measure]
    """Imports what measures, so that what a machine lacks costs this section only."""
    seconds: float
    """Most time it may take; what it leaves is the others'."""
    devices: int = 1
    """GPUs that it needs."""
