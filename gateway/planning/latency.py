"""The latency model: expected seconds of a step. Pure.

    seconds(S, n) = overhead + max over services of drafts(S in that service) + pass(batch, n)

Services of one machine draft side by side on the same cores: the more of them are asked, the longer each
takes. So their times are kept by how many were asked, and of fewer than were ever asked the best is hoped:
that each takes as much less as there are fewer. What is hoped of is tried, and then it is measured
(docs/findings.md#side-by-side).

Shared machines change their speed by a fifth within seconds, and what is chosen is measured now while the
alternatives were measured then. So every time is kept relative to the pace of its moment, which the passes
tell (`pass_times`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gateway.planning.average import Average
from gateway.planning.pass_times import PassCurve, PassTimes
from gateway.planning.reading import Reading

SpeculatorSet = frozenset[int]


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
        self.passes = PassTimes(curve)
        self._trees_before = False
        self._overhead = {False: Average(), True: Average()}  # without and with drafts
        self._drafts: dict[object, dict[int, dict[int, Average]]] = {}
        """Of a speculator its own time, of a service its messages'; by how many services drafted in the step,
        and by the batch size in powers of two."""
        self.reading = Reading()

    def observe(
        self, batch: int, tokens: int, pass_s: float, drafts: Sequence[DraftTime], overhead_s: float
    ) -> None:
        """Counts one step; `drafts` is empty for plain decoding."""
        cold = self.observe_pass(batch, tokens, pass_s)
        if drafts or not cold:
            self._overhead[bool(drafts)].add(overhead_s / self.passes.pace)
        for draft in drafts:
            if draft.read:
                self._observe_reading(batch, draft, len(drafts))
                continue
            for key, seconds in ((draft.service, draft.wire_s), *draft.own_s.items()):
                sizes = self._drafts.setdefault(key, {}).setdefault(len(drafts), {})
                sizes.setdefault(_size(batch), Average()).add(seconds / self.passes.pace)

    def _observe_reading(self, batch: int, draft: DraftTime, drafting: int) -> None:
        drafting_s = self.draft_seconds(batch, frozenset(draft.own_s), draft.service, drafting)
        seconds = max(0.0, draft.total_s - drafting_s) / self.passes.pace
        self.reading.observe(draft.service, draft.read, seconds)

    def observe_pass(self, batch: int, tokens: int, seconds: float) -> bool:
        """Counts a pass, unless it is the first plain one after trees; says whether it is. Drafts leave it
        cold caches: a tenth slower than those behind it (docs/findings.md#cold-pass)."""
        cold = self._trees_before and tokens == batch
        if not cold:
            self.passes.observe(batch, tokens, seconds)
        self._trees_before = tokens > batch
        return cold

    def seconds_before_pass(
        self, batch: int, asked: SpeculatorSet, services: Iterable[SpeculatorSet]
    ) -> float:
        """Seconds of a step that asks these speculators, without its pass."""
        services = [members for members in services if asked & members]
        drafts = [self.draft_seconds(batch, asked & own, own, len(services)) for own in services]
        return self.passes.pace * self._overhead[bool(asked)].value + max(drafts, default=0.0)

    def seconds_to_catch_up(self, services: Iterable[SpeculatorSet]) -> float:
        """Seconds that asking everybody takes longer now, for what came since they were last asked."""
        return self.passes.pace * max([self.reading.seconds_to_catch_up(members) for members in services])

    def draft_seconds(
        self, batch: int, asked: SpeculatorSet, service: SpeculatorSet, drafting: int = 1
    ) -> float:
        """Seconds of the drafts of speculators of one service, if so many services draft in the step."""
        if not asked:
            return 0.0
        return self.passes.pace * sum(self._expected(batch, key, drafting) for key in (service, *asked))

    def _expected(self, batch: int, key: object, drafting: int) -> float:
        """Of so many services and this batch size, or of the nearest that were measured: of more services in
        proportion, which is the best that may be hoped; 0 if none was."""
        measured = self._drafts.get(key)
        if not measured:
            return 0.0
        known = min((count for count in measured if count >= drafting), default=max(measured))
        sizes = measured[known]
        nearest = sizes[min(sizes, key=lambda size: (abs(size - _size(batch)), size))]
        return min(1.0, drafting / known) * nearest.value


def _size(batch: int) -> int:
    return (batch - 1).bit_length()
