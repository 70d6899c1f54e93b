"""Train a student by distillation for a given time, with saved state.

The learning rate is zero at the end of the time. State is saved every two minutes, on SIGINT or SIGTERM, and at the
end; the same command continues from the saved state.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor, nn

from specinfer.training.corpus import B, Examples, Material, Teaching, TrainingBatch, batches
from specinfer.training.run import (
    InterruptionError,
    TrainingProgress,
    better,
    bfloat16_is_fast,
    deferred_signals,
    restore_state,
    save_state,
)
from specinfer.training.student import Student

_MIN_ACCEPTED = 1e-6
"""Lower bound of the acceptance in the loss, for a finite logarithm."""


class Labelled(Protocol):
    """Labels of R tokens."""

    @property
    def label_ids(self) -> torch.Tensor:
        """[R, K] indices into the draft vocabulary."""

    @property
    def label_probabilities(self) -> torch.Tensor:
        """[R, K] the target's probabilities, renormalised over these tokens."""


def distillation_loss(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Return cross-entropy minus log acceptance, averaged over rows.

    `logits` [R, draft vocabulary] give Q, labels give P. The second term, -log sum(min(P, Q)) (an LK loss, arXiv
    2602.23881), is small if Q is accepted often: a model too small to match all of P should concentrate on this. Rows
    without any of P in the draft vocabulary have no loss.
    """
    p = batch.label_probabilities
    log_q = logits.gather(-1, batch.label_ids) - logits.logsumexp(-1, keepdim=True)
    accepted = torch.minimum(p, log_q.exp()).sum(-1)
    cross_entropy = -(p * log_q).sum(-1)
    return (cross_entropy - (p.sum(-1) > 0) * accepted.clamp_min(_MIN_ACCEPTED).log()).mean()


def ssm_loss(student: Student, batch: TrainingBatch) -> torch.Tensor:
    return distillation_loss(ssm_logits(student, batch), batch)


def ssm_logits(student: Student, batch: TrainingBatch) -> torch.Tensor:
    """Return logits [R, draft vocabulary] at a batch's output positions."""
    with rough(student.device):
        logits: torch.Tensor = student(batch.token_ids, batch.rows)
    return logits


def rough(device: torch.device) -> torch.autocast:
    """Return an autocast to bfloat16, disabled if bfloat16 is slow."""
    return torch.autocast(device.type, torch.bfloat16, enabled=bfloat16_is_fast(device))


@dataclass(frozen=True, slots=True)
class Success:
    """Share of tokens that are among a draft's top k."""

    top: dict[int, float]
    """k -> share of tokens within the top k."""

    def to_json(self) -> dict[str, float]:
        """Return the shares as JSON, by k."""
        return {f"top{k}": round(share, 4) for k, share in self.top.items()}

    def __str__(self) -> str:
        return " / ".join(f"{100 * share:.1f}" for share in self.top.values()) + f" % (top {list(self.top)})"


@torch.inference_mode()
def ranks(
    student: Student, examples: Examples, vocabulary: torch.Tensor, max_rank: int = 5
) -> list[NDArray[np.int64]]:
    """Return each output token's rank in the logits, from 0 to `max_rank`.

    `max_rank` stands for all higher ranks and for tokens outside the draft vocabulary.
    """
    ranks_by_text: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(examples.corpus)
    whole = Examples(examples.corpus, examples.labels)
    for indices, batch in batches(whole, 4096, np.random.default_rng(0)):
        logits = ssm_logits(student, batch.to(student.device))
        best = vocabulary[logits.topk(max_rank, dim=-1).indices.cpu()]
        hit = best == batch.next_tokens[:, None]
        place = torch.where(hit.any(-1), hit.int().argmax(-1), max_rank).numpy()
        cuts = np.cumsum([len(examples.corpus[i].output) for i in indices])[:-1]
        for index, part in zip(indices, np.split(place, cuts), strict=True):
            ranks_by_text[index] = part
    return ranks_by_text


def success_by_depth(
    places: Sequence[NDArray[np.int64]], depths: int = 4, max_rank: int = 5
) -> list[Success]:
    """Return the success at each depth, given correct guesses at earlier depths.

    Args:
        places: rank of every output token of each continuation, as `ranks` returns them.
        depths: number of tokens ahead.
        max_rank: maximum k of the top k.
    """
    success = []
    for depth in range(depths):
        reached = [
            place[i] for place in places for i in range(depth, len(place)) if not place[i - depth : i].any()
        ]
        at = np.array(reached, np.int64)
        success.append(
            Success({k: float((at < k).mean()) if reached else 0.0 for k in range(1, max_rank + 1)})
        )
    return success


SAVE_EVERY_S = 120.0
SCORE_SHARE = 0.05
"""Scoring interval as a share of the training time."""
PATIENCE = 5
"""Number of scores without improvement after which training stops."""
_LINE_EVERY_S = 60.0
LONGEST_STEP_S = 120.0
"""Maximum seconds counted per step: a suspended run loses no time."""


@dataclass(frozen=True, slots=True)
class DistilOptions:
    minutes: float
    learning_rate: float = 1e-3
    tokens_per_batch: int = 1024
    """Tokens of a batch; small, since many steps beat precise steps."""
    warmup_share: float = 0.02
    weight_decay: float = 0.01
    seed: int = 0


def distil(
    student: nn.Module,
    examples: Material[B],
    options: DistilOptions,
    state_path: Path,
    report: Callable[[float, float, int], None],
    loss_of: Callable[[Any, Any], torch.Tensor] = ssm_loss,
    score: Callable[[], float] | None = None,
) -> int:
    """Train in place for `options.minutes`; return the number of tokens seen.

    `report(minutes, loss, tokens seen)` is called after every step; `loss_of` gets a student and a batch.
    With `score`, which measures the student on held-out data, the student with the best score is restored at
    the end, and training stops early after `PATIENCE` scores without improvement.
    """
    optimizer = torch.optim.AdamW(
        student.parameters(), options.learning_rate, weight_decay=options.weight_decay, fused=True
    )
    minutes, seen, first_epoch, best = restore_state(student, optimizer, state_path)
    last = saved = time.monotonic()
    scored = first_epoch, minutes
    with deferred_signals() as signalled:
        for epoch, batch in _epochs(examples, options, first_epoch):
            now = time.monotonic()
            minutes, last = minutes + min(now - last, LONGEST_STEP_S) / 60, now
            due = scored[1] + SCORE_SHARE * options.minutes
            if score is not None and epoch > scored[0] and due <= minutes < options.minutes:
                scored, best = (epoch, minutes), better(best, score(), student)
                last = time.monotonic()
            late = best is not None and best.worse >= PATIENCE
            ending = signalled() or minutes >= options.minutes or late
            if ending or now - saved > SAVE_EVERY_S:
                saved = now
                save_state(student, optimizer, state_path, TrainingProgress(minutes, seen, epoch, best))
            if ending:
                break
            if not len(batch.next_tokens):
                continue
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _schedule(
                    minutes / options.minutes, options.warmup_share
                )
            loss = train_step(student, optimizer, batch, loss_of)
            seen += len(batch.next_tokens)
            report(minutes, loss, seen)
    if minutes < options.minutes and not late:
        raise InterruptionError(
            f"after {minutes:.1f} of {options.minutes:g} minutes, which are saved in {state_path}; "
            "the same command continues"
        )
    if score is not None:
        student.load_state_dict(better(best, score(), student).student)
    return seen


def _epochs(examples: Material[B], options: DistilOptions, first: int) -> Iterator[tuple[int, B]]:
    """Yield (epoch, batch) without end."""
    for epoch in itertools.count(first):
        rng = np.random.default_rng((options.seed, epoch))
        for _, batch in batches(examples, options.tokens_per_batch, rng):
            yield epoch, batch


def train_step(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Teaching,
    loss_of: Callable[[Any, Any], torch.Tensor],
) -> float:
    """Do one step of the optimizer; return the loss before the step."""
    loss = loss_of(student, batch.to(next(student.parameters()).device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _schedule(done: float, warmup: float) -> float:
    """Return the learning rate's factor at a share `done` of the time."""
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


console = Console(stderr=True)


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=console)


class Reports:
    """Shows work in a bar; prints a line a minute where there is no terminal."""

    def __init__(self, bar: Progress, task: str, total: float) -> None:
        self._bar, self._task, self._total = bar, bar.add_task(task, total=total), total
        self._shown = time.monotonic()

    def show(self, minutes: float, tokens: int, what: str) -> None:
        """Show what was done to `tokens` tokens in a part of the total minutes."""
        rate, left = tokens / max(60 * minutes, 1e-9), max(self._total - minutes, 0)
        line = f"{what}{tokens:,} tokens, {rate:.0f} tokens/s, {left:.0f} minutes left"
        self._bar.update(self._task, completed=minutes, description=line)
        if not console.is_terminal and time.monotonic() - self._shown > _LINE_EVERY_S:
            self._shown = time.monotonic()
            console.print(line, highlight=False)


@contextmanager
def finishing(state: Path, out: Path) -> Iterator[None]:
    """Defer signals while the caller writes a checkpoint; then remove the state.

    A later training then starts from the beginning.
    """
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
    score: Callable[[], float] | None = None,
    progressed: Callable[[float], None] = lambda share: None,
) -> int:
    """Call `distil` with a progress bar and the mean of fifty losses.

    `progressed` gets the share of the time that is over, after every step.
    """
    with progress_bar() as bar:
        shown = Reports(bar, "training", options.minutes)
        average: list[float] = []

        def report(minutes: float, loss: float, seen: int) -> None:
            average.append(loss)
            del average[:-50]
            mean = sum(average) / len(average)
            progressed(minutes / options.minutes)
            shown.show(minutes, seen, f"loss {mean:.3f}, ")

        return distil(student, examples, options, state, report, loss_of, score)
