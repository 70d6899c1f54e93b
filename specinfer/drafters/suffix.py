"""Suffix decoding (arXiv 2411.04975): repeat the longest earlier occurrences.

The context's end is searched in the request itself, in its references and in finished requests.

    context  ... press the red button twice . ... press the red lever , then ... . To start it, press the red
    tree     red-+-button-twice-.
                 +-lever-,-then

An occurrence has a weight that grows with the length of its match. A child's score is its share of its siblings'
weights, times a trust factor for the length of the longest match. The match gets longer along a branch, so trust
grows: long repeats become deep branches. The index is updated incrementally.

Finished requests are indexed only with `suffix_learn`: one user's text may become another user's *draft*; outputs
never change, but timing can reveal the text. Every proposal is a point (not drawn).
"""

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from specinfer.drafters import DrafterDescription, DrafterOptions, DraftJob
from specinfer.drafters.search import END, Match, Occurrences, by_next_token, weight_of
from specinfer.errors import SpecInferError
from specinfer.tree import TokenTree, TreeLimits
from specinfer.tree.builder import point_tree

_SHORTEST = 1
_TRUST = (0.0, 0.2, 0.35, 0.5, 0.6, 0.68, 0.74, 0.78, 0.82)
"""Trust factor by length of the match; `_MAX_TRUST` for longer matches."""
_MAX_TRUST = 0.92
_MAX_LEARNT = 1 << 18
"""Maximum tokens of finished requests."""


class FinishedTexts:
    """Indexed texts of finished requests; the oldest are dropped."""

    def __init__(self, max_tokens: int = _MAX_LEARNT) -> None:
        self._max_tokens, self._tokens = max_tokens, 0
        self._texts: deque[Sequence[int]] = deque()
        self.occurrences = Occurrences(_SHORTEST)

    def add(self, text: Sequence[int]) -> None:
        self._texts.append(text)
        self._tokens += len(text)
        self.occurrences.file(text)
        while self._tokens > self._max_tokens and len(self._texts) > 1:
            oldest = self._texts.popleft()
            self._tokens -= len(oldest)
            self.occurrences.drop(oldest)


@dataclass(slots=True)
class _RequestText:
    occurrences: Occurrences = field(default_factory=lambda: Occurrences(_SHORTEST))
    text: list[int] = field(default_factory=list)

    def extend(self, context: Sequence[int]) -> None:
        filed = len(self.text)
        self.text += context[filed:]
        self.occurrences.file(self.text, filed)


class SuffixDrafter:
    """Draft from a request's text, its references and finished requests."""

    def __init__(self, learn: bool = False) -> None:
        self._finished = FinishedTexts() if learn else None
        self._requests: dict[str, _RequestText] = {}
        self.description = DrafterDescription(reads_references=True)

    @classmethod
    def from_options(cls, options: DrafterOptions) -> "SuffixDrafter":
        return cls(options.suffix_learn)

    @property
    def learns(self) -> bool:
        """True if finished requests are indexed."""
        return self._finished is not None

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        return [self._draft(job) for job in jobs]

    def release(self, request_id: str) -> None:
        """Drop a request; with `suffix_learn`, index the text for other requests."""
        request_text = self._requests.pop(request_id, None)
        if request_text is not None and self._finished is not None:
            self._finished.add(request_text.text)

    def _draft(self, job: DraftJob) -> TokenTree:
        request_text = self._requests.setdefault(job.request_id, _RequestText())
        request_text.extend(job.context)
        if job.limits.empty:
            return TokenTree.root_only(job.context[-1])
        matches = list(request_text.occurrences.matches(job.context))
        if job.references is not None:
            matches += job.references.matches(job.context, _SHORTEST)
        if self._finished is not None:
            matches += self._finished.occurrences.matches(job.context)
        return weighted_tree(job.context[-1], matches, job.limits)


@dataclass(slots=True)
class _Branch:
    """A candidate node, and the matches whose continuations contain its path."""

    parent: int
    depth: int
    token: int
    score: float
    matches: list[Match]
    weight: float


def weighted_tree(root: int, matches: Sequence[Match], limits: TreeLimits) -> TokenTree:
    """Return a tree of the most probable continuations, within the limits."""
    tokens, parents, scores = [root], [-1], [1.0]
    waiting: list[tuple[float, int, _Branch]] = []
    """Heap of candidates: (minus path probability, order of insertion, branch)."""
    number = count()

    def offer(parent: int, depth: int, among: Iterable[Match], above: float) -> None:
        for branch in _branches(parent, depth, among, limits.width):
            if above * branch.score >= limits.min_path_probability:
                heapq.heappush(waiting, (-above * branch.score, next(number), branch))

    if not limits.empty:
        offer(0, 1, matches, 1.0)
    while waiting and len(tokens) <= limits.nodes:
        negative, _, heaviest = heapq.heappop(waiting)
        node = len(tokens)
        tokens.append(heaviest.token)
        parents.append(heaviest.parent)
        scores.append(heaviest.score)
        if heaviest.depth < limits.depth:
            offer(node, heaviest.depth + 1, heaviest.matches, -negative)
    return point_tree(tokens, parents, scores, range(1, len(tokens)))


def _branches(parent: int, depth: int, matches: Iterable[Match], width: int | None) -> list[_Branch]:
    """Return a branch for each next token of the matches, the largest weight first."""
    groups = {token: group for token, group in by_next_token(matches, depth).items() if token != END}
    weights = {token: weight_of(group) for token, group in groups.items()}
    total, branches = sum(weights.values()), list[_Branch]()
    for token, group in groups.items():
        longest = max([match.length for match in group]) + depth - 1
        trust = _TRUST[longest] if longest < len(_TRUST) else _MAX_TRUST
        branches.append(_Branch(parent, depth, token, weights[token] / total * trust, group, weights[token]))
    return sorted(branches, key=lambda branch: -branch.weight)[:width]
