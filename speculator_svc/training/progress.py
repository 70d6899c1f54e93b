"""The console of the training commands: progress on standard error."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from speculator_svc.training.batches import Material
from speculator_svc.training.distil import DistilOptions, distil
from speculator_svc.training.interruption import deferred_signals

console = Console(stderr=True)


def progress_bar() -> Progress:
    """A bar with elapsed and remaining time."""
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


@contextmanager
def finishing(state: Path, out: Path) -> Iterator[None]:
    """The checkpoint is written within: whole or not there. Behind it the state of the training goes, so that
    whoever trains again begins anew."""
    with deferred_signals():
        yield
        state.unlink()
    console.print(f"saved {out}")


def distil_with_bar(
    student: nn.Module,
    examples: Material[Any],
    options: DistilOptions,
    state: Path,
    loss_of: Callable[[Any, Any], Tensor],
) -> int:
    """`distil`, with a bar that tells the mean loss of the latest fifty steps."""
    with progress_bar() as bar:
        task = bar.add_task("training", total=options.minutes)
        average: list[float] = []

        def report(minutes: float, loss: float, seen: int) -> None:
            average.append(loss)
            del average[:-50]
            mean = sum(average) / len(average)
            bar.update(task, completed=minutes, description=f"loss {mean:.3f}, {seen / 1e6:.2f} M tokens")

        return distil(student, examples, options, state, report, loss_of)
