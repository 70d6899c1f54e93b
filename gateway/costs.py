"""What steps cost: passes by their tokens, drafts and the rest, measured by batch size. Pure."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping
from typing import Generic, TypeVar

_SMOOTHING = 0.08
_PACE_SMOOTHING, _PASS_SMOOTHING = 0.15, 0.02
"""The pace follows at once; what a pass takes at an even pace is the model's and changes little."""
_OUTLIER = 3.0
_DRAFT_GROWTH = 0.35
"""Drafting for twice the batch takes 2 to the power of this as long, until it is measured."""
_NODE_GUESS = 0.02
"""What a node adds to a pass, as a share of it, until it is measured."""
_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)

T = TypeVar("T")
V = TypeVar("V")


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
        found = [(abs(other - size), other, pick(item)) for other, item in self._items.items()]
        known = [(distance, other, value) for distance, other, value in found if value is not None]
        if not known:
            return None
        _, other, value = min(known, key=lambda item: item[:2])
        return value, size - other


class CostCurve:
    """Seconds of a pass by its number of tokens: measured in buckets, interpolated, never falling."""

    def __init__(self) -> None:
        self._tokens = [Average(_PASS_SMOOTHING) for _ in _BUCKETS]
        self._seconds = [Average(_PASS_SMOOTHING) for _ in _BUCKETS]
        self._points: list[tuple[float, float]] | None = []
        """(tokens, seconds) of the fitted curve; None if a pass came in since."""

    def add(self, tokens: int, seconds: float) -> None:
        """Counts one pass."""
        bucket = min(bisect_left(_BUCKETS, tokens), len(_BUCKETS) - 1)
        self._tokens[bucket].add(tokens)
        self._seconds[bucket].add(seconds, clip=True)
        self._points = None

    @property
    def reach(self) -> float:
        """The most tokens that were measured."""
        return max((t.value for t in self._tokens if t.count), default=0.0)

    def at(self, tokens: float) -> float:
        """Estimated seconds; 0 before anything was measured."""
        if self._points is None:
            self._points = self._fit()
        points = self._points
        above = bisect_left(points, (tokens,))
        if not points:
            return 0.0
        if above == len(points):  # beyond all that was measured: at worst in proportion
            return points[-1][1] * max(1.0, tokens / points[-1][0])
        if above == 0:
            return points[0][1]
        (t0, s0), (t1, s1) = points[above - 1 : above + 1]
        return s0 + (s1 - s0) * (tokens - t0) / (t1 - t0)

    def _fit(self) -> list[tuple[float, float]]:
        """Isotonic regression: buckets that contradict each other share their mean."""
        pools: list[tuple[float, float, list[float]]] = []  # mean seconds, weight, tokens of the buckets
        for t, s in zip(self._tokens, self._seconds, strict=True):
            if not s.count:
                continue
            mean, weight, tokens = s.value, min(s.count, 1 / _PASS_SMOOTHING), [t.value]
            while pools and pools[-1][0] > mean:
                before, other, more = pools.pop()
                mean = (before * other + mean * weight) / (other + weight)
                weight, tokens = other + weight, more + tokens
            pools.append((mean, weight, tokens))
        return [(t, mean) for mean, _, tokens in pools for t in tokens]


class StepCosts:
    """Learns what the parts of a step take.

    Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
    alternatives were measured then. So every time is kept relative to the pace of its moment, which is
    read off the passes: each against what was expected of it.
    """

    def __init__(self) -> None:
        self._pace = 1.0
        self._overhead = {False: Average(), True: Average()}  # without and with speculation
        self._drafts: BySize[dict[frozenset[int], Average]] = BySize(dict)
        """By those of a service's speculators that were asked together."""
        self._passes: BySize[CostCurve] = BySize(CostCurve)
        """A token of another request costs more than a node, so passes are told apart by batch size."""

    def observe(
        self,
        batch: int,
        tokens: int,
        verify_s: float,
        draft_s: Mapping[frozenset[int], float],
        overhead_s: float,
    ) -> None:
        """Counts one step; `draft_s`, by what each service was asked for, is empty for plain decoding."""
        passes = self._passes[batch]
        if passes.reach >= tokens:  # measured, not extrapolated
            now = verify_s / passes.at(tokens)
            self._pace += _PACE_SMOOTHING * (min(now, _OUTLIER * self._pace) - self._pace)
        passes.add(tokens, verify_s / self._pace)
        self._overhead[bool(draft_s)].add(overhead_s / self._pace, clip=True)
        for asked, seconds in draft_s.items():
            self._drafts[batch].setdefault(asked, Average()).add(seconds / self._pace, clip=True)

    def knows_passes(self, batch: int) -> bool:
        """Whether a pass was measured at this batch size."""
        return self._passes[batch].reach > 0

    def step_seconds(self, batch: int, asked: Collection[frozenset[int]], nodes: float) -> float:
        """Time of a whole step that asks each service for some of its speculators and verifies so many nodes
        per request; 0 before anything was measured."""
        slowest = max((self.draft_seconds(batch, part) for part in asked), default=0.0)
        overhead = self._pace * self._overhead[bool(asked)].value
        return overhead + slowest + self.pass_seconds(batch, batch * nodes)

    def draft_seconds(self, batch: int, asked: frozenset[int]) -> float:
        """Time of the drafts of speculators of one service. A new batch size is judged by the nearest one
        known, a new selection by the cheapest known one that contains it."""
        found = self._drafts.nearest(batch, lambda drafts: drafts.get(asked))
        found = found or self._drafts.nearest(batch, lambda drafts: _least(drafts, asked))
        if found is None:
            return 0.0
        seconds, doublings = found
        return self._pace * seconds.value * float(2.0 ** (_DRAFT_GROWTH * doublings))

    def pass_seconds(self, batch: int, nodes: float) -> float:
        """Time of a pass over a batch and so many tree nodes; what this size lacks is lent by the nearest."""
        return self._pace * self._pass(batch, nodes)

    def _pass(self, batch: int, nodes: float) -> float:
        own, wanted = self._passes[batch], batch + nodes / 2
        if own.reach >= wanted:
            return own.at(batch + nodes)
        base = own.at(batch)
        found = self._passes.nearest(batch, lambda curve: curve if curve.reach >= wanted else None)
        if found is None:
            return base * (1 + _NODE_GUESS * nodes)
        lent, _ = found
        return (base or lent.at(batch)) + max(0.0, lent.at(batch + nodes) - lent.at(batch))


def _least(drafts: Mapping[frozenset[int], Average], asked: frozenset[int]) -> Average | None:
    containing = [average for selection, average in drafts.items() if asked < selection]
    return min(containing, key=lambda average: average.value, default=None)


def _size(batch: int) -> int:
    return (batch - 1).bit_length()
