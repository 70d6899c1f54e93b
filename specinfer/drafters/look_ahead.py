"""Drafts ahead of a verdict: for the most probable outcomes of pending trees, until the time is over.

First every context is read, then bonus tokens are guessed by trees of one level behind the nodes at which paths
probably end, then outcomes are drafted for in rounds. Each draft is the one that its context would get anyway.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from specinfer.drafters import DraftJob
from specinfer.drafters.entries import AheadDraft, Draft
from specinfer.drafters.outcomes import PendingTree, VerdictOutcome
from specinfer.errors import SpecInferError
from specinfer.tree import TokenTree, TreeLimits, most_depth

_GUESSES = TreeLimits(16, 1)
"""Bonus tokens that are guessed behind a node."""
_NO_TREE = TreeLimits(0, 0)
_FIRST, _MOST = 4, 32
"""Outcomes of one request in the first round, twice as many in each further one; most of them in all."""
_ROUND_JOBS = 32
"""Outcomes of all requests in a round: one batch of a drafter."""

Results: TypeAlias = "list[TokenTree | SpecInferError]"
Run: TypeAlias = Callable[[int, list[DraftJob], bool], Results]
"""Runs a drafter's jobs, by its number; True drafts ahead."""
Own: TypeAlias = Callable[[DraftJob, int], "DraftJob | SpecInferError | None"]
"""Makes a job one of a drafter's; None where the context is too long for it."""


@runtime_checkable
class AheadDrafter(Protocol):
    """A drafter whose drafts follow from context tokens alone, so that it can draft ahead of a verdict."""

    def draft_ahead(self, jobs: Sequence[DraftJob]) -> Results:
        """Return what `draft` would return for contexts that may come, and keep nothing of them.

        They begin with the context that was last drafted for, of which there may be several continuations.
        """


class PendingDraft(NamedTuple):
    """One request for which drafts are made ahead."""

    job: DraftJob
    """Job of the context before the verdict."""
    tree: PendingTree
    speculators: Sequence[int]


@dataclass(slots=True)
class _Ranked:
    asked: PendingDraft
    outcomes: list[VerdictOutcome] = field(default_factory=list)
    """Outcomes that are still to be drafted for, most probable first."""
    drafted: list[AheadDraft] = field(default_factory=list)

    def next_outcomes(self, count: int) -> list[VerdictOutcome]:
        """Take the outcomes of the next round."""
        most = min(count, _MOST - len(self.drafted))
        taken, self.outcomes = self.outcomes[:most], self.outcomes[most:]
        return taken


class LookAhead:
    """Drafts ahead with the drafters of an engine."""

    def __init__(self, run: Run, own: Own, clock: Callable[[], float] = time.perf_counter) -> None:
        self._run, self._own, self._clock = run, own, clock

    def draft(self, asked: Sequence[PendingDraft], seconds: float) -> list[tuple[AheadDraft, ...]]:
        """Return the drafts for each request's outcomes.

        The most probable outcomes are drafted for in any case, others while the next round fits into the time.
        """
        until = self._clock() + seconds
        self._read(asked)
        requests = [_Ranked(each) for each in asked]
        self._guess(requests)
        count, expected_s = _FIRST, 0.0
        while not expected_s or self._clock() + expected_s <= until:
            began = self._clock()
            if not self._round(requests, count):
                break
            count, expected_s = 2 * count, 2 * (self._clock() - began)
        return [tuple(request.drafted) for request in requests]

    def _read(self, asked: Sequence[PendingDraft]) -> None:
        """Let all drafters read the contexts, which comes before any fork of them."""
        self._each([(replace(a.job, limits=_NO_TREE), a.speculators) for a in asked], ahead=False)

    def _guess(self, requests: Sequence[_Ranked]) -> None:
        """Rank the outcomes of every request."""
        places = [(request, node) for request in requests for node in request.asked.tree.ends()]
        jobs = [
            (_behind(request.asked, request.asked.tree.path(node), _GUESSES), request.asked.speculators)
            for request, node in places
        ]
        guesses: dict[int, dict[int, list[TokenTree]]] = {}
        for (request, node), found in zip(places, self._each(jobs, ahead=True), strict=True):
            trees = [tree for _, tree in found or () if isinstance(tree, TokenTree)]
            guesses.setdefault(id(request), {})[node] = trees
        for request in requests:
            request.outcomes = request.asked.tree.outcomes(guesses.get(id(request), {}))

    def _round(self, requests: Sequence[_Ranked], count: int) -> bool:
        """Draft for the next outcomes of every request; return whether there were any."""
        chosen = [(request, outcome) for request in requests for outcome in request.next_outcomes(count)]
        for first in range(0, len(chosen), _ROUND_JOBS):
            part = chosen[first : first + _ROUND_JOBS]
            jobs = [
                (_behind(request.asked, outcome.tokens, request.asked.job.limits), request.asked.speculators)
                for request, outcome in part
            ]
            for (request, outcome), found in zip(part, self._each(jobs, ahead=True), strict=True):
                if found is not None:
                    request.drafted.append(AheadDraft(outcome.tokens, found))
        return bool(chosen)

    def _each(
        self, asked: Sequence[tuple[DraftJob, Sequence[int]]], ahead: bool
    ) -> list[tuple[Draft, ...] | None]:
        """Run every drafter's jobs at once; None for those that any of them fails at."""
        found: list[list[Draft] | None] = [[] for _ in asked]
        for speculator in sorted({s for _, speculators in asked for s in speculators}):
            own: dict[int, DraftJob] = {}
            for index, (job, speculators) in enumerate(asked):
                if speculator not in speculators or job.limits.depth < 0:
                    continue
                mine = self._own(job, speculator)
                if isinstance(mine, SpecInferError):
                    found[index] = None
                elif mine is not None:
                    own[index] = mine
            results = self._run(speculator, list(own.values()), ahead)
            for index, result in zip(own, results, strict=True):
                drafts = found[index]
                if isinstance(result, SpecInferError):
                    found[index] = None
                elif drafts is not None and len(result) > 1:
                    drafts.append((speculator, result))
        return [None if drafts is None else tuple(drafts) for drafts in found]


def _behind(asked: PendingDraft, tokens: Sequence[int], limits: TreeLimits) -> DraftJob:
    """Return the job of a context that may come; its tree is no deeper than there are positions."""
    context = [*asked.job.context, *tokens]
    depth = min(limits.depth, most_depth(0, len(context), asked.tree.max_positions))
    return replace(asked.job, context=context, limits=replace(limits, depth=depth))
