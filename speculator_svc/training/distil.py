"""Fits a student to the target's distributions: batches, loss, schedule, evaluation, checkpoints of a run.

The schedule follows time, not steps: a run is told how many minutes it may take and its learning rate
ends at zero just then. State is saved every few minutes, on SIGINT or SIGTERM, and at the end; the same
command goes on where it stopped.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from speculator_svc.training.corpus import Continuation, Labels
from speculator_svc.training.interruption import InterruptionError, deferred_signals
from speculator_svc.training.state import restore_state, save_state
from speculator_svc.training.student import Student

SAVE_EVERY_S = 120.0
LONGEST_STEP_S = 10.0
"""A step never counts for more, so that a run that was suspended for a while loses nothing."""
_LEAST_ACCEPTED = 1e-6
"""Below it only the cross-entropy teaches."""


class Teaching(Protocol):
    """A batch."""

    @property
    def next_tokens(self) -> torch.Tensor:
        """[R] what the target really said: as many tokens as the batch teaches."""

    def to(self, device: torch.device) -> Any:
        """The same there."""


B = TypeVar("B", bound=Teaching, covariant=True)


class Material(Protocol[B]):
    """What is learnt from."""

    @property
    def corpus(self) -> Sequence[Continuation]:
        """All of it."""

    def batch(self, indices: Sequence[int]) -> B:
        """Some continuations, padded on the right."""


class Labelled(Protocol):
    """What the target says of R tokens."""

    @property
    def label_ids(self) -> torch.Tensor:
        """[R, K] indices into the draft vocabulary."""

    @property
    def label_probabilities(self) -> torch.Tensor:
        """[R, K] renormalised over these tokens."""


@dataclass(frozen=True, slots=True)
class DistilOptions:
    """How to train."""

    minutes: float
    learning_rate: float = 1e-3
    tokens_per_batch: int = 4096
    warmup_share: float = 0.02
    weight_decay: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Success:
    """How often the true next token is among a draft's most probable ones."""

    top: dict[int, float]
    """k -> share of tokens within the top k."""

    def __str__(self) -> str:
        return " / ".join(f"{100 * share:.1f}" for share in self.top.values()) + f" % (top {list(self.top)})"


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Padded sequences and the labels of their output positions."""

    token_ids: torch.Tensor
    rows: torch.Tensor
    label_ids: torch.Tensor
    label_probabilities: torch.Tensor
    next_tokens: torch.Tensor

    def to(self, device: torch.device) -> "TrainingBatch":
        """The same there."""
        return TrainingBatch(*(getattr(self, field.name).to(device) for field in fields(self)))


@dataclass(frozen=True, slots=True)
class Examples:
    """What is learnt from: continuations, what the target says at every output token, which count."""

    corpus: Sequence[Continuation]
    labels: Sequence[Labels]
    counted: Sequence[NDArray[np.bool_]] | None = None
    """Per continuation, the output tokens that count; None counts all."""

    def batch(self, indices: Sequence[int]) -> TrainingBatch:
        """Some continuations, padded on the right."""
        items = [self.corpus[i] for i in indices]
        counted = [self.counted[i] for i in indices] if self.counted is not None else None
        return _batch(items, [self.labels[i] for i in indices], counted)


def batches(examples: Material[B], tokens: int, rng: np.random.Generator) -> Iterator[tuple[list[int], B]]:
    """One epoch: sequences of similar length together, batches in random order, with their indices."""
    corpus = examples.corpus
    lengths = np.array([len(c.prompt) + len(c.output) - 1 for c in corpus])
    order = np.argsort(lengths + rng.uniform(0, 16, len(corpus)))
    groups: list[list[int]] = [[]]
    for index in order.tolist():
        if groups[-1] and lengths[index] * (len(groups[-1]) + 1) > tokens:
            groups.append([])
        groups[-1].append(index)
    for group in rng.permutation(len(groups)).tolist():
        yield groups[group], examples.batch(groups[group])


def _batch(
    items: Sequence[Continuation], labels: Sequence[Labels], counted: Sequence[NDArray[np.bool_]] | None
) -> TrainingBatch:
    width = max(len(c.prompt) + len(c.output) - 1 for c in items)
    token_ids = np.zeros((len(items), width), np.int64)
    rows = []
    for i, item in enumerate(items):
        tokens = (item.prompt + item.output)[:-1]
        token_ids[i, : len(tokens)] = tokens
        rows.append(np.arange(len(item.prompt) - 1, len(tokens)) + i * width)
    chosen = np.concatenate(counted) if counted is not None else slice(None)
    p = np.concatenate([x.probabilities for x in labels]).astype(np.float32)[chosen]
    return TrainingBatch(
        torch.from_numpy(token_ids),
        torch.from_numpy(np.concatenate(rows)[chosen]),
        torch.from_numpy(np.concatenate([x.ids for x in labels]).astype(np.int64)[chosen]),
        torch.from_numpy(p / np.maximum(p.sum(-1, keepdims=True), 1e-6)),
        torch.from_numpy(np.concatenate([item.output for item in items])[chosen]),
    )


def distillation_loss(logits: torch.Tensor, batch: Labelled) -> torch.Tensor:
    """Mean of two terms: how far the draft Q is from the target's (renormalised) most probable tokens P.

    The cross-entropy of Q under P asks for all of P. Minus log sum(min(P, Q)) asks for what is accepted of Q
    (an LK loss, arXiv 2602.23881): a model too small for all of P is to spend itself on that. Where the
    draft vocabulary has nothing of P there is nothing to learn.
    """
    p = batch.label_probabilities
    log_q = logits.gather(-1, batch.label_ids) - logits.logsumexp(-1, keepdim=True)
    cross_entropy = -(p * log_q).sum(-1)
    accepted = torch.minimum(p, log_q.exp()).sum(-1).clamp_min(_LEAST_ACCEPTED)
    return (cross_entropy - (p.sum(-1) > 0) * accepted.log()).mean()


def ssm_loss(student: Student, batch: TrainingBatch) -> torch.Tensor:
    """Of one batch."""
    return distillation_loss(_logits(student, batch), batch)


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


def rough(device: torch.device) -> torch.autocast:
    """bfloat16 where that is no slower; a CPU without instructions for it takes twenty times as long."""
    fast = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.autocast(device.type, torch.bfloat16, enabled=fast)


def _logits(student: Student, batch: TrainingBatch) -> torch.Tensor:
    with rough(student.device):
        logits: torch.Tensor = student(batch.token_ids, batch.rows)
    return logits


def _schedule(done: float, warmup: float) -> float:
    """Linear warm-up, then a cosine to zero."""
    if done < warmup:
        return done / warmup
    return 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))


@torch.inference_mode()
def ranks(
    student: Student, examples: Examples, vocabulary: torch.Tensor, most: int = 5
) -> list[NDArray[np.int64]]:
    """Per continuation: the place of each output token among the draft's `most` best, or `most`.

    Tokens outside the draft vocabulary have no place.
    """
    found: list[NDArray[np.int64]] = [np.zeros(0, np.int64)] * len(examples.corpus)
    whole = Examples(examples.corpus, examples.labels)
    for indices, batch in batches(whole, 4096, np.random.default_rng(0)):
        logits = _logits(student, batch.to(student.device))
        best = vocabulary[logits.topk(most, dim=-1).indices.cpu()]
        hit = best == batch.next_tokens[:, None]
        place = torch.where(hit.any(-1), hit.int().argmax(-1), most).numpy()
        cuts = np.cumsum([len(examples.corpus[i].output) for i in indices])[:-1]
        for index, part in zip(indices, np.split(place, cuts), strict=True):
            found[index] = part
    return found


def evaluate(student: Student, examples: Examples, vocabulary: torch.Tensor, most: int = 5) -> Success:
    """Success on the tokens the target really went on with."""
    place = np.concatenate(ranks(student, examples, vocabulary, most))
    return Success({k: float((place < k).mean()) for k in range(1, most + 1)})
