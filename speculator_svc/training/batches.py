"""What is learnt from, batch by batch: continuations of similar length, padded, with the target's labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from speculator_svc.training.corpus import Continuation, Labels


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
