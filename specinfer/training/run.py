"""Common options of training commands, saved state, and signals."""

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Annotated, NamedTuple

import torch
import typer
from torch import nn

from specinfer.errors import SettingError, SpecInferError
from specinfer.hub import DEFAULT_MODEL
from specinfer.model.threads import use_threads
from specinfer.model.weights.source import is_draft_checkpoint
from specinfer.options.model_options import Option
from specinfer.system.atomic_files import replacing
from specinfer.system.machine import check_device
from specinfer.system.threads import THREADS_HELP
from specinfer.training.generate import LABEL_WIDTH

Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU if present.")]


def place_for(device: str, threads: int) -> str:
    """Return the device to train on; set the number of threads."""
    place = pick_device(device)
    use_threads(threads)
    return place


def pick_device(name: str) -> str:
    """Return the torch device for `--device`."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    check_device(name)
    return name


@cache
def bfloat16_is_fast(device: torch.device) -> bool:
    """Return whether a product in bfloat16 is no slower than one in float32."""
    if device.type != "cpu":
        return True
    return torch.ops.mkldnn._is_mkldnn_bf16_supported() and _seconds(torch.bfloat16) <= _seconds(
        torch.float32
    )


def _seconds(dtype: torch.dtype) -> float:
    """Return the CPU seconds of a product, the best of three after a warm-up."""
    left, right = torch.ones(256, 1024, dtype=dtype), torch.ones(2048, 1024, dtype=dtype)
    durations = []
    for _ in range(4):
        began = time.process_time()
        torch.nn.functional.linear(left, right)
        durations.append(time.process_time() - began)
    return min(durations[1:])


Target = Annotated[str, typer.Option(help="The target.")]
Threads = Annotated[int, typer.Option(help=f"CPU threads; {THREADS_HELP}.")]


@dataclass(frozen=True, kw_only=True)
class TrainingFlags:
    """Flags of all commands that distil a target."""

    corpus: Annotated[list[Path], Option("JSONL files of the target's continuations, may be gzipped.")]
    out: Annotated[Path, Option("Directory of the finished checkpoint.")]
    model: Target = DEFAULT_MODEL
    vocabulary: Annotated[
        int | None, Option("Size of the draft vocabulary; not given: 8192, or the target's if smaller.")
    ] = None
    seed: Annotated[int, Option("Seed of the batches.")] = 0
    threads: Threads = 0
    device: Device = "auto"
    overwrite: Annotated[bool, Option("Train even if --out is finished, and replace it at the end.")] = False

    def check(self, kind: str) -> None:
        """Check that `out` has no finished speculator."""
        if not self.overwrite and is_draft_checkpoint(self.out):
            reason = f"has a finished {kind}; --overwrite trains again and replaces it"
            raise SettingError("out", str(self.out), reason)


def layer_numbers(name: str, text: str) -> list[int]:
    """Return the numbers of a comma-separated option."""
    try:
        return [int(number) for number in text.split(",") if number]
    except ValueError as error:
        raise SettingError(name, text, "must be whole numbers, separated by commas") from error


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptionError(SpecInferError):
    """Work ended by a signal; the message explains how to continue."""


@contextmanager
def deferred_signals() -> Iterator[Callable[[], bool]]:
    """Defer SIGINT and SIGTERM, so that work can be saved.

    Yields a function that returns whether a signal came. A second signal acts at once. Works only on the main thread.
    """
    came = False
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(_number: int, _frame: FrameType | None) -> None:
        nonlocal came
        came = True
        restore()

    for number in SIGNALS:
        signal.signal(number, note)
    try:
        yield lambda: came
    finally:
        restore()


class Best(NamedTuple):
    """Best score on held-out data, with the student's weights."""

    score: float
    student: dict[str, torch.Tensor]
    worse: int = 0
    """Number of later scores without improvement."""


def better(best: Best | None, score: float, student: nn.Module) -> Best:
    """Update the best score with the student's new score."""
    if best is not None and score <= best.score:
        return best._replace(worse=best.worse + 1)
    return Best(score, {name: tensor.clone() for name, tensor in student.state_dict().items()})


class TrainingProgress(NamedTuple):
    minutes: float = 0.0
    seen: int = 0
    """Number of tokens trained on."""
    epoch: int = 0
    best: Best | None = None


def save_state(
    student: nn.Module, optimizer: torch.optim.Optimizer, path: Path, progress: TrainingProgress
) -> None:
    """Write the training's state atomically."""
    best = progress.best
    states = {"student": student.state_dict(), "optimizer": optimizer.state_dict()}
    at = {"at": tuple(progress[:3]), "best": None if best is None else tuple(best)}
    with replacing(path) as partial:
        torch.save(states | at, partial)


def restore_state(student: nn.Module, optimizer: torch.optim.Optimizer, path: Path) -> TrainingProgress:
    """Load an interrupted run's state, if there is one; return the progress."""
    if not path.is_file():
        return TrainingProgress()
    state = torch.load(path, map_location=next(student.parameters()).device, weights_only=True)
    if _shapes(state["student"]) != _shapes(student.state_dict()):
        raise SettingError(
            "work", str(path), "is the state of a run with other options; remove it to start again"
        )
    student.load_state_dict(state["student"])
    optimizer.load_state_dict(state["optimizer"])
    minutes, seen, epoch = state["at"]
    best = state.get("best")
    return TrainingProgress(minutes, seen, epoch, Best(*best) if best else None)


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def draft_vocabulary(asked: int | None, target: int) -> int:
    """Return the size of the draft vocabulary."""
    size = min(_USUAL_VOCABULARY, target) if asked is None else asked
    if not LABEL_WIDTH <= size <= target:
        raise SettingError("vocabulary", size, f"must be from {LABEL_WIDTH} to {target}")
    return size


_USUAL_VOCABULARY = 8192
