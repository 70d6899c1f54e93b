"""The state of a training run on disk: what an interrupted run goes on from."""

from pathlib import Path

import torch
from torch import nn


def save_state(
    student: nn.Module, optimizer: torch.optim.Optimizer, path: Path, progress: tuple[float, int, int]
) -> None:
    """Writes the state whole or not at all; `progress` is (minutes, tokens seen, epoch)."""
    partial = path.with_suffix(".part")
    torch.save(
        {"student": student.state_dict(), "optimizer": optimizer.state_dict(), "at": progress}, partial
    )
    partial.replace(path)


def restore_state(student: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> tuple[float, int, int]:
    """(minutes, tokens seen, epoch) of an interrupted run, or zeros."""
    if not path.is_file():
        return 0.0, 0, 0
    state = torch.load(path, map_location=next(student.parameters()).device, weights_only=True)
    student.load_state_dict(state["student"])
    optimizer.load_state_dict(state["optimizer"])
    minutes, seen, epoch = state["at"]
    return minutes, seen, epoch
