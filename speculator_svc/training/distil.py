"""Runs of training: a schedule by time, steps, and the state of a run that was interrupted.

The schedule follows time, not steps: a run is told how many minutes it may take and its learning rate
ends at zero just then. State is saved every few minutes, on SIGINT or SIGTERM, and at the end; the same
command goes on where it stopped.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from speculator_svc.training.batches import B, Material, Teaching, batches
from speculator_svc.training.interruption import InterruptionError, deferred_signals
from speculator_svc.training.loss import ssm_loss
from speculator_svc.training.state import restore_state, save_state

SAVE_EVERY_S = 120.0
LONGEST_STEP_S = 10.0
"""A step never counts for more, so that a run that was suspended for a while loses nothing."""


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """How to train."""

    minutes: float
    learning_rate: float = 1e-3
    tokens_per_batch: int = 4096
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
) -> int:
    """Trains in place until the time is over; returns the tokens seen.

    `report(minutes, loss, tokens seen)` is called after every step; `loss_of` a student and a batch.

    Raises:
        InterruptionError: if a signal came; the state is saved.
    """
    optimizer = torch.optim.AdamW(
        student.parameters(), options.learning_rate, weight_decay=options.weight_decay, fused=True
    )
    minutes, seen, first_epoch = restore_state(student, optimizer, state_path)
    last = saved = time.monotonic()
    with deferred_signals() as signalled:
        for epoch, batch in _epochs(examples, options, first_epoch):
            now = time.monotonic()
            minutes, last = minutes + min(now - last, LONGEST_STEP_S) / 60, now
            ending = signalled() or minutes >= options.minutes
            if ending or now - saved > SAVE_EVERY_S:
                saved = now
                save_state(student, optimizer, state_path, (minutes, seen, epoch))
            if ending:
                break
            if not len(batch.next_tokens):
                continue
            for group in optimizer.param_groups:
                group["lr"] = options.learning_rate * _schedule(
                    minutes / options.minutes, options.warmup_share
                )
            loss = _step(student, optimizer, batch, loss_of)
            seen += len(batch.next_tokens)
            report(minutes, loss, seen)
    if minutes < options.minutes:
        raise InterruptionError(
            f"after {minutes:.1f} of {options.minutes:g} minutes, which are saved in {state_path}; "
            "the same command goes on"
        )
    return seen


def _epochs(examples: Material[B], options: DistilOptions, first: int) -> Iterator[tuple[int, B]]:
    """Batches without end, with their epoch."""
    for epoch in itertools.count(first):
        rng = np.random.default_rng((options.seed, epoch))
        for _, batch in batches(examples, options.tokens_per_batch, rng):
            yield epoch, batch


def _step(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Teaching,
    loss_of: Callable[[Any, Any], torch.Tensor],
) -> float:
    loss = loss_of(student, batch.to(next(student.parameters()).device))
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    optimizer.step()
    return float(loss.detach())


def _schedule(done: float, warmup: float) -> float:
    """Linear warm-up, then a cosine to zero."""
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))
