"""Runs a rank's layers in a pass, in micro-batches.

With S stages and m micro-batches of t(T / m) seconds each, a pass takes (m + S - 1) t(T / m), and the stages are idle
for (S - 1) / (m + S - 1) of that time (GPipe, arXiv 1811.06965, section 2.3). Passes over one token and over a few
take about equally long, as they read the same weights; dividing such a pass only adds time.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch

from specinfer.model.batch import AttentionRows, Batch, PassFeatures
from specinfer.model.cache.sequence import Slots, blocks_for
from specinfer.model.parallel.ranks import Ranks
from specinfer.model.weights.config import ModelConfig

_MAX_PER_STAGE = 4
"""Maximum micro-batches per stage; with 4, stages idle less than a fifth."""


@dataclass(frozen=True, slots=True)
class StageCost:
    """Seconds of one stage for T tokens: fixed_s + each_s * T."""

    fixed_s: float
    each_s: float

    @classmethod
    def through(cls, small: tuple[int, float], large: tuple[int, float]) -> "StageCost":
        """Return the costs for which two measurements (tokens, seconds) are exact."""
        token_s = max(0.0, (large[1] - small[1]) / (large[0] - small[0]))
        return cls(max(0.0, small[1] - token_s * small[0]), token_s)

    def seconds(self, tokens: float) -> float:
        return self.fixed_s + self.each_s * tokens


def micro_batches(tokens: int, stages: int, cost: StageCost) -> int:
    """Return the number of micro-batches that is fastest for a pass."""
    max_batches = min(tokens, _MAX_PER_STAGE * stages) if stages > 1 else 1
    return min(range(1, max_batches + 1), key=lambda m: (m + stages - 1) * cost.seconds(tokens / m))


def cut(batch: Batch, parts: int) -> list[Batch]:
    """Divide a pass into at most `parts` passes over successive tokens.

    The results are the same. A request may be divided: every stage runs the parts in order, so its earlier tokens
    are cached before its later tokens attend.
    """
    count = len(batch.token_ids)
    bounds = [count * part // parts for part in range(parts + 1)]
    return [_between(batch, a, b) for a, b in pairwise(bounds) if a < b]


def _between(batch: Batch, start: int, stop: int) -> Batch:
    features = batch.features
    return Batch(
        batch.token_ids[start:stop],
        batch.positions[start:stop],
        batch.write_slots[start:stop],
        [_rows(rows, start, stop) for rows in batch.rows if rows.start < stop and start < rows.stop],
        [row - start for row in batch.logit_rows if start <= row < stop],
        [],
        replace(features, states=features.states[start:stop]) if features else None,
    )


def _rows(rows: AttentionRows, start: int, stop: int) -> AttentionRows:
    first, last = max(rows.start, start), min(rows.stop, stop)
    within = slice(first - rows.start, last - rows.start)
    return replace(
        rows,
        start=first - start,
        stop=last - start,
        visible=rows.visible[within],
        extra=rows.extra[within],
    )


def stage_features(layers: Sequence[int], own_layers: range, is_last: bool) -> list[int]:
    """Return the layers in `layers` whose hidden states a stage computes."""
    return [layer for layer in layers if layer in own_layers or (is_last and layer == own_layers.stop)]


_MEASURED_TOKENS = 64
"""Number of tokens in the larger measured pass."""
_ROUNDS = 3


class PartExecutor(Protocol):
    """Runs the layers of one rank."""

    name: str
    """Value of `--executor`."""

    def hidden(self, batch: Batch, x: torch.Tensor | None = None) -> torch.Tensor:
        """Return the hidden states [T, hidden] after the rank's layers."""

    def logits(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Return the float32 logits [R, V] of `batch.logit_rows`."""

    def move(self, source: Slots, target: Slots) -> None:
        """Copy keys and values between slots."""

    def rotate(self, slots: Slots, delta: int) -> None:
        """Rotate the keys of slots by `delta` rotary positions."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of the model's tensors."""

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys and values."""


class Stage:
    """One rank's part of every pass.

    All ranks must call the same methods in the same order.
    """

    def __init__(self, ranks: Ranks, config: ModelConfig, executor: PartExecutor, dtype: torch.dtype) -> None:
        """Prepare passes of loaded layers; `config` is the whole model's."""
        self.ranks, self.executor = ranks, executor
        self._config, self._dtype, self._place = config, dtype, ranks.place
        self._layers = ranks.place.layers(config.layers)
        self._piped = ranks.place.layout.stages > 1
        self._busy_s = 0.0

    def run(self, batch: Batch, parts: int) -> tuple[torch.Tensor | None, list[float]]:
        """Run a pass in `parts` micro-batches; fill `batch.features` at rank 0.

        Returns:
            At rank 0 the logits [R, V], otherwise None; with several stages also the seconds of all ranks.
        """
        own_batch, self._busy_s = self._with_own_features(batch), 0.0
        pieces = cut(own_batch, parts)
        sent: list[Callable[[], object]] = []
        logits = [piece_logits for piece in pieces if (piece_logits := self._one(piece, sent)) is not None]
        if self._piped and self.ranks.is_leader:
            logits = [self._from_the_end(piece) for piece in pieces if piece.logit_rows]
        for wait in sent:
            wait()
        if batch.features is not None:
            self._bring_together(batch.features, own_batch.features)
        times = self.ranks.gather_number(self._busy_s) if self._piped else []
        if not self.ranks.is_leader:
            return None, times
        return torch.cat(logits) if logits else self._no_logits(), times

    def measure(self, cache_tokens: int) -> StageCost:
        """Return the cost of this rank's layers, from two measured passes.

        All ranks of a stage measure simultaneously. The cache must be empty: passes write to its first blocks.
        """
        max_tokens = min(_MEASURED_TOKENS, cache_tokens, self._config.max_positions)
        small, large = (
            (tokens, min(self._seconds(tokens) for _ in range(_ROUNDS))) for tokens in (1, max_tokens)
        )
        return StageCost.through(small, large)

    def _one(self, piece: Batch, sent: list[Callable[[], object]]) -> torch.Tensor | None:
        """Run one micro-batch; return its logits in the last stage, otherwise None.

        Sends are appended to `sent`, as functions that wait.
        """
        place, x = self._place, None
        if not place.is_first:
            x = self.ranks.from_previous_stage((len(piece.token_ids), self._config.hidden_size), self._dtype)
        started = self._now()
        hidden = self.executor.hidden(piece, x)
        logits = self.executor.logits(piece, hidden) if place.is_last and piece.logit_rows else None
        self._busy_s += self._now() - started
        if not place.is_last:
            sent.append(self.ranks.forward(hidden))
        elif logits is not None and self._piped and not place.tensor:
            sent.append(self.ranks.back(logits))
        return logits

    def _now(self) -> float:
        """Return the time in seconds; a pipeline first waits for the GPU."""
        if self._piped and self.ranks.device.startswith("cuda"):
            torch.cuda.synchronize(self.ranks.device)
        return time.perf_counter()

    def _from_the_end(self, piece: Batch) -> torch.Tensor:
        shape = (len(piece.logit_rows), self._config.vocab_size)
        return self.ranks.from_stage(self._place.layout.stages - 1, shape, torch.float32)

    def _no_logits(self) -> torch.Tensor:
        return torch.empty(0, self._config.vocab_size, device=self.ranks.device)

    def _with_own_features(self, batch: Batch) -> Batch:
        """Return the pass with buffers for the hidden states of this stage."""
        if batch.features is None:
            return batch
        layers = stage_features(batch.features.layers, self._layers, self._place.is_last)
        shape = (len(batch.token_ids), len(layers), self._config.hidden_size)
        local = tuple(layer - self._layers.start for layer in layers)
        return replace(batch, features=PassFeatures(local, np.empty(shape, np.float32)))

    def _bring_together(self, wanted: PassFeatures, own_features: PassFeatures | None) -> None:
        """Copy the stages' hidden states to the pass's buffer, at rank 0."""
        first = self.ranks.gather(None if self._place.tensor else own_features)
        parts = [part.states for part in first if part is not None]
        if parts:
            wanted.states[:] = np.concatenate(parts, axis=1)

    def _seconds(self, tokens: int) -> float:
        """Return the seconds of a pass over this many tokens."""
        slots = list(range(tokens))
        seen = [slot + 1 for slot in slots]
        rows = AttentionRows(0, tokens, tokens, range(blocks_for(tokens)), seen, [[] for _ in slots])
        batch = Batch([0] * tokens, slots, slots, [rows], [], [])
        x = None
        if not self._place.is_first:
            shape = (tokens, self._config.hidden_size)
            x = torch.zeros(shape, dtype=self._dtype, device=self.ranks.device)
        started = self._now()
        self.executor.hidden(batch, x)
        return self._now() - started
