"""Grows whole trees in the compiled kernels, and converts the results."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specinfer.model.arrays import Array, as_ids
from specinfer.model.drafting.task import NOISY_RIVALS, GrowthShape, GrowthTask, LevelTimes
from specinfer.model.lazy_torch import torch
from specinfer.model.native.bindings import PLACES, Growth, GrowthJob, Pass
from specinfer.model.sampling.distributions import SMALLEST_TEMPERATURE
from specinfer.model.threads import pass_threads
from specinfer.tree import Proposal, ProposalKind, TokenTree, TreeBuilder
from specinfer.tree.builder import point_tree
from specinfer.tree.draws import AGREEMENT

_JOB = np.dtype(GrowthJob)
_AGREEMENT = (ctypes.c_double * PLACES)(*AGREEMENT)


@dataclass(frozen=True, slots=True)
class CacheMemory:
    """Memory of a model's keys and values, in the kernels' layout."""

    keys: NDArray[np.uint8]
    values: NDArray[np.uint8]
    blocks: int
    layers: int

    @property
    def bytes(self) -> int:
        return self.keys.nbytes + self.values.nbytes

    def block(self, number: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Return views [layers, bytes] of a block's keys and values."""
        return self._of_layers(self.keys)[:, number], self._of_layers(self.values)[:, number]

    def _of_layers(self, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return memory.reshape(self.layers, self.blocks, -1)

    def put(self, call: Pass | Growth) -> None:
        """Set the addresses of keys and values in the kernels' arguments."""
        call.keys, call.values = self.keys.ctypes.data, self.values.ctypes.data
        call.cache_blocks = self.blocks


@dataclass(frozen=True, slots=True)
class _Results:
    """Buffers for trees from the kernels; nodes are in insertion order."""

    count: NDArray[np.int32]
    tokens: NDArray[np.int32]
    parents: NDArray[np.int32]
    scores: NDArray[np.float32]
    proposals: NDArray[np.int32]
    proposal_parent: NDArray[np.int32]
    draw_count: NDArray[np.int32]
    draws: NDArray[np.int32]
    ranks: NDArray[np.int32]
    q_count: NDArray[np.int32]
    q_ids: NDArray[np.int32]
    q: NDArray[np.float32]

    @classmethod
    def sized(cls, jobs: int, most: int, support: int) -> _Results:
        """Allocate buffers.

        Args:
            jobs: number of trees.
            most: maximum nodes of a tree, besides the root.
            support: maximum tokens of q; 0: all children are points.
        """
        sampled = most if support else 0

        def ints(*shape: int) -> NDArray[np.int32]:
            return np.empty(shape, np.int32)

        return cls(
            count=ints(jobs),
            tokens=ints(jobs, most + 1),
            parents=ints(jobs, most + 1),
            scores=np.empty((jobs, most + 1), np.float32),
            proposals=ints(jobs),
            proposal_parent=ints(jobs, sampled),
            draw_count=ints(jobs, sampled),
            draws=ints(jobs, sampled, most),
            ranks=ints(jobs, sampled, most),
            q_count=ints(jobs, sampled),
            q_ids=ints(jobs, sampled, support),
            q=np.empty((jobs, sampled, support), np.float32),
        )

    def addresses(self) -> dict[str, int]:
        """Return the address of each buffer, by field."""
        return {name: getattr(self, name).ctypes.data for name in self.__dataclass_fields__}

    def tree(self, index: int, root: int, kind: ProposalKind | None) -> TokenTree:
        """Return tree number `index`.

        `kind` is the kind of its draws; None: its children are points.
        """
        n = int(self.count[index])
        tokens = [root, *self.tokens[index, 1:n].tolist()]
        parents, scores = self.parents[index, :n].tolist(), self.scores[index, :n].tolist()
        if kind is None:
            return point_tree(tokens, parents, scores, range(1, n))
        builder = TreeBuilder(root)
        for node in range(1, n):
            builder.add(parents[node], tokens[node], scores[node])
        ranked: list[tuple[int, int]] = []
        for p in range(int(self.proposals[index])):
            draws = self.draws[index, p, : self.draw_count[index, p]].tolist()
            size = int(self.q_count[index, p])
            q_ids, q = self.q_ids[index, p, :size].copy(), self.q[index, p, :size].copy()
            builder.propose(Proposal(int(self.proposal_parent[index, p]), 0, kind, tuple(draws), q_ids, q))
            ranked += [(rank, p) for rank in self.ranks[index, p, : len(draws)].tolist()]
        return builder.build([p for _, p in sorted(ranked)])


class NativeGrowth:
    """Grows trees in the kernels, with buffers that it reuses."""

    def __init__(self, run: Callable[[Growth], None], memory: CacheMemory) -> None:
        self._run, self._memory = run, memory
        self._sizes, self._times = (0, 0, 0), LevelTimes()
        self._results = _Results.sized(*self._sizes)
        self._addresses = self._results.addresses()

    def grow(
        self,
        tasks: Sequence[GrowthTask],
        shape: GrowthShape,
        token_ids: Array,
        states: torch.Tensor | None = None,
    ) -> list[TokenTree]:
        """Grow one tree per task.

        Each sequence must have space for its delta and nodes.

        Args:
            states: [T, layers, hidden] bfloat16, only for EAGLE: the target's hidden states of all deltas.
        """
        jobs = _jobs(tasks, shape)
        most = max(1, *(task.limits.nodes for task in tasks))
        kinds = [shape.kind if shape.draws(task.sampling) else None for task in tasks]
        support = min(shape.q_support, len(token_ids))
        self._make_room(len(tasks), most, support if any(kinds) else 0)
        widths = shape.expansion.widths if shape.expansion is not None else ()
        arrays = {
            "job": jobs,
            "token_ids": np.array([token for task in tasks for token in task.delta], np.int32),
            "blocks": np.array([block for task in tasks for block in task.sequence.blocks], np.int32),
            "widths": np.array(widths, np.int32),
        }
        vocabulary = as_ids(token_ids)
        call = Growth(
            jobs=len(tasks),
            most=most,
            beam=shape.beam,
            support=support,
            rivals=NOISY_RIVALS,
            replace=int(shape.kind is ProposalKind.WITH_REPLACEMENT),
            levels=len(widths),
            threads=pass_threads(),
            vocabulary=vocabulary.ctypes.data,
            states=states.data_ptr() if states is not None else None,
            least_level=self._times.least_level(tasks),
            agreement=_AGREEMENT,
            **{name: array.ctypes.data for name, array in arrays.items()},
            **self._addresses,
        )
        self._memory.put(call)
        self._run(call)
        if call.levels_run:
            self._times.note(len(tasks), call.level_seconds, call.levels_run)
        return [self._results.tree(i, task.delta[-1], kinds[i]) for i, task in enumerate(tasks)]

    def _make_room(self, jobs: int, most: int, support: int) -> None:
        sizes = jobs, most, support
        if sizes != self._sizes:
            self._sizes, self._results = sizes, _Results.sized(*sizes)
            self._addresses = self._results.addresses()


def _jobs(tasks: Sequence[GrowthTask], shape: GrowthShape) -> NDArray[Any]:
    rows = [
        (
            len(t.delta),
            t.sequence.cached,
            t.sequence.shift,
            len(t.sequence.blocks),
            0 if t.limits.empty else t.limits.nodes,
            t.limits.depth,
            t.limits.width or 0,
            t.sampling.greedy,
            shape.draws(t.sampling),
            t.sampling.top_k,
            t.context_length,
            max(t.sampling.temperature, SMALLEST_TEMPERATURE),
            t.sampling.top_p,
            t.score_temperature,
            shape.followed(t.limits),
            t.sampling.seed,
        )
        for t in tasks
    ]
    return np.array(rows, _JOB)
