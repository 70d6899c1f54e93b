"""Decides per step which speculators are asked and how many nodes are verified. Pure: told, never asks.

The expected speed of a choice (speculators S, nodes n per request) at batch size b is

    b * (1 + gain(S, n)) / (overhead + slowest draft of S + pass(b * (1 + nodes really drafted)))

and every term is measured while serving: the time of a pass by its tokens, the time of each
speculator's drafts by batch size, and the gain. A step with all speculators and the full budget tells
the gain of every smaller choice: who proposed an accepted node is known, and cutting is nested, so it is
known whether the node would have survived a smaller budget. Such steps are repeated now and then, less
and less often while they do not pay. The empty choice is plain decoding: hopeless text or a large batch
ends there, at the cost of the rare look.

What is chosen depends only on committed tokens and on time, so it never biases the output.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise

from specinfer.tree import TokenTree

_SMOOTHING = 0.08
_GAIN_SMOOTHING = 0.03
"""Gains are noisy (0 to 8 a step) and decide by tenths, so they are averaged over more steps than times."""
_OUTLIER = 3.0
_PLAIN_LOOKS = 2
_FULL_LOOKS = 5
_ENOUGH, _FAR = 12, 0.85
"""The first looks end early after so many outcomes if speculation reaches only this share of plain speed."""
_FIRST_INTERVAL, _LAST_INTERVAL = 32, 192
_SLOPE = 4
"""Nodes over which the cost of one more is averaged: a pass grows in steps."""
DRAFT_FACTOR = 2
"""Nodes drafted per node that may be verified: the cut over the batch chooses among them."""
_MARGIN = 1.05
"""Speculation must promise this much more than plain decoding: estimates err, and plain ones least."""
_BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024)


@dataclass(frozen=True, slots=True)
class Choice:
    """What one step does."""

    speculators: frozenset[int]
    nodes: int
    """Most nodes per request; 0 with no speculators is plain decoding."""


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
    outcomes: Sequence[tuple[TokenTree, Sequence[int]]]
    """Per request that wanted a tree: its tree and the accepted nodes."""


class Average:
    """Exponential moving average that one outlier cannot throw off."""

    __slots__ = ("_smoothing", "count", "value")

    def __init__(self, smoothing: float = _SMOOTHING) -> None:
        self.value, self.count, self._smoothing = 0.0, 0, smoothing

    def add(self, value: float, clip: bool = False) -> None:
        """Counts one observation; `clip` limits it to a multiple of what is expected."""
        if clip and self.count:
            value = min(value, _OUTLIER * self.value)
        self.count += 1
        self.value += (value - self.value) * max(self._smoothing, 1 / self.count)


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
    steps: int = 0
    next_look: int = 0
    interval: int = _FIRST_INTERVAL


class Planner:
    """Chooses, and learns from what came of it."""

    def __init__(self, speculators: int, most_nodes: int, step_nodes: int, adaptive: bool = True) -> None:
        self._everybody = frozenset(range(speculators))
        self._most_nodes, self._step_nodes, self._adaptive = most_nodes, step_nodes, adaptive
        sizes = [n for n in (2, 4, 6, 8, 12, 16, 24, 32, 48, 64) if n < most_nodes]
        self._sizes = [*sizes, most_nodes]
        self._subsets = [
            frozenset(s) for k in range(1, speculators + 1) for s in combinations(range(speculators), k)
        ]
        self._pass, self._overhead = CostCurve(), Average()
        self._gain: dict[tuple[frozenset[int], int], Average] = {}
        self._drafted: dict[tuple[frozenset[int], int], Average] = {}
        self._memories: dict[int, _Memory] = {}

    def choose(self, batch: int, wanting: int) -> Choice:
        """What the next step should do for a batch of this size, `wanting` of which want trees."""
        full = Choice(self._everybody, self._nodes_for(batch, self._most_nodes))
        if not self._everybody or wanting == 0:
            return Choice(frozenset(), 0)
        if not self._adaptive:
            return full
        memory = self._memory(batch)
        memory.steps += 1
        if memory.steps <= _PLAIN_LOOKS:
            return Choice(frozenset(), 0)
        looks = memory.steps - _PLAIN_LOOKS
        if looks <= _FULL_LOOKS and not (looks * batch > _ENOUGH and self._hopeless(batch, full)):
            memory.next_look = memory.steps + memory.interval
            return full
        best = self._best(batch)
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
        self._pass.add(report.tokens, report.verify_s)
        self._overhead.add(report.overhead_s, clip=True)
        drafts = self._memory(report.batch).drafts
        for speculator, seconds in report.draft_s.items():
            drafts.setdefault(speculator, Average()).add(seconds, clip=True)
        asked = report.choice.speculators
        if not asked or not report.outcomes:
            return
        ranks = [_ranks(tree) for tree, _ in report.outcomes]
        for subset in self._subsets:
            if subset <= asked:
                self._learn_gain(subset, report, ranks)

    def expected_speed(self, batch: int, choice: Choice) -> float:
        """Tokens per second expected of a choice; 0 before anything was measured."""
        key = (choice.speculators, choice.nodes)
        gain = self._gain[key].value if key in self._gain else 0.0
        nodes = self._drafted[key].value if key in self._drafted else float(choice.nodes)
        drafts = self._memory(batch).drafts
        slowest = max((drafts[s].value for s in choice.speculators if s in drafts), default=0.0)
        seconds = self._overhead.value + slowest + self._pass.at(batch * (1 + nodes))
        return batch * (1 + gain) / seconds if seconds else 0.0

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
        cost = [self._pass.at(batch + n) for n in range(0, self._step_nodes + _SLOPE + 1, _SLOPE)]
        least = [speed * (after - before) / _SLOPE for before, after in pairwise(cost)]
        return lambda kept, chance: kept < self._step_nodes and chance >= least[kept // _SLOPE]

    def _best(self, batch: int) -> Choice:
        choices = [Choice(frozenset(), 0)]
        for subset in self._subsets:
            choices += [Choice(subset, n) for n in self._sizes if n <= self._nodes_for(batch, n)]
        best = max(choices, key=lambda choice: self.expected_speed(batch, choice))
        worth = self.expected_speed(batch, best) > _MARGIN * self.expected_speed(batch, choices[0])
        return best if worth else choices[0]

    def _hopeless(self, batch: int, full: Choice) -> bool:
        """Whether the first looks have shown already that speculation is far from paying."""
        plain = self.expected_speed(batch, Choice(frozenset(), 0))
        return self._best(batch).nodes == 0 and self.expected_speed(batch, full) < _FAR * plain

    def _nodes_for(self, batch: int, nodes: int) -> int:
        return min(nodes, max(1, DRAFT_FACTOR * self._step_nodes // max(batch, 1)))

    def _memory(self, batch: int) -> _Memory:
        return self._memories.setdefault((batch - 1).bit_length(), _Memory())

    def _learn_gain(self, subset: frozenset[int], report: StepReport, ranks: Sequence[Sequence[int]]) -> None:
        """What this subset alone would have gained in this step, for every budget it covers."""
        paths, counts = [], []
        for (tree, accepted), rank in zip(report.outcomes, ranks, strict=True):
            own = {child for p in tree.proposals if p.speculator in subset for child in p.children}
            # positions among the subset's own nodes, in the order in which a cut would keep them
            place = {node: i for i, node in enumerate(sorted(own, key=lambda node: rank[node]), 1)}
            path = []
            for node in accepted:
                if node not in own:
                    break
                path.append(place[node])
            paths.append(path)
            counts.append(len(own))
        for nodes in self._sizes:
            if nodes > report.choice.nodes:
                break
            kept = [sum(1 for place in path if place <= nodes) for path in paths]
            drafted = [min(count, nodes) for count in counts]
            key = (subset, nodes)
            self._gain.setdefault(key, Average(_GAIN_SMOOTHING)).add(sum(kept) / len(kept))
            self._drafted.setdefault(key, Average(_GAIN_SMOOTHING)).add(sum(drafted) / len(drafted))


def _ranks(tree: TokenTree) -> list[int]:
    """Place of every node in the order in which a cut to a budget would keep them, about."""
    scores, parents = tree.scores.tolist(), tree.parents.tolist()
    reach = [1.0] * len(scores)
    for node in range(1, len(scores)):
        reach[node] = reach[parents[node]] * min(scores[node], 0.999)
    ranks = [0] * len(scores)
    for place, node in enumerate(sorted(range(len(scores)), key=lambda node: -reach[node])):
        ranks[node] = place
    return ranks
