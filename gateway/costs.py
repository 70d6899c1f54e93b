"""What steps cost: passes by their tokens, drafts and the rest. Measured by batch size. Pure.

The verifier says how long its passes take by their tokens; while serving, that is corrected.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import numpy as np

_SMOOTHING = 0.08
_PACE_SMOOTHING, _CHANGE_SMOOTHING = 0.15, 0.05
"""The pace follows passes of one kind at once, and one of the other kind with caution."""
_TREE_SMOOTHING = 0.3
_OUTLIER = 3.0
_LOG_OUTLIER = math.log(_OUTLIER)
_LEAST_S = 1e-6
"""A pass that is told to take no time at all takes a microsecond."""
_DRAFT_GROWTH = 0.35
"""Drafting for twice the batch takes 2 to the power of this as long, until it is measured."""

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")


class DraftTime(NamedTuple):
    """What one service took for one step's drafts."""

    service: frozenset[int]
    """All its speculators."""
    own_s: Mapping[int, float]
    """Of those asked: they draft one after another."""
    wire_s: float
    """The rest: messages and what the service does for all."""

    @property
    def total_s(self) -> float:
        """From the question to the answer."""
        return self.wire_s + sum(self.own_s.values())


class Average:
    """Exponential moving average that one outlier cannot throw off."""

    __slots__ = ("_smoothing", "count", "value")

    def __init__(self, smoothing: float = _SMOOTHING, start: float | None = None) -> None:
        """`start` is believed until observations move it; without it the first observation is."""
        self.value, self._smoothing = start or 0.0, smoothing
        self.count = 0 if start is None else round(1 / smoothing)

    def add(self, value: float, clip: bool = False, weight: int = 1) -> None:
        """Counts the mean of `weight` observations; `clip` limits it to a multiple of what is expected."""
        if clip and self.count:
            value = min(value, _OUTLIER * self.value)
        self.count += weight
        share = 1 - (1 - self._smoothing) ** weight
        self.value += (value - self.value) * max(share, min(1.0, weight / self.count))


class BySize(Generic[T]):
    """What is known by batch size; sizes are told apart by powers of two."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._items: dict[int, T] = {}

    def __getitem__(self, batch: int) -> T:
        size = _size(batch)
        if size not in self._items:
            self._items[size] = self._make()
        return self._items[size]

    def nearest(self, batch: int, pick: Callable[[T], V | None]) -> tuple[V, int] | None:
        """What `pick` finds at the nearest size that has it, and how many doublings away that is."""
        size = _size(batch)
        own = pick(self._items[size]) if size in self._items else None
        if own is not None:  # nearly always; a step asks some fifty times
            return own, 0
        found = [(abs(other - size), other, pick(item)) for other, item in self._items.items()]
        known = [(distance, other, value) for distance, other, value in found if value is not None]
        if not known:
            return None
        _, other, value = min(known, key=lambda item: item[:2])
        return value, size - other


class PassCurve:
    """Seconds of a pass by its tokens, from what the verifier measured: interpolated, never falling."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """`points` are (tokens, seconds).

        Raises:
            ValueError: if there is none.
        """
        ordered = sorted(points)
        if not ordered:
            raise ValueError("a curve needs a point")
        sizes = [tokens for tokens, _ in ordered]
        seconds = _never_falling([max(seconds, _LEAST_S) for _, seconds in ordered])
        self._most = sizes[-1]
        self._seconds: list[float] = np.interp(range(self._most + 1), sizes, seconds).tolist()
        """Of whole numbers of tokens: a step asks some fifty times."""

    def at(self, tokens: float) -> float:
        """Beyond all that was measured: in proportion."""
        if tokens >= self._most:
            return self._seconds[-1] * tokens / self._most
        below = int(tokens)
        here, above = self._seconds[below], self._seconds[below + 1]
        return here + (above - here) * (tokens - below)


def _never_falling(values: Sequence[float]) -> list[float]:
    """The sequence nearest to `values` (least squares) that never falls: what falls is levelled out."""
    levels: list[tuple[float, int]] = []  # mean, values
    for value in values:
        mean, count = value, 1
        while levels and levels[-1][0] > mean:
            other, others = levels.pop()
            mean, count = (mean * count + other * others) / (count + others), count + others
        levels.append((mean, count))
    return [mean for mean, count in levels for _ in range(count)]


class StepCosts:
    """Learns what the parts of a step take.

    Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
    alternatives were measured then. So every time is kept relative to the pace of its moment, which is
    read off the passes, each against what was expected of it. Passes with trees have a factor of their own:
    a machine that is short of memory bandwidth makes only small passes slow, one that is short of
    arithmetic only large ones. It is learnt where steps with and without trees follow each other.
    """

    def __init__(self, passes: PassCurve) -> None:
        self._curve, self._log_pace = passes, 0.0
        self._log_tree = 0.0
        """Logarithm of the factor of passes with trees."""
        self._kind: tuple[int, bool] | None = None
        """Batch size of the last pass, and whether it had trees."""
        self._before: tuple[int, bool] | None = None
        """The kind before that."""
        self._alike = 0
        """Passes of the last kind since."""
        self._overhead = {False: Average(), True: Average()}  # without and with speculation
        self._drafts: BySize[dict[int, Average]] = BySize(dict)
        self._wires: BySize[dict[frozenset[int], Average]] = BySize(dict)

    @property
    def pace(self) -> float:
        """Time passes take now over the time the verifier said."""
        return math.exp(self._log_pace)

    def observe(
        self, batch: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], overhead_s: float
    ) -> None:
        """Counts one step; `drafts` is empty for plain decoding."""
        self.observe_pass(batch, tokens, pass_s)
        pace = self.pace
        overhead = self._overhead[bool(drafts)]
        if drafts or self._alike > 1 or not overhead.count:
            overhead.add(overhead_s / pace, clip=True)
        for draft in drafts:
            self._average(batch, self._wires, draft.service).add(draft.wire_s / pace, clip=True)
            for speculator, seconds in draft.own_s.items():
                self._average(batch, self._drafts, speculator).add(seconds / pace, clip=True)

    def observe_pass(self, batch: int, tokens: int, seconds: float) -> None:
        """Counts the pass of a step of which nothing else is known."""
        surprise = math.log(max(seconds, _LEAST_S) / self.pass_seconds(batch, tokens - batch))
        trees = tokens > batch
        kind = _size(batch), trees
        if self._kind is None:
            self._log_pace, self._kind = surprise, kind
            return
        surprise = max(-_LOG_OUTLIER, min(surprise, _LOG_OUTLIER))
        if kind != self._kind:
            self._before, self._kind, self._alike = self._kind, kind, 0
        self._alike += 1
        # what drafts leave in the caches slows the first plain pass after them
        tells = 1 if trees else 2
        if self._alike == tells and self._before == (kind[0], not trees):
            self._log_tree += _TREE_SMOOTHING * (surprise if trees else -surprise)
        self._log_pace += (_PACE_SMOOTHING if self._alike > tells else _CHANGE_SMOOTHING) * surprise

    def step_seconds(
        self, batch: int, asked: frozenset[int], services: Iterable[frozenset[int]], nodes: float
    ) -> float:
        """Time of a whole step that asks these speculators, which belong to these services, and verifies so
        many nodes per request."""
        drafts = [self.draft_seconds(batch, asked & members, members) for members in services]
        overhead = self.pace * self._overhead[bool(asked)].value
        return overhead + max(drafts, default=0.0) + self.pass_seconds(batch, batch * nodes)

    def draft_seconds(self, batch: int, asked: frozenset[int], service: frozenset[int]) -> float:
        """Time of the drafts of speculators of a service; a new batch size is judged by the nearest one."""
        if not asked:
            return 0.0
        own = sum(self._lent(batch, self._drafts, speculator) for speculator in asked)
        return self.pace * (self._lent(batch, self._wires, service) + own)

    def pass_seconds(self, batch: int, nodes: float) -> float:
        """Time of a pass over a batch and so many tree nodes."""
        tree = self._log_tree if nodes else 0.0
        return self._curve.at(batch + nodes) * math.exp(self._log_pace + tree)

    def _average(self, batch: int, known: "BySize[dict[K, Average]]", key: K) -> Average:
        """Of a batch size; a new one starts from what the nearest lends: a first outlier is not believed."""
        averages = known[batch]
        if key not in averages:
            averages[key] = Average(start=self._lent(batch, known, key) or None)
        return averages[key]

    @staticmethod
    def _lent(batch: int, known: "BySize[dict[K, Average]]", key: K) -> float:
        found = known.nearest(batch, lambda averages: averages.get(key))
        if found is None:
            return 0.0
        seconds, doublings = found
        return seconds.value * float(2.0 ** (_DRAFT_GROWTH * doublings))


def _size(batch: int) -> int:
    return (batch - 1).bit_length()
