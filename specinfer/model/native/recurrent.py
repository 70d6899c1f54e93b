"""Stores the states of recurrent layers for the kernels, by token.

Whole states are stored at block ends only; between them each token stores its change of the state
(`csrc/recurrent/past.h`), a thirtieth of a state. `RecurrentStates` decides which tokens' states to keep.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from specinfer.model.batch import AttentionRows, Batch
from specinfer.model.cache.recurrent_states import RecurrentStates
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.model.native.bindings import Recurrence
from specinfer.model.native.model import NativeModel
from specinfer.system.machine import available_memory

_MEMORY_PART = 0.5
"""Share of the free memory for states, after loading the model."""
_ALIGNMENT = 64
Floats = NDArray[np.float32]


class Memory:
    """Memory of a state, or of one token's change of it.

    It covers all recurrent layers. The array returns to the pool when the object is deleted.
    """

    def __init__(self, pool: list[Floats], floats: int) -> None:
        self._pool = pool
        self._array = pool.pop() if pool else _aligned(floats)
        self.address: int = self._array.ctypes.data

    def __del__(self) -> None:
        self._pool.append(self._array)


def _aligned(floats: int) -> Floats:
    array = np.empty(floats + _ALIGNMENT // 4, np.float32)
    first = -array.ctypes.data % _ALIGNMENT // 4
    return array[first : first + floats]


@dataclass(slots=True)
class TokenState:
    """State after a token: an earlier state, and changes since.

    `base` is the state at the beginning of the token's block. `tokens` has the changes by the block's tokens.
    """

    base: Memory | None = None
    """State at the start of the block; None: all zeros."""
    tokens: tuple[Memory, ...] = ()


class _Path(NamedTuple):
    """State after the last token of a path."""

    base: Memory | None
    inside: tuple[int, ...]
    """Tokens of the unfinished block.

    A token is the address of its stored change of the state, or in the running pass -1 - row.
    """
    recent: tuple[int, ...]
    """Last tokens that the convolution reads, numbered like `inside`.

    `tail` is the state with still earlier ones.
    """
    tail: Memory | None
    kept: tuple[Memory, ...]
    """Stored changes of the current block's tokens."""


@dataclass(slots=True)
class _Plan:
    """Arguments of a call to the kernels, and the states it writes."""

    own: list[int] = field(default_factory=list)
    base: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    past: list[int] = field(default_factory=list)
    past_count: list[int] = field(default_factory=list)
    inside: list[int] = field(default_factory=list)
    job_start: list[int] = field(default_factory=lambda: [0])
    job_row: list[int] = field(default_factory=list)
    job_from: list[int] = field(default_factory=list)
    job_to: list[int] = field(default_factory=list)
    job_past: list[int] = field(default_factory=list)
    written: dict[int, TokenState] = field(default_factory=dict)
    settled: list[tuple[TokenState, Memory]] = field(default_factory=list)
    """Cached states, and the memory of their new `base`."""


class NativeStates:
    """States after cached tokens, for all recurrent layers of one model."""

    def __init__(self, base_floats: int, token_floats: int, convolved: int, most_bytes: int) -> None:
        """Create an empty store.

        Args:
            base_floats: float32 numbers in a state.
            token_floats: float32 numbers in a token's change of a state.
            convolved: number of tokens in a convolution, the present one included.
            most_bytes: maximum memory in bytes.
        """
        self._base_floats, self._token_floats, self._before = base_floats, token_floats, convolved - 1
        self._bases: list[Floats] = []
        self._tokens: list[Floats] = []
        self.states: RecurrentStates[TokenState] = RecurrentStates(nodes_per_state=BLOCK_TOKENS)
        self.states.limit = most_bytes // (4 * (base_floats + BLOCK_TOKENS * token_floats))

    @classmethod
    def of(cls, model: NativeModel) -> "NativeStates | None":
        """Return an empty store; None if the model has no recurrent layers.

        Its limit is half of the memory that is free at the call.
        """
        layers, shape = sum(model.config.recurrent_layers), model.config.recurrent_shape
        if not layers or shape is None:
            return None
        base, token = ctypes.c_int32(), ctypes.c_int32()
        model.library.si_recurrent_sizes(model.address, ctypes.addressof(base), ctypes.addressof(token))
        most = int(_MEMORY_PART * available_memory())
        return cls(layers * base.value, layers * token.value, shape.convolved, most)

    @contextmanager
    def over(self, batch: Batch) -> Iterator[Recurrence]:
        """Yield the kernels' arguments; then store the states they wrote."""
        plan = _Plan()
        for part in batch.rows:
            self._plan_part(plan, part)
            plan.job_start.append(len(plan.job_row))
        starts = [*accumulate(plan.past_count, initial=0)]
        places = {
            "past_start": starts,
            "inside": plan.inside,
            "job_start": plan.job_start,
            "job_row": plan.job_row,
        }
        arrays = {name: np.array(numbers, np.int32) for name, numbers in places.items()}
        for name in ("own", "base", "tail", "past", "job_from", "job_to", "job_past"):
            arrays[name] = np.array(getattr(plan, name), np.int64)
        yield Recurrence(**{name: array.ctypes.data for name, array in arrays.items()})
        for state, base in plan.settled:
            state.base, state.tokens = base, ()
        for slot, state in plan.written.items():
            self.states[slot] = state

    def _plan_part(self, plan: _Plan, part: AttentionRows) -> None:
        delta = sum(not path for path in part.extra)
        paths: dict[int, _Path] = {}
        if delta:
            self._plan_context(plan, part, delta, paths)
        for offset in range(delta, part.stop - part.start):
            places = part.extra[offset]
            parent = places[-2] if len(places) > 1 else part.visible[offset] - 1
            before = self._settled(plan, part, paths, parent, part.start + offset)
            own = self._token()
            paths[places[-1]] = after = self._add_row(plan, part.start + offset, before, own)
            plan.written[_slot(part, places[-1])] = TokenState(after.base, after.kept)

    def _plan_context(self, plan: _Plan, part: AttentionRows, delta: int, paths: dict[int, _Path]) -> None:
        """Add the tokens of a request's delta to the plan.

        The kernels write states for the last whole block and for the last token.
        """
        first, last = part.visible[0] - 1, part.visible[delta - 1]
        cut = max((last - 1) // BLOCK_TOKENS * BLOCK_TOKENS, first)
        kept_from = last // BLOCK_TOKENS * BLOCK_TOKENS
        path = self._settled(plan, part, paths, first - 1, part.start)
        passing: Memory | None = None
        for position in range(first, last):
            row = part.start + position - first
            if len(path.inside) == BLOCK_TOKENS:
                passing = passing or self._state()
                path = self._settle(plan, row, path, passing)
            if position == cut and cut > first:
                plan.written[_slot(part, cut - 1)] = TokenState(path.base, path.kept)
            path = self._add_row(plan, row, path, self._token() if position >= kept_from else None)
        if len(path.inside) == BLOCK_TOKENS:
            path = self._settle(plan, part.start + delta, path, self._state())
        paths[last - 1] = path
        plan.written[_slot(part, last - 1)] = TokenState(path.base, path.kept)

    def _settled(
        self, plan: _Plan, part: AttentionRows, paths: dict[int, _Path], parent: int, row: int
    ) -> _Path:
        """Return the path that ends at position `parent`.

        If the path fills its block, the plan first computes the state at the block's end.
        """
        if parent < 0:
            return _Path(None, (), (), None, ())
        state = None
        if parent not in paths:
            state = self.states[_slot(part, parent)]
            kept = tuple(token.address for token in state.tokens)
            recent = kept[len(kept) - min(self._before, len(kept)) :]
            paths[parent] = _Path(state.base, kept, recent, state.base, state.tokens)
        path = paths[parent]
        if len(path.inside) == BLOCK_TOKENS:
            base = self._state()
            paths[parent] = path = self._settle(plan, row, path, base)
            if state is not None:
                plan.settled.append((state, base))
        return path

    def _settle(self, plan: _Plan, row: int, path: _Path, to: Memory) -> _Path:
        """Write the state at the block's end to `to` before `row`."""
        plan.job_row.append(row)
        plan.job_from.append(path.base.address if path.base else 0)
        plan.job_to.append(to.address)
        plan.job_past.extend(path.inside)
        return path._replace(base=to, inside=(), kept=())

    def _add_row(self, plan: _Plan, row: int, path: _Path, own: Memory | None) -> _Path:
        """Add a row's arguments; return the path that ends with it.

        `own` is memory for the row's change of the state; None: the change is not stored.
        """
        past = path.inside if len(path.inside) >= len(path.recent) else path.recent
        plan.past.extend(past)
        plan.past_count.append(len(past))
        plan.inside.append(len(path.inside))
        plan.own.append(own.address if own else 0)
        plan.base.append(path.base.address if path.base else 0)
        plan.tail.append(path.tail.address if path.tail else 0)
        number = -1 - row
        recent = (*path.recent, number)[-self._before :]
        kept = (*path.kept, own) if own else ()
        return _Path(path.base, (*path.inside, number), recent, path.tail, kept)

    def _state(self) -> Memory:
        return Memory(self._bases, self._base_floats)

    def _token(self) -> Memory:
        return Memory(self._tokens, self._token_floats)


def _slot(part: AttentionRows, position: int) -> int:
    return part.blocks[position // BLOCK_TOKENS] * BLOCK_TOKENS + position % BLOCK_TOKENS
