"""Decides per step which speculators are asked, and which nodes are worth verifying. Pure: told, never asks.

The expected speed of asking the speculators S at batch size b is

    b * (1 + gain(S)) / (overhead + slowest draft of S + pass(b * (1 + nodes of S that were verified)))

and every term is measured while serving: the time of a pass by its tokens, the time of each
speculator's drafts and the gain by batch size. A step with all speculators tells the gain of every subset,
because who proposed an accepted node is known. Such steps are repeated now and then, less and less
often while they do not pay. The gain expected of a request is the usual one times its own appeal, so a new
text gets its chance whatever became of the last. The empty set is plain decoding: hopeless text or a large
batch ends there, at the cost of the rare look.

How many nodes a tree gets is decided node by node, over the whole batch (`worth`).

What is chosen depends only on committed tokens and on time, so it never biases the output.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from specinfer.tree import TokenTree

_SMOOTHING = 0.08
_GAIN_SMOOTHING, _FIRST_GAIN = 0.01, 2.0
"""Gains are noisy (0 to 8 a step) and decide by tenths, so they are averaged long. The start is hopeful: a
gain that is believed too low is never found out, because then nobody drafts."""
_PART_SMOOTHING = 0.03
_APPEAL_SMOOTHING, _TAME = 0.08, 0.2
_OUTLIER = 3.0
_PLAIN_LOOKS = 2
_FIRST_OUTCOMES = 16
"""Trees that are looked at in full, at whatever batch size, before gains are believed."""
_FIRST_INTERVAL, _LAST_INTERVAL = 12, 192
_DRAFT_GROWTH = 0.7
"""Drafting for twice the batch takes 2 to the power of this as long, until it is measured."""
_NODE_GUESS = 0.02
"""What a node adds to a pass, as a share of it, until it is measured."""
_SLOPE = 4
"""Nodes over which the cost of one more is averaged: a pass grows in steps."""
DRAFT_FACTOR = 2
"""Nodes drafted per node that may be verified: the cut over the batch chooses among them."""
_BEGIN, _GO_ON = 1.05, 0.95
"""Speculation must promise so much of plain decoding's speed to begin and to go on: it is noisy, and whoever
stops learns little more."""
_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


@dataclass(frozen=True, slots=True)
class Choice:
    """What one step does."""

    speculators: frozenset[int]
    nodes: int
    """Most nodes drafted per request; 0 with no speculators is plain decoding."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """What one step did and how long it took."""

    choice: Choice
    batch: int
    tokens: int
    """Tokens in the target's pass."""
    verify_s: float
    draft_s: Mapping[int, float]
    """Per speculator that answered."""
    overhead_s: float
    """All the rest: from the end of the step before, if there was no pause, to the end of this one."""
    outcomes: Mapping[str, tuple[TokenTree, Sequence[int]]]
    """Per request that wanted a tree: its tree and the accepted nodes."""


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


class CostCurve:
    """Seconds of a pass by its number of tokens: measured in buckets, interpolated, never falling."""

    def __init__(self) -> None:
        self._tokens = [Average() for _ in _BUCKETS]
        self._seconds = [Average() for _ in _BUCKETS]

    def add(self, tokens: int, seconds: float) -> None:
        """Counts one pass."""
        bucket = min(bisect_left(_BUCKETS, tokens), len(_BUCKETS) - 1)
        self._tokens[bucket].add(tokens)
        self._seconds[bucket].add(seconds, clip=True)

    @property
    def reach(self) -> float:
        """The most tokens that were measured."""
        return max((t.value for t in self._tokens if t.count), default=0.0)

    def at(self, tokens: float) -> float:
        """Estimated seconds; 0 before anything was measured."""
        points = [(t.value, s.value) for t, s in zip(self._tokens, self._seconds, strict=True) if t.count]
        below, above = (0.0, 0.0), None
        for t, s in points:
            if t <= tokens:
                below = (t, max(s, below[1]))
            elif above is None:
                above = (t, max(s, below[1]))
        if above is None:  # beyond all that was measured: at worst in proportion
            return below[1] * max(1.0, tokens / below[0]) if below[0] else 0.0
        if not below[0]:
            return above[1]
        share = (tokens - below[0]) / (above[0] - below[0])
        return below[1] + share * (above[1] - below[1])


@dataclass(slots=True)
class _Memory:
    """What is known at one batch size (rounded up to a power of two)."""

    drafts: dict[int, Average] = field(default_factory=dict)
    passes: CostCurve = field(default_factory=lambda: CostCurve())
    """A token of another request costs more than a node, so passes are told apart by batch size."""
    gain: Average | None = None
    """Of the whole pool, as if always asked."""
    parts: dict[frozenset[int], Average] = field(default_factory=dict)
    """What each part brought in steps of the whole pool: only their ratios count."""
    nodes: dict[frozenset[int], Average] = field(default_factory=dict)
    """Nodes verified per request."""
    speculating: bool = True
    steps: int = 0
    next_look: int = _FIRST_INTERVAL
    interval: int = _FIRST_INTERVAL


class Planner:
    """Chooses, and learns from what came of it."""

    def __init__(self, speculators: int, most_nodes: int, step_nodes: int, adaptive: bool = True) -> None:
        self._everybody = frozenset(range(speculators))
        self._most_nodes, self._step_nodes, self._adaptive = most_nodes, step_nodes, adaptive
        self._subsets = [
            frozenset(s) for k in range(1, speculators + 1) for s in combinations(range(speculators), k)
        ]
        self._overhead = {False: Average(), True: Average()}  # without and with speculation
        self._memories: dict[int, _Memory] = {}
        self._outcomes = 0
        self._appeal: dict[str, float] = {}
        """Per running request, its gain over the usual one."""

    def choose(self, batch: int, wanting: Sequence[str]) -> Choice:
        """What the next step should do for a batch of this size, of which these requests want trees."""
        fresh = any(name not in self._appeal for name in wanting)
        self._appeal = {name: self._appeal.get(name, 1.0) for name in wanting}
        full = Choice(self._everybody, self._nodes_for(batch))
        if not self._everybody or not wanting:
            return Choice(frozenset(), 0)
        if not self._adaptive:
            return full
        memory = self._memory(batch)
        memory.steps += 1
        if memory.steps <= _PLAIN_LOOKS:
            return Choice(frozenset(), 0)
        if self._outcomes < _FIRST_OUTCOMES:
            memory.next_look = memory.steps + memory.interval
            return full
        if fresh:
            memory.interval = _FIRST_INTERVAL
        best = self._best(batch)
        if memory.steps == _PLAIN_LOOKS + 1 and not best.speculators:  # other batch sizes say it is no use
            memory.next_look = memory.steps + _LAST_INTERVAL
        if memory.steps >= memory.next_look:
            pays = best.speculators == self._everybody
            memory.interval = _FIRST_INTERVAL if pays else min(2 * memory.interval, _LAST_INTERVAL)
            memory.next_look = memory.steps + memory.interval
            return full
        return best

    def observe(self, report: StepReport) -> None:
        """Learns from a step."""
        if not self._adaptive:
            return
        self._overhead[bool(report.choice.speculators)].add(report.overhead_s, clip=True)
        memory = self._memory(report.batch)
        memory.passes.add(report.tokens, report.verify_s)
        for speculator, seconds in report.draft_s.items():
            memory.drafts.setdefault(speculator, Average()).add(seconds, clip=True)
        asked = report.choice.speculators
        if not asked or not report.outcomes:
            return
        self._outcomes += len(report.outcomes)
        self._learn_gain(memory, report)

    def expected_speed(self, batch: int, choice: Choice) -> float:
        """Tokens per second expected of a choice; 0 before anything was measured."""
        who = choice.speculators
        gain = self._usual_gain(batch, who)
        nodes, _ = self._known(batch, lambda memory: memory.nodes.get(who))
        slowest = max((self._draft_seconds(batch, s) for s in who), default=0.0)
        overhead = self._overhead[bool(who)]
        seconds = overhead.value + slowest + self._pass_seconds(batch, batch * nodes)
        appeal = sum(self._appeal.values()) / batch if self._appeal else 1.0
        return batch * (1 + appeal * gain) / seconds if seconds else 0.0

    def worth(self, batch: int, choice: Choice) -> Callable[[int, float], bool]:
        """Whether one more node pays in this step, given those kept and its chance of acceptance.

        It does if it brings tokens at least as fast as the step does without it: its probability over
        what it adds to the pass, against the expected speed. So confident requests get many nodes and
        hopeless ones few, and the more a pass costs the choosier it gets.
        """
        if not self._adaptive:
            return lambda kept, _: kept < self._step_nodes
        plain = self.expected_speed(batch, Choice(frozenset(), 0))
        speed = max(plain, self.expected_speed(batch, choice))
        steps = range(0, self._step_nodes + _SLOPE + 1, _SLOPE)
        cost = [self._pass_seconds(batch, nodes) for nodes in steps]
        least = [speed * (after - before) / _SLOPE for before, after in pairwise(cost)]
        return lambda kept, chance: kept < self._step_nodes and chance >= least[kept // _SLOPE]

    def _pass_seconds(self, batch: int, nodes: float) -> float:
        """Time of a pass over a batch and so many tree nodes; what this size lacks is lent by the nearest."""
        own, size = self._memory(batch).passes, _size(batch)
        if own.reach >= batch + nodes / 2:
            return own.at(batch + nodes)
        others = sorted(self._memories, key=lambda other: abs(other - size))
        curves = [self._memories[other].passes for other in others]
        lent = next((c for c in curves if c.reach >= batch + nodes / 2 and c is not own), None)
        base = own.at(batch)
        if lent is None:
            return base * (1 + _NODE_GUESS * nodes)
        return (base or lent.at(batch)) + max(0.0, lent.at(batch + nodes) - lent.at(batch))

    def _usual_gain(self, batch: int, who: frozenset[int]) -> float:
        """Accepted nodes per request and step that these speculators bring, in a usual text."""
        gain, _ = self._known(batch, lambda memory: memory.gain)
        return gain * self._share(batch, who) if who else 0.0

    def _share(self, batch: int, who: frozenset[int]) -> float:
        """What a part of the pool brings of what the whole does."""
        part, _ = self._known(batch, lambda memory: memory.parts.get(who))
        whole, _ = self._known(batch, lambda memory: memory.parts.get(self._everybody))
        return part / whole if whole else 1.0

    def _learn_gain(self, memory: _Memory, report: StepReport) -> None:
        """What the pool gains, what its parts bring of it, and how each request differs from the usual.

        Texts differ more than a text changes.
        """
        asked, outcomes = report.choice.speculators, list(report.outcomes.values())
        usual = self._usual_gain(report.batch, asked) or _FIRST_GAIN
        for name, (_, accepted) in report.outcomes.items():
            ratio = min((len(accepted) + _TAME) / (usual + _TAME), _OUTLIER)
            before = self._appeal.get(name, 1.0)
            self._appeal[name] = before + _APPEAL_SMOOTHING * (ratio - before)
        for subset in self._subsets:
            if subset <= asked:
                gain, nodes = _gain(subset, outcomes)
                memory.nodes.setdefault(subset, Average(_PART_SMOOTHING)).add(nodes, weight=len(outcomes))
                if asked == self._everybody:
                    memory.parts.setdefault(subset, Average(_PART_SMOOTHING)).add(gain, weight=len(outcomes))
        if memory.gain is None:
            known, _ = self._known(report.batch, lambda other: other.gain)
            memory.gain = Average(_GAIN_SMOOTHING, known or _FIRST_GAIN)
        share = self._share(report.batch, asked)
        if share > 0:
            gain, _ = _gain(asked, outcomes)
            memory.gain.add(min(gain / share, _OUTLIER * _FIRST_GAIN), weight=len(outcomes))

    def _draft_seconds(self, batch: int, speculator: int) -> float:
        """Time of a speculator's drafts; a new batch size is judged by the nearest one known."""
        seconds, doublings = self._known(batch, lambda memory: memory.drafts.get(speculator))
        return seconds * float(2.0 ** (_DRAFT_GROWTH * doublings))

    def _known(self, batch: int, pick: Callable[[_Memory], Average | None]) -> tuple[float, int]:
        """A value at the nearest batch size that has one, and how many doublings away that is."""
        size = _size(batch)
        found = [(abs(other - size), other, pick(memory)) for other, memory in self._memories.items()]
        known = [(distance, other, value) for distance, other, value in found if value is not None]
        if not known:
            return 0.0, 0
        _, other, average = min(known, key=lambda item: item[:2])
        return average.value, size - other

    def _best(self, batch: int) -> Choice:
        nodes = self._nodes_for(batch)
        plain = Choice(frozenset(), 0)
        choices = [Choice(subset, nodes) for subset in self._subsets]
        best = max(choices, key=lambda choice: self.expected_speed(batch, choice))
        memory = self._memory(batch)
        least = _GO_ON if memory.speculating else _BEGIN
        memory.speculating = self.expected_speed(batch, best) > least * self.expected_speed(batch, plain)
        return best if memory.speculating else plain

    def _nodes_for(self, batch: int) -> int:
        return min(self._most_nodes, max(1, DRAFT_FACTOR * self._step_nodes // max(batch, 1)))

    def _memory(self, batch: int) -> _Memory:
        return self._memories.setdefault(_size(batch), _Memory())


def _gain(subset: frozenset[int], outcomes: Sequence[tuple[TokenTree, Sequence[int]]]) -> tuple[float, float]:
    """Per request: accepted nodes that this subset alone would have brought, and the nodes it had."""
    gained = had = 0
    for tree, accepted in outcomes:
        own = {child for p in tree.proposals if p.speculator in subset for child in p.children}
        had += len(own)
        for node in accepted:
            if node not in own:
                break
            gained += 1
    return gained / len(outcomes), had / len(outcomes)


def _size(batch: int) -> int:
    """Batch sizes are told apart by powers of two."""
    return (batch - 1).bit_length()
