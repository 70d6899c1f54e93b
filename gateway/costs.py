"""What steps cost: passes by their tokens, drafts and the rest. Measured by batch size. Pure.

The verifier says how long its passes take by their tokens; while serving, that is corrected.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

_SMOOTHING = 0.08
_PACE_SMOOTHING, _SLOPE_SMOOTHING = 0.15, 0.005
_OUTLIER = 3.0
_TRUST = 0.1
"""Belief in what the verifier said of nodes: the squared deviations of what they add that outweigh it."""
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
        found = [(abs(other - size), other, pick(item)) for other, item in self._items.items()]
        known = [(distance, other, value) for distance, other, value in found if value is not None]
        if not known:
            return None
        _, other, value = min(known, key=lambda item: item[:2])
        return value, size - other


class PassCurve:
    """Seconds of a pass by its tokens, from what the verifier measured: interpolated, never falling."""

    def __init__(self, points: Iterable[tuple[int, float]]) -> None:
        """`points` are (tokens, seconds), at least one."""
        self._points: list[tuple[float, float]] = []
        for tokens, seconds in sorted(points):
            least = self._points[-1][1] if self._points else 0.0
            self._points.append((tokens, max(seconds, least)))

    def at(self, tokens: float) -> float:
        """Beyond all that was measured: in proportion."""
        above = bisect_left(self._points, (tokens,))
        if above == len(self._points):
            most, seconds = self._points[-1]
            return seconds * tokens / most
        if above == 0:
            return self._points[0][1]
        (t0, s0), (t1, s1) = self._points[above - 1 : above + 1]
        return s0 + (s1 - s0) * (tokens - t0) / (t1 - t0)


class Slope:
    """How much more nodes cost than the verifier said, from passes with more and with fewer of them.

    A regression over the last few hundred passes: the machine's moods have nothing to do with node counts.
    """

    def __init__(self) -> None:
        self._x, self._y, self._xx, self._xy = (Average(_SLOPE_SMOOTHING) for _ in range(4))

    def add(self, said: float, found: float) -> None:
        """What nodes add to a pass, as a share of it without them: as the verifier said, and as found."""
        for average, value in (
            (self._x, said),
            (self._y, found),
            (self._xx, said**2),
            (self._xy, said * found),
        ):
            average.add(value)

    @property
    def value(self) -> float:
        """1 where the verifier was right, or too pessimistic."""
        variance = self._xx.value - self._x.value**2
        covariance = self._xy.value - self._x.value * self._y.value
        seen = min(self._x.count, 1 / _SLOPE_SMOOTHING)
        return max(1.0, (seen * covariance + _TRUST) / (seen * variance + _TRUST))


class StepCosts:
    """Learns what the parts of a step take.

    Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
    alternatives were measured then. So every time is kept relative to the pace of its moment, which is
    read off the passes, each against what was expected of it.
    """

    def __init__(self, passes: PassCurve) -> None:
        self._curve, self._pace = passes, 1.0
        self._slopes: BySize[Slope] = BySize(Slope)
        self._overhead = {False: Average(), True: Average()}  # without and with speculation
        self._drafts: BySize[dict[int, Average]] = BySize(dict)
        self._wires: BySize[dict[frozenset[int], Average]] = BySize(dict)

    def observe(
        self, batch: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], overhead_s: float
    ) -> None:
        """Counts one step; `drafts` is empty for plain decoding."""
        now = pass_s / self._at_even_pace(batch, tokens - batch)
        if tokens > batch:
            self._slopes[batch].add(
                self._said(batch, tokens - batch), pass_s / (self._pace * self._curve.at(batch))
            )
        self._pace += _PACE_SMOOTHING * (min(now, _OUTLIER * self._pace) - self._pace)
        self._overhead[bool(drafts)].add(overhead_s / self._pace, clip=True)
        for draft in drafts:
            wire = self._wires[batch].setdefault(draft.service, Average())
            wire.add(draft.wire_s / self._pace, clip=True)
            for speculator, seconds in draft.own_s.items():
                self._drafts[batch].setdefault(speculator, Average()).add(seconds / self._pace, clip=True)

    def step_seconds(
        self, batch: int, asked: frozenset[int], services: Iterable[frozenset[int]], nodes: float
    ) -> float:
        """Time of a whole step that asks these speculators, which belong to these services, and verifies so
        many nodes per request."""
        drafts = [self.draft_seconds(batch, asked & members, members) for members in services]
        overhead = self._pace * self._overhead[bool(asked)].value
        return overhead + max(drafts, default=0.0) + self.pass_seconds(batch, batch * nodes)

    def draft_seconds(self, batch: int, asked: frozenset[int], service: frozenset[int]) -> float:
        """Time of the drafts of speculators of a service; a new batch size is judged by the nearest one."""
        if not asked:
            return 0.0
        own = sum(self._lent(batch, self._drafts, speculator) for speculator in asked)
        return self._pace * (self._lent(batch, self._wires, service) + own)

    def pass_seconds(self, batch: int, nodes: float) -> float:
        """Time of a pass over a batch and so many tree nodes."""
        return self._pace * self._at_even_pace(batch, nodes)

    def _at_even_pace(self, batch: int, nodes: float) -> float:
        return self._curve.at(batch) * (1 + self._slopes[batch].value * self._said(batch, nodes))

    def _said(self, batch: int, nodes: float) -> float:
        """What nodes add to a pass by the verifier's word, as a share of the pass without them."""
        return self._curve.at(batch + nodes) / self._curve.at(batch) - 1

    @staticmethod
    def _lent(batch: int, known: "BySize[dict[K, Average]]", key: K) -> float:
        found = known.nearest(batch, lambda averages: averages.get(key))
        if found is None:
            return 0.0
        seconds, doublings = found
        return seconds.value * float(2.0 ** (_DRAFT_GROWTH * doublings))


def _size(batch: int) -> int:
    return (batch - 1).bit_length()
