"""LATENCY"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import NamedTuple

from specinfer.planning.pass_times import PassCurve, PassTimes, Recent

_READING_PART = 0.2
"""Of what a token of a pass takes the target: what reading one is thought to take until it was measured."""


class Reading:
    """Knows the contexts' lengths, and learns how fast services read."""

    def __init__(self, token_s: float) -> None:
        """`token_s`: what the target takes for one of several tokens of a pass."""
        self._first_s = _READING_PART * token_s
        self._seconds: dict[frozenset[int], Recent] = {}
        """By service, for one token at the usual pace."""
        self._contexts: Mapping[str, int] = {}
        self._asked: Mapping[str, int] = {}

    def follow(self, contexts: Mapping[str, int]) -> None:
        """From now on these are the requests that want drafts, with the tokens of their contexts."""
        self._contexts = contexts

    def asked(self) -> None:
        """Speculators are asked in this step: afterwards they have read all there is."""
        self._asked = self._contexts

    def observe(self, service: frozenset[int], tokens: int, seconds: float) -> None:
        """A service read so many tokens in so many seconds, at the usual pace."""
        self._seconds.setdefault(service, Recent()).add(seconds / tokens)

    def seconds_to_catch_up(self, service: frozenset[int]) -> float:
        """For all that came since speculators were last asked."""
        missed = sum([tokens - self._asked.get(name, 0) for name, tokens in self._contexts.items()])
        seconds = self._seconds.get(service)
        return missed * (seconds.value if seconds else self._first_s)


SpeculatorSet = frozenset[int]
_COLD = 3
"""Steps with a service, and plain ones, whose times are left out."""
_PART = 0.25
"""Of a pass over one token: what drafts are thought to take until they were measured."""


class DraftTime(NamedTuple):
    """What one service took for one step's drafts."""

    service: SpeculatorSet
    """All its speculators."""
    own_s: Mapping[int, float]
    """Of those asked: they draft one after another."""
    wire_s: float
    """The rest: messages and what the service does for all."""
    read: int = 0
    """Context tokens of all requests, if one has more than usual: then the times are mostly of these."""

    @property
    def total_s(self) -> float:
        """From the question to the answer."""
        return self.wire_s + sum(self.own_s.values())


class LatencyModel:
    """Learns what the phases of a step take."""

    def __init__(self, curve: PassCurve) -> None:
        self.passes, self.reading = PassTimes(curve), Reading(curve.token_seconds)
        self._first_s = _PART * curve.at(1)
        self._trees_before = False
        self._seen = Counter[SpeculatorSet]()
        """Steps by service; plain ones by the empty set."""
        self._rest: dict[bool, dict[int, Recent]] = {False: {}, True: {}}
        """Without and with drafts, by batch size in powers of two."""
        self._drafts: dict[object, dict[int, dict[int, dict[int, Recent]]]] = {}
        """Of a speculator its own time, of a service its messages'; by how many services drafted in the step,
        batch size in powers of two, and nodes asked for each request."""
        self._known: dict[object, Sequence[float]] = {}
        """What follows from these."""

    def observe(
        self, batch: int, nodes: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], rest_s: float
    ) -> bool:
        """Counts one step, unless it is cold; says whether it does.

        Args:
            nodes: asked for each request.
            drafts: empty for plain decoding.
        """
        cold = self._is_cold([draft.service for draft in drafts] or [frozenset()])
        behind_trees = self.observe_pass(batch, tokens, pass_s, cold)
        if cold or (behind_trees and not drafts):
            return False
        pace = self.passes.pace
        self._rest[bool(drafts)].setdefault(_size(batch), Recent()).add(rest_s / pace)
        if drafts:
            self._known.clear()
        for draft in drafts:
            if draft.read:
                self._observe_reading(batch, nodes, draft, len(drafts))
                continue
            for key, seconds in ((draft.service, draft.wire_s), *draft.own_s.items()):
                by_batch = self._drafts.setdefault(key, {}).setdefault(len(drafts), {})
                by_batch.setdefault(_size(batch), {}).setdefault(nodes, Recent()).add(seconds / pace)
        return True

    def observe_pass(self, batch: int, tokens: int, seconds: float, cold: bool = False) -> bool:
        """Counts a pass, unless it is cold or the first plain one after trees; says whether it is that.
        Drafts leave it cold caches: a tenth slower than those behind it (docs/findings.md#cold-pass)."""
        behind_trees = self._trees_before and tokens == batch
        if not (cold or behind_trees):
            self.passes.observe(tokens, seconds)
        self._trees_before = tokens > batch
        return behind_trees

    def seconds_before_pass(
        self,
        batch: int,
        asked: SpeculatorSet = frozenset(),
        services: Iterable[SpeculatorSet] = (),
        sizes: Sequence[int] = (0,),
    ) -> list[float]:
        """Seconds of steps that ask these speculators for so many nodes each, without their passes."""
        rest = self._rest[bool(asked)] or self._rest[not asked]
        rest_s = self.passes.pace * (rest[_nearest(rest, _size(batch))].value if rest else 0.0)
        asking = [members for members in services if asked & members]
        drafts = [self.draft_seconds(batch, asked & own, own, sizes, len(asking)) for own in asking]
        slowest = map(max, zip(*drafts, strict=True)) if len(drafts) > 1 else drafts[0] if drafts else [0.0]
        return [rest_s + draft_s for draft_s in slowest]

    def seconds_to_catch_up(self, services: Iterable[SpeculatorSet]) -> float:
        """Seconds that asking everybody takes longer now, for what came since they were last asked."""
        return self.passes.pace * max([self.reading.seconds_to_catch_up(members) for members in services])

    def draft_seconds(
        self,
        batch: int,
        asked: SpeculatorSet,
        service: SpeculatorSet,
        sizes: Sequence[int],
        drafting: int = 1,
    ) -> list[float]:
        """Seconds of drafts of so many nodes, of speculators of one service, if so many services draft in the
        step."""
        pace = self.passes.pace
        if not asked or service not in self._drafts:
            return [pace * self._first_s * bool(asked)] * len(sizes)
        rows = [self._expected(batch, key, sizes, drafting) for key in (service, *asked)]
        return [pace * sum(parts) for parts in zip(*rows, strict=True)]

    def _is_cold(self, services: Sequence[SpeculatorSet]) -> bool:
        self._seen.update(services)
        return min(self._seen[service] for service in services) <= _COLD

    def _observe_reading(self, batch: int, nodes: int, draft: DraftTime, drafting: int) -> None:
        drafting_s = self.draft_seconds(batch, frozenset(draft.own_s), draft.service, [nodes], drafting)[0]
        seconds = max(0.0, draft.total_s - drafting_s) / self.passes.pace
        self.reading.observe(draft.service, draft.read, seconds)

    def _expected(self, batch: int, key: object, sizes: Sequence[int], drafting: int) -> Sequence[float]:
        """Of so many services, this batch size and these nodes, or of the nearest that were measured: of more
        services in proportion, which is the best that may be hoped; 0 if none was."""
        which = key, batch, drafting, *sizes
        if which not in self._known:
            measured = self._drafts.get(key)
            if not measured:
                return [0.0] * len(sizes)
            count = min((count for count in measured if count >= drafting), default=max(measured))
            by_batch, part = measured[count], min(1.0, drafting / count)
            by_nodes = by_batch[_nearest(by_batch, _size(batch))]
            self._known[which] = [part * _by_nodes(by_nodes, nodes) for nodes in sizes]
        return self._known[which]


def _size(batch: int) -> int:
    return (batch - 1).bit_length()


def _nearest(known: Iterable[int], size: int) -> int:
    return min(known, key=lambda other: (abs(other - size), other))


def _by_nodes(measured: Mapping[int, Recent], nodes: int) -> float:
    """Interpolated between the nearest numbers of nodes that were measured."""
    if nodes in measured:
        return measured[nodes].value
    less = max((n for n in measured if n < nodes), default=0)
    more = min((n for n in measured if n > nodes), default=0)
    if not (less and more):
        return measured[less or more].value
    part = log2(nodes / less) / log2(more / less)
    return measured[less].value * (1 - part) + measured[more].value * part


_USUAL_DELTA = 16
"""Context tokens up to which an answer tells what drafts take; with more, a service reads what it missed."""


def tokens_read(tokens: Sequence[int]) -> int:
    """How many context tokens a service read, of those sent for each request, if what it took tells of that
    rather than of drafting; else 0."""
    return sum(tokens) if max(tokens) > _USUAL_DELTA else 0
