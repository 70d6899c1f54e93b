"""The state of a training run on disk: what an interrupted run goes on from."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn

from specinfer.errors import SettingError


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
    """(minutes, tokens seen, epoch) of an interrupted run, or zeros.

    Raises:
        SettingError: if it is of a run with other options.
    """
    if not path.is_file():
        return 0.0, 0, 0
    state = torch.load(path, map_location=next(student.parameters()).device, weights_only=True)
    if _shapes(state["student"]) != _shapes(student.state_dict()):
        raise SettingError(
            "work", str(path), "is the state of a run with other options; remove it to begin anew"
        )
    student.load_state_dict(state["student"])
    optimizer.load_state_dict(state["optimizer"])
    minutes, seen, epoch = state["at"]
    return minutes, seen, epoch


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
