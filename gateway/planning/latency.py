"""What steps cost: passes, drafts and the rest. Measured by batch size. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from gateway.planning.pass_times import PassCurve, PassTimes

_SMOOTHING = 0.08
_OUTLIER = 3.0
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


class StepCosts:
    """Learns what the parts of a step take.

    Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
    alternatives were measured then. So every time is kept relative to the pace of its moment, which is
    read off the passes.
    """

    def __init__(self, curve: PassCurve) -> None:
        self.passes = PassTimes(curve)
        self._plain_before = True
        """Whether the last pass had no trees."""
        self._overhead = {False: Average(), True: Average()}  # without and with speculation
        self._drafts: BySize[dict[int, Average]] = BySize(dict)
        self._wires: BySize[dict[frozenset[int], Average]] = BySize(dict)

    def observe(
        self, batch: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], overhead_s: float
    ) -> None:
        """Counts one step; `drafts` is empty for plain decoding."""
        tells = self.observe_pass(batch, tokens, pass_s)
        pace = self.passes.pace
        overhead = self._overhead[bool(drafts)]
        if drafts or tells or not overhead.count:
            overhead.add(overhead_s / pace, clip=True)
        for draft in drafts:
            self._average(batch, self._wires, draft.service).add(draft.wire_s / pace, clip=True)
            for speculator, seconds in draft.own_s.items():
                self._average(batch, self._drafts, speculator).add(seconds / pace, clip=True)

    def observe_pass(self, batch: int, tokens: int, seconds: float) -> bool:
        """Counts the pass of a step of which nothing else is known, if it tells something.

        What drafts leave in the caches slows the first plain step after them: that one does not.
        """
        trees = tokens > batch
        tells = trees or self._plain_before
        if tells:
            self.passes.observe(batch, tokens, seconds)
        self._plain_before = not trees
        return tells

    def step_seconds(
        self, batch: int, asked: frozenset[int], services: Iterable[frozenset[int]], nodes: float
    ) -> float:
        """Time of a whole step that asks these speculators, which belong to these services, and verifies so
        many nodes per request."""
        drafts = [self.draft_seconds(batch, asked & members, members) for members in services]
        overhead = self.passes.pace * self._overhead[bool(asked)].value
        return overhead + max(drafts, default=0.0) + self.passes.seconds(batch, batch * nodes)

    def draft_seconds(self, batch: int, asked: frozenset[int], service: frozenset[int]) -> float:
        """Time of the drafts of speculators of a service; a new batch size is judged by the nearest one."""
        if not asked:
            return 0.0
        own = sum(self._lent(batch, self._drafts, speculator) for speculator in asked)
        return self.passes.pace * (self._lent(batch, self._wires, service) + own)

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
