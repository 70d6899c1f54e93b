"""Trials: steps that differ from the most promising choice, to learn its alternatives. Pure.

What was hardly measured is tried where it promises nearly as much as the best, out of a small credit. What
was left out for so long that trying it costs little of that time is probed: plain decoding beside trees, the
whole pool beside plain decoding or a part of it, trees of twice and half as many nodes. Speculators that did
not draft for a while have to read what they missed first, which is part of the cost.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from specinfer.planning.latency import SpeculatorSet, batch_size_class

_MARGIN = 1.02
"""Speculation must promise so much of plain decoding's speed: of several noisy promises the best is too
good."""
_TIMES = 3
"""Steps after which a choice is measured."""
_HOPE = 1.25
"""Factor by which a choice that was not measured may turn out faster than expected."""
_FIRST_TREES, _FIRST_STEPS, _FIRST_HOPE = 16, 8, 2.0
"""Trees, and steps with them, before anything is believed of trees; how much faster they may be until
then."""
_DOUBT = 4
"""Probes of trees beside plain decoding after which they take half the share: until then, however little they
promise, as what was measured in one moment may have been disturbed; after many they are hopeless."""
_CREDIT = 10.0
"""Plain steps that trials may cost at first."""
_CREDIT_SHARE = 0.007
"""Part of the time by which the credit grows while something promising has to wait for it."""
_SHARE, _NEARNESS, _LEAST_SHARE = 0.02, 6.0, 0.003
"""Part of the time for probes of one kind that promises as much as the best; times that power of how near it
is; at least."""
_TREES, _PLAIN = 8, 2
"""Trees of a probe beside plain decoding at most: as many as cost what speculators have to read once for
them. Steps of a probe of plain decoding: the first one's caches are cold from drafts."""
_LEAST = 0.2
"""Part of a step: the least that a step of a probe is counted for."""


class Reason(StrEnum):
    """Why a step was planned so; its values are labels of metrics."""

    NO_SPECULATORS = "no speculators"
    NOT_WANTED = "no request wants drafts"
    NOT_ADAPTIVE = "not adaptive"
    FASTEST = "fastest"
    PLAIN_IS_FASTER = "plain is faster"
    FIRST_TREES = "first trees"
    FIRST_PLAIN = "first plain"
    PROBE_PLAIN = "probe plain"
    PROBE_SMALLER = "probe smaller"
    PROBE_LARGER = "probe larger"
    PROBE_ALL = "probe all"


class Option(NamedTuple):
    """A possible choice, and its expected outcome."""

    asked: SpeculatorSet
    nodes: int
    """Nodes for each request."""
    tokens: float
    seconds: float
    pass_s: float
    kept: float
    """Nodes that are verified in the step."""
    speed: float
    """Expected tokens per second."""


class Trials:
    """Counts how often choices were tried, and since when they were not."""

    def __init__(self) -> None:
        self._times = Counter[tuple[int, SpeculatorSet, int]]()
        self._left_out_s: defaultdict[Reason, float] = defaultdict(float)
        self._credit_s: float | None = None
        self._trees = self._tree_steps = self._probes = 0
        """Trees measured so far, the steps that had them, and probes of them beside plain decoding."""
        self._kind: Reason | None = None
        self._steps = 0
        """Kind of the probe that goes on, and the steps it still takes."""

    def count(self, batch: int, asked: SpeculatorSet, nodes: int) -> None:
        """Count a choice that was made and measured."""
        self._times[batch_size_class(batch), asked, nodes] += 1
        self._trees += batch * bool(asked)
        self._tree_steps += bool(asked)

    def pick(
        self, batch: int, plain: Option, trees: Sequence[Option], pool: SpeculatorSet, behind_s: float
    ) -> tuple[Option, Reason]:
        """Return the choice of the step, and its reason.

        Args:
            batch: requests of the step.
            plain: plain decoding.
            trees: choices with trees.
            pool: all speculators.
            behind_s: seconds to read what came during plain decoding.
        """
        best = max([o for o in trees if self._measured(batch, o)], key=lambda o: o.speed, default=plain)
        if best.speed <= _MARGIN * plain.speed:
            best = plain
        else:
            self._probes = 0
        behind_s = 0.0 if best.asked else behind_s
        trial = self._trial(batch, best, [plain, *trees], behind_s)
        if trial is not None:
            return trial, Reason.FIRST_TREES if trial.asked else Reason.FIRST_PLAIN
        for kind, option in _neglected(best, plain, trees, pool):
            if kind == self._kind and self._steps:
                self._steps -= 1
                return option, kind
            self._left_out_s[kind] += best.seconds
            cost = max(_cost(option, best), _LEAST * best.seconds)
            reading_s = behind_s * bool(option.asked)
            steps = min(max(round(reading_s / cost), 1), -(-_TREES // batch)) if option.asked else _PLAIN
            beside = bool(option.asked) and not best.asked
            if self._share(option, best) * self._left_out_s[kind] >= steps * cost + reading_s:
                self._left_out_s[kind], self._kind, self._steps = 0.0, kind, steps - 1
                self._probes += beside
                return option, kind
        self._steps = 0
        return best, Reason.FASTEST if best.asked else Reason.PLAIN_IS_FASTER

    def _share(self, option: Option, best: Option) -> float:
        """Return the part of the time for probes of this choice."""
        nearness = min(option.speed / best.speed, 1.0)
        share: float = _SHARE * nearness**_NEARNESS
        if option.asked and not best.asked:
            share = max(share, _SHARE * nearness) if self._probes < _DOUBT else share
            share /= 1 + self._probes / _DOUBT
        return max(share, _LEAST_SHARE)

    def _trial(self, batch: int, best: Option, options: Sequence[Option], behind_s: float) -> Option | None:
        """Return the most promising choice that was hardly measured, if it may be as fast as the best."""
        hope = _FIRST_HOPE if self._young else _HOPE
        hoped = [o for o in options if not self._measured(batch, o) and hope * o.speed > best.speed]
        trial = max(hoped, key=lambda option: option.speed, default=None)
        if trial is None:
            return None
        if self._credit_s is None:
            self._credit_s = _CREDIT * best.seconds
        cost = max(_cost(trial, best), 0.0) + behind_s * bool(trial.asked)
        if cost > self._credit_s:
            self._credit_s += _CREDIT_SHARE * best.seconds
            return None
        self._credit_s -= cost
        return trial

    @property
    def _young(self) -> bool:
        return self._trees < _FIRST_TREES or self._tree_steps < _FIRST_STEPS

    def _measured(self, batch: int, option: Option) -> bool:
        young = bool(option.asked) and self._young
        return not young and self._times[batch_size_class(batch), option.asked, option.nodes] >= _TIMES


def _neglected(
    best: Option, plain: Option, trees: Sequence[Option], pool: SpeculatorSet
) -> Iterator[tuple[Reason, Option]]:
    """Yield, by kind, choices that are not made and should not be forgotten."""
    if best.asked:
        yield Reason.PROBE_PLAIN, plain
        for kind, nodes in ((Reason.PROBE_SMALLER, -1), (Reason.PROBE_LARGER, 1)):
            sizes = [option for option in trees if option.asked == best.asked]
            place = sizes.index(best) + nodes
            if 0 <= place < len(sizes):
                yield kind, sizes[place]
    whole = [option for option in trees if option.asked == pool]
    if whole and pool != best.asked:
        yield Reason.PROBE_ALL, max(whole, key=lambda option: option.speed)


def _cost(option: Option, best: Option) -> float:
    """Return the extra seconds of a step for its tokens, compared with the best choice."""
    return option.seconds - option.tokens / best.speed
