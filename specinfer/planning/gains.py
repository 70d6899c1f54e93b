"""Count accepted tokens by tree size. Pure.

A verified tree shows the outcome of every smaller tree: of the nodes with the highest path probability, and of
those that some of its speculators proposed. So a tree of eight nodes is as informative about two nodes as a
tree of two, and counts have no noise of time. A request's text is more or less predictable than others: its own
accepted tokens, over those of an average request, are its ratio.
"""

from bisect import bisect_left, bisect_right
from collections.abc import KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from math import log2

import numpy as np

from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.costs import SIZES, Floats
from specinfer.planning.step_report import StepReport
from specinfer.tree import TokenTree

_FIRST = 0.5
"""Accepted tokens of one node, before any tree was verified."""
_PRIOR = 8.0
"""Weight, in trees, of what is expected before trees are counted."""
_OTHER_CLASSES = 24.0
"""Weight, in trees, of the mean over all batch classes."""
_HALF = 150.0
"""Steps after which the weight of a counted tree is halved."""
_KEPT = 8.0
"""Minimum weight, in trees, that old counts keep."""
_DOUBT = 0.1
"""Variance of what a size adds, in accepted tokens per tree, if no tree showed any."""
_REQUEST_PRIOR = 3.0
"""Weight of the assumption that a request is average, in accepted tokens."""
_REQUEST_FADE = 0.98
"""Weight of a request's tree one step later."""
_ANSWER = 128.0
"""Assumed tokens of an answer until the first request ends."""
_LATEST = 16
"""Number of latest requests over which lengths are averaged."""

_TREES, _ACCEPTED, _NODES = range(3)
"""Rows of counts: trees of a size, and their additions to the next smaller size."""
_STEPS = np.diff((0, *SIZES)).astype(float)


@dataclass(slots=True)
class _RequestGains:
    """Accepted tokens of one request, and of an average request."""

    prompt: int
    accepted_by: dict[SpeculatorSet, tuple[float, float]] = field(default_factory=dict)
    """Accepted tokens of a set, and those expected of an average request."""

    def ratio(self, speculators: SpeculatorSet) -> float:
        """Return a set's accepted tokens over the average request's."""
        accepted, expected = self.accepted_by.get(speculators, (0.0, 0.0))
        return (accepted + _REQUEST_PRIOR) / (expected + _REQUEST_PRIOR)

    def add(self, speculators: SpeculatorSet, accepted: int, expected: float) -> None:
        """Count a tree."""
        before = self.accepted_by.get(speculators, (0.0, 0.0))
        self.accepted_by[speculators] = before[0] + accepted, before[1] + expected

    def fade(self, steps: int) -> None:
        """Lose weight: texts change."""
        part = _REQUEST_FADE**steps
        self.accepted_by = {
            one: (part * came, part * usual) for one, (came, usual) in self.accepted_by.items()
        }


class Counts:
    """Faded sums over trees, [counts, sizes]."""

    def __init__(self) -> None:
        self.sums: Floats = np.zeros((3, len(SIZES)))
        self.step = 0

    def add(self, more: Floats, step: int) -> None:
        """Add counts of a step; older ones lose weight."""
        part = 0.5 ** ((step - self.step) / _HALF)
        self.step = step
        trees = np.maximum(self.sums[_TREES], 1e-9)
        self.sums = self.sums * np.maximum(part, np.minimum(1.0, _KEPT / trees)) + more


class TreeGains:
    """Expected accepted tokens and nodes, by speculators and size."""

    steady = True
    """False if expectations differ from step to step, so that each step needs a comparison."""

    def __init__(self) -> None:
        self.counts: dict[tuple[SpeculatorSet, int | None], Counts] = {}
        self.sets: list[SpeculatorSet] = []
        """Sets of speculators to consider: all, each alone, all without one."""
        self._requests: dict[str, _RequestGains] = {}
        self._contexts: Mapping[str, int] = {}
        self._read: dict[int, Mapping[str, int]] = {}
        """Context tokens by request id when each speculator last drafted."""
        self._answer = _ANSWER
        self.step = 0
        """Number of counted steps."""
        self._averages: dict[tuple[SpeculatorSet, int, int], float] = {}
        """Accepted tokens of an average request, by arguments of `_added`."""

    @property
    def requests(self) -> KeysView[str]:
        """Ids of the followed requests."""
        return self._requests.keys()

    def enrol(self, speculators: SpeculatorSet) -> None:
        """Set the speculators."""
        singles = [frozenset({one}) for one in sorted(speculators)]
        self.sets = list(dict.fromkeys([speculators, *singles, *[speculators - one for one in singles]]))
        self.sets = [one for one in self.sets if one]

    def follow(self, contexts: Mapping[str, int]) -> None:
        """Set the context tokens of the requests that want drafts."""
        requests = self._requests
        if requests.keys() != contexts.keys():
            for name in requests.keys() - contexts.keys():
                length = self._contexts[name] - requests[name].prompt
                self._answer += (max(length, 1) - self._answer) / _LATEST
            self._requests = {name: requests.get(name) or _RequestGains(n) for name, n in contexts.items()}
        self._contexts = contexts

    def note_drafts(self, speculators: SpeculatorSet) -> None:
        """Record that some speculators draft now, and so read all contexts."""
        self._read |= dict.fromkeys(speculators, self._contexts)

    def unread(self) -> dict[int, int]:
        """Return the context tokens that each speculator has not read."""
        return {one: self._unread(self._read.get(one, {})) for one in frozenset[int]().union(*self.sets)}

    def _unread(self, read: Mapping[str, int]) -> int:
        return sum([max(tokens - read.get(name, 0), 0) for name, tokens in self._contexts.items()])

    @property
    def left(self) -> float:
        """Number of tokens that the requests may still generate."""
        return sum(
            [
                max(self._answer - (tokens - self._requests[name].prompt), self._answer / 4)
                for name, tokens in self._contexts.items()
            ]
        )

    def ratio(self, name: str, speculators: SpeculatorSet) -> float:
        """Return a request's accepted tokens over those of an average request."""
        request = self._requests.get(name)
        return 1.0 if request is None else request.ratio(speculators)

    def expected(
        self, speculators: SpeculatorSet, batch_class: int, sizes: int
    ) -> tuple[Floats, Floats, Floats]:
        """Return accepted tokens, their variance and nodes for the first `sizes` sizes.

        Tokens are those of the followed requests together, nodes those of one tree.
        """
        added, weight = self._added(speculators, batch_class, sizes)
        ratios = sum([request.ratio(speculators) for request in self._requests.values()])
        variance = ratios**2 * (added[0] + _DOUBT) / (weight + _PRIOR / 2)
        tokens, nodes = np.cumsum(added, axis=1)
        return ratios * tokens, np.cumsum(variance), nodes

    def _added(self, speculators: SpeculatorSet, batch_class: int, sizes: int) -> tuple[Floats, Floats]:
        """Return the additions of each size, [tokens, nodes], and the weight of its trees."""
        usual = _STEPS[:sizes]
        sums, certain = self._sums(speculators)
        everywhere = sums[:, :sizes]
        here = self.counts.get((speculators, batch_class), _NONE).sums[:, :sizes]
        form = (everywhere[_NODES] + _PRIOR * usual) / (everywhere[_TREES] + _PRIOR)
        form = (here[_NODES] + _OTHER_CLASSES * form) / (here[_TREES] + _OTHER_CLASSES)
        tokens, total = np.empty(sizes), 0.0
        for at in range(sizes):
            before = log2(1 + SIZES[at - 1]) if at else 0.0
            guess = total * (log2(1 + SIZES[at]) / before - 1) if at else _FIRST
            mean = (everywhere[_ACCEPTED, at] + _PRIOR * guess) / (everywhere[_TREES, at] + _PRIOR)
            tokens[at] = (here[_ACCEPTED, at] + _OTHER_CLASSES * mean) / (here[_TREES, at] + _OTHER_CLASSES)
            total += tokens[at]
        return np.stack([tokens, form]), certain * everywhere[_TREES]

    def _sums(self, speculators: SpeculatorSet) -> tuple[Floats, float]:
        """Return the counts of a set, and the part of them that is certain.

        Of a set that never drafted, they are those of the best part of it.
        """
        if counts := self.counts.get((speculators, None)):
            return counts.sums, 0.5 ** ((self.step - counts.step) / _HALF)
        parts = [
            counts.sums for (one, size), counts in self.counts.items() if size is None and one < speculators
        ]
        best = max(parts, key=lambda sums: float(sums[_ACCEPTED].sum()), default=_NONE.sums)
        return best, _KEPT / max(float(best[_TREES].max()), _KEPT)

    def observe(self, reports: Sequence[StepReport]) -> None:
        """Count the trees of some steps."""
        self.step += len(reports)
        sums: dict[tuple[SpeculatorSet, int | None], list[list[float]]] = {}
        for report in reports:
            drafted, size = report.choice.speculators, batch_size_class(report.batch)
            sizes = bisect_right(SIZES, report.choice.nodes)
            if not drafted or not sizes:
                continue
            parts = {one: sums.setdefault((one, size), _zeros()) for one in self.sets if report.shows(one)}
            averages = {one: self.average(one, size, sizes) for one in parts}
            for name, (tree, path) in (*report.outcomes.items(), *report.chains.items()):
                request = self._requests.get(name) or _RequestGains(0)
                accepted = [node for node in path if node not in tree.forced] if tree.forced else path
                for one, came in count_tree(tree, accepted, parts, drafted, sizes).items():
                    request.add(one, came, averages[one])
        for request in self._requests.values():
            request.fade(len(reports))
        self._averages = {}
        for (one, of_batch), more in sums.items():
            for which in (of_batch, None):
                self.counts.setdefault((one, which), Counts()).add(np.array(more), self.step)

    def average(self, speculators: SpeculatorSet, batch_class: int, sizes: int) -> float:
        """Return the accepted tokens of an average request."""
        row = speculators, batch_class, sizes
        if row not in self._averages:
            self._averages[row] = float(self._added(*row)[0][0].sum())
        return self._averages[row]

    @property
    def largest(self) -> int:
        """Nodes of the largest trees counted."""
        sizes = [int(np.count_nonzero(counts.sums[_TREES])) for counts in self.counts.values()]
        return (0, *SIZES)[max(sizes, default=0)]


_NONE = Counts()


def _zeros() -> list[list[float]]:
    return [[0.0] * len(SIZES) for _ in range(3)]


def count_tree(
    tree: TokenTree,
    accepted: Sequence[int],
    counts: Mapping[SpeculatorSet, list[list[float]]],
    drafted: SpeculatorSet,
    sizes: int,
) -> dict[SpeculatorSet, int]:
    """Add a tree to the counts of each set; return the accepted tokens that it drafted.

    Args:
        tree: verified tree.
        accepted: its accepted nodes.
        counts: [counts, sizes] by set.
        drafted: set that drafted the tree.
        sizes: number of sizes up to the planned nodes.
    """
    accepted_by = dict[SpeculatorSet, int]()
    whole = ranked_nodes(tree)
    for one, (trees, tokens, nodes) in counts.items():
        ranked = whole if one == drafted else ranked_nodes(tree, one)
        needed = nodes_needed(accepted, ranked)
        accepted_by[one] = len(needed)
        before = came = 0
        for at in range(sizes):
            kept, got = min(SIZES[at], len(ranked)), bisect_left(needed, SIZES[at])
            trees[at] += 1.0
            tokens[at] += got - came
            nodes[at] += kept - before
            before, came = kept, got
    return accepted_by


def ranked_nodes(tree: TokenTree, speculators: SpeculatorSet | None = None) -> list[int]:
    """Return nodes by falling path probability, without forced ones and the root.

    With `speculators`, only nodes whose whole path they proposed.
    """
    parents, scores = tree.parents.tolist(), tree.scores.tolist()
    chances, kept = [1.0] * len(parents), range(1, len(parents))
    for node in kept:
        chances[node] = scores[node] * chances[parents[node]]
    nodes = [node for node in kept if node not in forced] if (forced := tree.forced) else list(kept)
    if speculators is not None:
        own = {child for p in tree.proposals if p.speculator in speculators for child in p.children} | {0}
        for node in kept:
            if parents[node] not in own:
                own.discard(node)
        nodes = [node for node in nodes if node in own]
    return sorted(nodes, key=lambda node: -chances[node])


def nodes_needed(accepted: Sequence[int], ranked: Sequence[int]) -> list[int]:
    """Return how many other nodes of a ranking come before 1, 2, ... accepted ones.

    The list ends at the first accepted node that is not in the ranking.
    """
    places = {node: place for place, node in enumerate(ranked)}
    needed = list[int]()
    for node in accepted:
        if node not in places:
            break
        needed.append(max(places[node], needed[-1] if needed else 0))
    return needed
