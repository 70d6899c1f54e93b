"""The executor of a model divided among ranks; rank 0 leads.

    leader      sends commands, runs its own part, returns the logits
    follower    runs commands until the command to stop

Any fault ends the process (`end_process`): ranks in different states would wait for each other forever, or return
wrong logits. Divided parts of the decoder are wrapped as in Megatron-LM (arXiv 1909.08053, section 3).
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from specinfer.errors import SettingError
from specinfer.model.batch import Batch, PassFeatures
from specinfer.model.cache.sequence import BLOCK_TOKENS, Slots
from specinfer.model.parallel.layout import RankMemory, ShardedWeights, StageSeconds, check_layout
from specinfer.model.parallel.ranks import Ranks, end_process
from specinfer.model.parallel.stage import PartExecutor, Stage, micro_batches
from specinfer.model.torch.executor import TorchExecutor
from specinfer.model.torch.linear import Linear, Surgery
from specinfer.model.weights.config import ModelConfig
from specinfer.model.weights.interfaces import Weights


class SummedLinear:
    """Row-parallel linear layer: sums the partial outputs of the stage's ranks."""

    def __init__(self, inner: Linear, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return [T, out] from this rank's part [T, in / ranks]."""
        return self._ranks.add(self._inner(x))


class SharedLookup:
    """Embeddings divided by token: each rank looks its own tokens up."""

    def __init__(self, inner: Linear, ranks: Ranks, tokens: range) -> None:
        self._inner, self._ranks, self._tokens = inner, ranks, tokens

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of token ids x [T]."""
        local = x - self._tokens.start
        absent = (local < 0) | (local >= len(self._tokens))
        rows = self._inner(local.masked_fill(absent, 0))
        return self._ranks.add(rows.masked_fill(absent[:, None], 0.0))


class GatheredHead:
    """Head divided by token: the stage's first rank gathers all logits."""

    def __init__(self, inner: Linear, ranks: Ranks) -> None:
        self._inner, self._ranks = inner, ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits [R, V] at the stage's first rank, elsewhere a part."""
        return self._ranks.concatenated(self._inner(x))


class TensorParallel(Surgery):
    def __init__(self, ranks: Ranks, vocab_size: int) -> None:
        self._ranks, self._tokens = ranks, ranks.place.share(vocab_size)

    def embedding(self, lookup: Linear) -> Linear:
        return SharedLookup(lookup, self._ranks, self._tokens)

    def output(self, linear: Linear) -> Linear:
        return SummedLinear(linear, self._ranks)

    def head(self, linear: Linear) -> Linear:
        return GatheredHead(linear, self._ranks)


log = logging.getLogger(__name__)
EXECUTORS = ("auto", "torch", "gpu")
"""Executors whose model ranks can share."""
_LOAD_SECONDS = 3600.0
"""Timeout in seconds until all ranks have loaded their weights."""
_NO_STATES = np.empty((0, 0, 0), np.float32)
"""Placeholder for hidden states: followers return theirs to rank 0."""


class ParallelExecutor:
    """Runs passes in all ranks of a model."""

    def __init__(self, stage: Stage, cache_tokens: int) -> None:
        """Wait until all ranks have loaded; measure the cost of their stages."""
        self._stage, self.ranks, self.name = stage, stage.ranks, stage.executor.name
        self.stage_seconds = StageSeconds()
        with self._all_or_none("loading the model"), torch.inference_mode():
            self.ranks.meet(_LOAD_SECONDS)
            self.cost = stage.measure(cache_tokens)
            memory = RankMemory(stage.executor.weight_bytes, stage.executor.cache_bytes)
            self.memory: list[RankMemory] = self.ranks.gather(memory)
            """Memory of every rank, at rank 0; elsewhere empty."""
        if self.memory:
            shares = ", ".join(f"{rank.weight_bytes / 1e6:.1f}" for rank in self.memory)
            log.info("ranks (%s): MB of weights per rank: %s", self.ranks.place.layout, shares)

    def run(self, batch: Batch) -> torch.Tensor:
        parts = micro_batches(len(batch.token_ids), self.ranks.place.layout.stages, self.cost)
        layers = batch.features.layers if batch.features else ()
        with self._all_or_none("a pass"):
            started = time.perf_counter()
            self.ranks.tell(("pass", replace(batch, features=None), layers, parts))
            logits, busy = self._stage.run(batch, parts)
            self._count(busy, time.perf_counter() - started)
        assert logits is not None, "only rank 0 runs passes"
        return logits

    def move(self, source: Slots, target: Slots) -> None:
        self._all("move", list(source), list(target))

    def rotate(self, slots: Slots, delta: int) -> None:
        self._all("rotate", list(slots), delta)

    def beat(self) -> None:
        """Exchange heartbeats with the other ranks; called while no pass runs."""
        self._all("beat")

    def stop(self) -> None:
        """End `follow` in all other ranks."""
        self._all("stop")

    def follow(self) -> None:
        """Run rank 0's commands until it calls `stop`."""
        with self._all_or_none("following rank 0"), torch.inference_mode():
            while (command := self.ranks.receive_command())[0] != "stop":
                self._do(command)

    def _all(self, *command: Any) -> None:
        with self._all_or_none(f"a command ({command[0]})"):
            self.ranks.tell(command)
            self._do(command)

    def _do(self, command: Sequence[Any]) -> None:
        executor = self._stage.executor
        match command:
            case ("pass", batch, layers, parts):
                features = PassFeatures(layers, _NO_STATES) if layers else None
                self._stage.run(replace(batch, features=features), parts)
            case ("move", source, target):
                executor.move(source, target)
            case ("rotate", slots, delta):
                executor.rotate(slots, delta)
            case ("beat",):
                self.ranks.meet()

    def _count(self, busy: Sequence[float], seconds: float) -> None:
        if busy:
            before, total = self.stage_seconds, len(busy) * seconds
            self.stage_seconds = StageSeconds(before.busy + sum(busy), before.idle + total - sum(busy))

    @contextmanager
    def _all_or_none(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  # the ranks' states may differ now
            end_process(self.ranks.place.rank, what, error)


def parallel_executor(
    ranks: Ranks,
    config: ModelConfig,
    weights: Weights,
    dtype: torch.dtype,
    num_blocks: int,
    executor: str,
) -> ParallelExecutor:
    """Build this rank's part of a model; all ranks must call it."""
    if executor not in EXECUTORS:
        raise SettingError(
            "executor", executor, f"must be {' or '.join(EXECUTORS)} for ranks that share a model"
        )
    check_layout(config, ranks.place.layout)
    place = ranks.place
    surgery = TensorParallel(ranks, config.vocab_size) if place.layout.tensor > 1 else None
    own, shard = place.of(config), ShardedWeights(config, weights, place)
    part: PartExecutor
    if executor == "gpu":
        from specinfer.model.gpu.executor import GpuExecutor  # needs triton

        part = GpuExecutor(own, shard, dtype, num_blocks, ranks.device, surgery=surgery, captured=False)
    else:
        part = TorchExecutor(own, shard, dtype, num_blocks, ranks.device, surgery=surgery)
    return ParallelExecutor(Stage(ranks, config, part, dtype), num_blocks * BLOCK_TOKENS)
