"""Latency model: seconds of a step's phases, learnt while serving."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import log2
from typing import NamedTuple

from specinfer.planning.pass_times import PassCurve, PassTimes, Recent

_READING_PART = 0.2
"""Part of the target's time for a token of a pass: the assumed time to read one until it was measured."""


class Reading:
    """Lengths of the contexts, and the pace at which services read."""

    def __init__(self, token_s: float) -> None:
        """Begin; `token_s` is the target's time for one of several tokens of a pass."""
        self._first_s = _READING_PART * token_s
        self._seconds: dict[frozenset[int], Recent] = {}
        """Seconds for one token at the usual pace, by service."""
        self._contexts: Mapping[str, int] = {}
        self._asked: Mapping[str, int] = {}

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Set the requests that want drafts, with the tokens of their contexts."""
        self._contexts = contexts

    def asked(self) -> None:
        """Note speculators that draft in this step: afterwards they have read all there is."""
        self._asked = self._contexts

    def observe(self, service: frozenset[int], tokens: int, seconds: float) -> None:
        """Note that a service read so many tokens in so many seconds, at the usual pace."""
        self._seconds.setdefault(service, Recent()).add(seconds / tokens)

    def seconds_to_catch_up(self, service: frozenset[int]) -> float:
        """Return the seconds to read all that came since speculators last drafted."""
        missed = sum([tokens - self._asked.get(name, 0) for name, tokens in self._contexts.items()])
        seconds = self._seconds.get(service)
        return missed * (seconds.value if seconds else self._first_s)


SpeculatorSet = frozenset[int]
_COLD = 3
"""Steps with a service, and plain ones, whose times are left out."""
_PART = 0.25
"""Part of a pass over one token: the assumed time of drafts until they were measured."""


class DraftTime(NamedTuple):
    """Times of one service for one step's drafts."""

    service: SpeculatorSet
    """All its speculators."""
    own_s: Mapping[int, float]
    """Seconds of each speculator that drafted: they draft one after another."""
    wire_s: float
    """Seconds of the rest: messages and the service's work for all."""
    read: int = 0
    """Context tokens of all requests, if one has more than usual: then the times are mostly of these."""
    resident: bool = False
    """True if it drafted in the verifier's process: then nothing else went on meanwhile."""

    @property
    def total_s(self) -> float:
        """Seconds from the question to the answer."""
        return self.wire_s + sum(self.own_s.values())


class LatencyModel:
    """Learns what the phases of a step take."""

    def __init__(self, curve: PassCurve) -> None:
        self.passes, self.reading = PassTimes(curve), Reading(curve.token_seconds)
        self._first_s = _PART * curve.at(1)
        self._trees_before = False
        self._resident: set[SpeculatorSet] = set()
        """Services in the verifier's process, as far as they have drafted."""
        self._seen = Counter[SpeculatorSet]()
        """Number of steps by service; plain ones by the empty set."""
        self._rest: dict[bool, dict[int, Recent]] = {False: {}, True: {}}
        """Seconds of the rest without and with drafts, by batch size in powers of two."""
        self._drafts: dict[object, dict[int, dict[int, dict[int, Recent]]]] = {}
        """Seconds of a speculator itself, or of a service's messages; by how many services drafted in the
        step, batch size in powers of two, and nodes drafted for each request."""
        self._known: dict[object, Sequence[float]] = {}
        """Values that follow from these."""

    def observe(
        self, batch: int, nodes: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], rest_s: float
    ) -> bool:
        """Count one step, unless it is cold; return whether it is counted.

        Args:
            batch: requests of the step.
            nodes: planned for each request.
            tokens: tokens of the pass.
            pass_s: seconds of the pass.
            drafts: empty for plain decoding.
            rest_s: seconds of the step besides pass and drafts.
        """
        cold = self._is_cold([draft.service for draft in drafts] or [frozenset()])
        behind_trees = self.observe_pass(batch, tokens, pass_s, cold)
        if cold or (behind_trees and not drafts):
            return False
        pace = self.passes.pace
        self._rest[bool(drafts)].setdefault(batch_size_class(batch), Recent()).add(rest_s / pace)
        if drafts:
            self._known.clear()
        together = sum([not draft.resident for draft in drafts])
        for draft in drafts:
            drafting = 1 if draft.resident else together
            if draft.resident:
                self._resident.add(draft.service)
            if draft.read:
                self._observe_reading(batch, nodes, draft, drafting)
                continue
            for key, seconds in ((draft.service, draft.wire_s), *draft.own_s.items()):
                by_batch = self._drafts.setdefault(key, {}).setdefault(drafting, {})
                by_batch.setdefault(batch_size_class(batch), {}).setdefault(nodes, Recent()).add(
                    seconds / pace
                )
        return True

    def observe_pass(self, batch: int, tokens: int, seconds: float, cold: bool = False) -> bool:
        """Count a pass, unless it is cold or the first plain one after trees; return whether it is that.

        Drafts leave it cold caches, which slow it (docs/performance.md#cold-pass).
        """
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
        """Return the seconds, without passes, of steps in which these speculators draft so many nodes each."""
        rest = self._rest[bool(asked)] or self._rest[not asked]
        rest_s = self.passes.pace * (rest[_nearest(rest, batch_size_class(batch))].value if rest else 0.0)
        asking = [members for members in services if asked & members]
        together = [members for members in asking if members not in self._resident]
        seconds = [rest_s] * len(sizes)
        for own in asking:
            if own in self._resident:  # before the others, by itself
                drafts = self.draft_seconds(batch, asked & own, own, sizes)
                seconds = [sum(parts) for parts in zip(seconds, drafts, strict=True)]
        rows = [self.draft_seconds(batch, asked & own, own, sizes, len(together)) for own in together]
        slowest = (
            map(max, zip(*rows, strict=True)) if len(rows) > 1 else rows[0] if rows else [0.0] * len(sizes)
        )
        return [sum(parts) for parts in zip(seconds, slowest, strict=True)]

    def seconds_to_catch_up(self, services: Iterable[SpeculatorSet]) -> float:
        """Return the extra seconds for all speculators to read what came since they last drafted."""
        return self.passes.pace * max([self.reading.seconds_to_catch_up(members) for members in services])

    def draft_seconds(
        self,
        batch: int,
        asked: SpeculatorSet,
        service: SpeculatorSet,
        sizes: Sequence[int],
        drafting: int = 1,
    ) -> list[float]:
        """Return the seconds of drafts of so many nodes, of speculators of one service.

        So many services draft in the step.
        """
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
        """Return the times at this batch size and these nodes, or the nearest that were measured.

        They are of so many services, or of more in proportion, which is optimistic; 0 if none was measured.
        """
        which = key, batch, drafting, *sizes
        if which not in self._known:
            measured = self._drafts.get(key)
            if not measured:
                return [0.0] * len(sizes)
            count = min((count for count in measured if count >= drafting), default=max(measured))
            by_batch, part = measured[count], min(1.0, drafting / count)
            by_nodes = by_batch[_nearest(by_batch, batch_size_class(batch))]
            self._known[which] = [part * _by_nodes(by_nodes, nodes) for nodes in sizes]
        return self._known[which]


def batch_size_class(batch: int) -> int:
    """Return the class of a batch size: 0 for one request, 1 for two, 2 for up to four, and so on."""
    return (batch - 1).bit_length()


def _nearest(known: Iterable[int], size: int) -> int:
    return min(known, key=lambda other: (abs(other - size), other))


def _by_nodes(measured: Mapping[int, Recent], nodes: int) -> float:
    """Return a value interpolated between the nearest numbers of nodes that were measured."""
    if nodes in measured:
        return measured[nodes].value
    less = max((n for n in measured if n < nodes), default=0)
    more = min((n for n in measured if n > nodes), default=0)
    if not (less and more):
        return measured[less or more].value
    part = log2(nodes / less) / log2(more / less)
    return measured[less].value * (1 - part) + measured[more].value * part


_USUAL_DELTA = 16
"""Context tokens up to which an answer's time is that of drafting; with more, a service reads what it
missed."""


def tokens_read(tokens: Sequence[int]) -> int:
    """Return how many context tokens a service read, if its time is that of reading; else 0.

    They are of those sent for each request.
    """
    return sum(tokens) if max(tokens) > _USUAL_DELTA else 0
