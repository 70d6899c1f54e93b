"""Count what trees bring, by size. Pure.

A verified tree shows the outcome of every smaller tree: of the nodes with the highest path probability, and of
those that some of its speculators proposed. So a tree of eight nodes says as much about two nodes as a tree of
two, and counting has no noise of time. A request's text is more or less predictable than others: its own
accepted tokens, over those of an average request, are its ratio.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log2, sqrt

import numpy as np
from numpy.typing import NDArray

from specinfer.planning.choice import SpeculatorSet, batch_size_class
from specinfer.planning.step_report import StepReport
from specinfer.tree import TokenTree

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 127)
"""Numbers of nodes per request that the planner considers."""
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
_REQUEST_PRIOR = 3.0
"""Weight of the assumption that a request is average, in accepted tokens."""
_REQUEST_HALF = 40.0
"""Trees after which the weight of a request's tree is halved."""
_ANSWER = 128.0
"""Assumed tokens of an answer until the first request ends."""
_LATEST = 16
"""Number of latest requests over which lengths are averaged."""

Floats = NDArray[np.float64]
_TREES, _ACCEPTED, _NODES, _LEVELS, _WEIGHT = range(5)
"""Rows of counts: what a size adds to the next smaller one, and the trees that say so.

`_WEIGHT` counts each tree by its request's ratio.
"""
_STEPS = np.diff((0, *SIZES)).astype(float)
_USUAL_LEVELS = np.diff([0.0, *[1 + log2(size) for size in SIZES]])


@dataclass(slots=True)
class _Request:
    """Accepted tokens of one request, and those expected of an average request."""

    prompt: int
    accepted: float = 0.0
    expected: float = 0.0

    @property
    def ratio(self) -> float:
        return (self.accepted + _REQUEST_PRIOR) / (self.expected + _REQUEST_PRIOR)


class Counts:
    """Faded sums over trees, [counts, sizes]."""

    def __init__(self) -> None:
        self.sums: Floats = np.zeros((5, len(SIZES)))
        self.step = 0

    def add(self, more: Floats, step: int) -> None:
        """Add counts of a step; older ones lose weight."""
        part = 0.5 ** ((step - self.step) / _HALF)
        self.step = step
        trees = np.maximum(self.sums[_TREES], 1e-9)
        self.sums = self.sums * np.maximum(part, np.minimum(1.0, _KEPT / trees)) + more


class Gains:
    """Expected accepted tokens, nodes and levels, by speculators and size."""

    def __init__(self) -> None:
        self._counts: dict[tuple[SpeculatorSet, int | None], Counts] = {}
        self.sets: list[SpeculatorSet] = []
        """Sets of speculators to consider: all, each alone, all without one."""
        self._requests: dict[str, _Request] = {}
        self._contexts: Mapping[str, int] = {}
        self._read: Mapping[str, int] = {}
        """Context tokens by request id when speculators last drafted."""
        self._answer = _ANSWER
        self._step = 0

    def __len__(self) -> int:
        return len(self._requests)

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
            self._requests = {name: requests.get(name) or _Request(n) for name, n in contexts.items()}
        self._contexts = contexts

    def note_drafts(self) -> None:
        """Record that speculators draft now, and so read all contexts."""
        self._read = self._contexts

    @property
    def unread(self) -> int:
        """Context tokens that speculators have not read."""
        return sum([tokens - self._read.get(name, 0) for name, tokens in self._contexts.items()])

    @property
    def unread_per_token(self) -> float:
        """Unread tokens for each token that the requests may still generate."""
        left = [
            max(self._answer - (tokens - self._requests[name].prompt), self._answer / 4)
            for name, tokens in self._contexts.items()
        ]
        return self.unread / sum(left) if left else 0.0

    @property
    def ratios(self) -> float:
        """Sum of the requests' ratios."""
        return sum([request.ratio for request in self._requests.values()])

    def expected(
        self, speculators: SpeculatorSet, batch_class: int, sizes: int
    ) -> tuple[Floats, Floats, Floats, Floats]:
        """Return accepted tokens, their variance, nodes and levels for the first `sizes` sizes.

        Tokens are those of the followed requests together, nodes and levels those of one tree.
        """
        added, weight = self._added(speculators, batch_class, sizes)
        ratios = self.ratios
        variance = ratios**2 * (added[0] + 0.05) / (weight + _PRIOR / 2)
        tokens, nodes, levels = np.cumsum(added, axis=1)
        return ratios * tokens, np.cumsum(variance), nodes, levels

    def _added(self, speculators: SpeculatorSet, batch_class: int, sizes: int) -> tuple[Floats, Floats]:
        """Return what each size adds, [tokens, nodes, levels], and the trees that say so."""
        usual = np.stack([_STEPS, _USUAL_LEVELS])[:, :sizes]
        everywhere = self._counts.get((speculators, None), _NONE).sums[:, :sizes]
        here = self._counts.get((speculators, batch_class), _NONE).sums[:, :sizes]
        form = (everywhere[_NODES : _LEVELS + 1] + _PRIOR * usual) / (everywhere[_TREES] + _PRIOR)
        form = (here[_NODES : _LEVELS + 1] + _OTHER_CLASSES * form) / (here[_TREES] + _OTHER_CLASSES)
        tokens, total = np.empty(sizes), 0.0
        for at in range(sizes):
            before = log2(1 + SIZES[at - 1]) if at else 0.0
            guess = total * (log2(1 + SIZES[at]) / before - 1) if at else _FIRST
            mean = (everywhere[_ACCEPTED, at] + _PRIOR * guess) / (everywhere[_WEIGHT, at] + _PRIOR)
            tokens[at] = (here[_ACCEPTED, at] + _OTHER_CLASSES * mean) / (here[_WEIGHT, at] + _OTHER_CLASSES)
            total += tokens[at]
        return np.stack([tokens, *form]), everywhere[_TREES]

    def observe(self, report: StepReport) -> None:
        """Count a step's trees."""
        self._step += 1
        drafted, size = report.choice.speculators, batch_size_class(report.batch)
        sizes = bisect_right(SIZES, report.choice.nodes)
        if not drafted or not sizes:
            return
        more = {one: np.zeros((5, len(SIZES))) for one in self.sets if one <= drafted}
        average = float(self._added(drafted, size, sizes)[0][0].sum())
        fade = 0.5 ** (1 / _REQUEST_HALF)
        for name, (tree, path) in (*report.outcomes.items(), *report.chains.items()):
            accepted = [node for node in path if node not in tree.forced] if tree.forced else path
            request = self._requests.get(name)
            ratio = request.ratio if request is not None else 1.0
            for one, counts in more.items():
                counts[:, :sizes] += _added_by(tree, accepted, None if one == drafted else one, sizes, ratio)
            if request is not None:
                request.accepted = fade * request.accepted + len(accepted)
                request.expected = fade * request.expected + average
        for one, counts in more.items():
            for which in (size, None):
                self._counts.setdefault((one, which), Counts()).add(counts, self._step)

    def largest(self, speculators: SpeculatorSet) -> int:
        """Return the nodes of the largest trees counted."""
        counts = self._counts.get((speculators, None))
        return SIZES[int(np.count_nonzero(counts.sums[_TREES])) - 1] if counts else 0


_NONE = Counts()


def _added_by(
    tree: TokenTree, accepted: Sequence[int], speculators: SpeculatorSet | None, sizes: int, ratio: float
) -> Floats:
    """Return the counts of one tree, [counts, sizes]; `speculators` None: of the whole tree."""
    if len(tree) == 1:
        counts = np.array([[1.0], [0.0], [0.0], [0.0], [ratio]]) * np.ones(sizes)
        counts[_LEVELS, 0] = 1.0
        return counts
    nodes = ranking(tree, speculators)
    rank = {node: place for place, node in enumerate(nodes, 1)}
    own = [rank[node] for node in accepted[: _shared(accepted, rank)]]
    needed = list(accumulate(own, max))
    parents, depth = tree.parents.tolist(), [0] * len(tree)
    for node in range(1, len(tree)):
        depth[node] = depth[parents[node]] + 1
    deepest = list(accumulate([depth[node] for node in nodes], max, initial=0))
    rows = [
        (bisect_right(needed, size), kept := min(size, len(nodes)), min(max(deepest[kept], 0.5) + 0.5, size))
        for size in SIZES[:sizes]
    ]
    counts = np.ones((5, sizes))
    counts[_ACCEPTED : _LEVELS + 1] = np.diff(np.array([(0, 0, 0), *rows], float), axis=0).T
    counts[_WEIGHT] = ratio
    return counts


def _shared(accepted: Sequence[int], rank: Mapping[int, int]) -> int:
    return next((place for place, node in enumerate(accepted) if node not in rank), len(accepted))


def ranking(tree: TokenTree, speculators: SpeculatorSet | None = None) -> list[int]:
    """Return nodes by falling path probability, without forced ones and the root.

    With `speculators`, only nodes whose whole path they proposed.
    """
    parents, scores = tree.parents.tolist(), tree.scores.tolist()
    proposed = set(range(len(parents)))
    if speculators is not None:
        proposed = {child for p in tree.proposals if p.speculator in speculators for child in p.children}
    chances, kept = [1.0] * len(parents), {0}
    for node in range(1, len(parents)):
        chances[node] = scores[node] * chances[parents[node]]
        if parents[node] in kept and node in proposed:
            kept.add(node)
    return sorted(kept - {0} - tree.forced, key=lambda node: (-chances[node], node))


def error_between(variance: float, other: float) -> float:
    """Return the standard error between two sizes of one set: smaller trees are common to both."""
    return sqrt(abs(variance - other))
