"""Match vLLM's batch rows, which have no request ids, with requests.

A context only grows, so a row belongs to a context that is its prefix. First a context of the row's length before this
step is looked up, then the longest prefix is searched. Rows with equal tokens may exchange contexts, which are equal.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from specinfer.request.sampling import GREEDY
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.tree import TokenTree, TreeLimits
from specinfer.tree.token_tree import Int32

_TAIL = 8
"""Number of last tokens in the lookup key of a context."""


@dataclass(slots=True, eq=False)
class Context:
    request_id: str
    tokens: Int32
    """[T] tokens in the request's latest step."""
    state: RequestState | None = None
    """State for calls of speculator services; None before the first step."""
    drafts: list[tuple[int, TokenTree]] = field(default_factory=list)
    """(speculator number, tree) of the latest step."""
    path: list[int] = field(default_factory=list)
    """Tokens proposed to vLLM in the latest step."""
    unseen: int = 0
    """Number of steps since the latest step with this request."""

    def grow(self, tokens: Int32) -> list[int]:
        """Extend the context to `tokens`; return the new tokens."""
        new: list[int] = tokens[len(self.tokens) :].tolist()
        if self.state is None:
            # vLLM reports neither sampling parameters, maximum length, nor caller: use greedy drafts, and
            # allow no learning
            request = GenerationRequest(self.request_id, tuple(new), 1, GREEDY, no_training=True)
            self.state = RequestState.new(request, 0.0, 0, drawn_for=False)
        else:
            self.state.tokens += new
        self.tokens = tokens
        return new

    def entry(self, nodes: int, depth: int) -> StepEntry:
        """Return a step's entry for one branch of at most `nodes` nodes."""
        assert self.state is not None, "`grow` comes before `entry`"
        limits = TreeLimits(nodes, depth, 1)
        last = len(self.state.tokens) - 1
        return StepEntry(self.state, last, (self.state.tokens[last],), True, limits, depth)

    def end(self) -> None:
        """End the request, so that late answers are ignored."""
        if self.state is not None:
            self.state.finish = FinishReason.CANCELLED


@dataclass(frozen=True, slots=True)
class BatchRow:
    tokens: Int32
    """[T] prompt and committed tokens."""
    new: int
    """Number of tokens added in this step."""


class ContextTable:
    """The requests of the latest steps.

    Args:
        patience: number of steps without a request after which the request counts as ended.
    """

    def __init__(self, patience: int) -> None:
        self._patience, self._ids = patience, count(1)
        self._contexts: list[Context] = []

    def __len__(self) -> int:
        return len(self._contexts)

    def match(self, rows: Sequence[BatchRow]) -> list[Context]:
        """Return each row's context, which still has the previous step's tokens."""
        matched = self._by_length(rows)
        matched_ids = set(map(id, matched))
        left = [context for context in self._contexts if id(context) not in matched_ids]
        for place, row in enumerate(rows):
            if matched[place] is None:
                fitting = [context for context in left if _begins_with(row.tokens, context.tokens)]
                if fitting:
                    longest = max(fitting, key=lambda context: len(context.tokens))
                    left.remove(longest)
                    matched[place] = longest
        return self._seen([context or self._new() for context in matched])

    def ended(self) -> list[str]:
        """Remove requests missing for `patience` steps; return their ids."""
        gone = [context for context in self._contexts if context.unseen > self._patience]
        for context in gone:
            context.end()
        self._contexts = [context for context in self._contexts if context.unseen <= self._patience]
        return [context.request_id for context in gone]

    def _by_length(self, rows: Iterable[BatchRow]) -> list[Context | None]:
        places: dict[tuple[int, bytes], list[Context]] = {}
        for context in self._contexts:
            places.setdefault(_key(context.tokens), []).append(context)
        return [_take(places.get(_key(row.tokens[: len(row.tokens) - row.new]), []), row) for row in rows]

    def _new(self) -> Context:
        return Context(str(next(self._ids)), np.zeros(0, np.int32))

    def _seen(self, contexts: list[Context]) -> list[Context]:
        for context in self._contexts:
            context.unseen += 1
        known = set(map(id, self._contexts))
        self._contexts += [context for context in contexts if id(context) not in known]
        for context in contexts:
            context.unseen = 0
        return contexts


def _key(tokens: Int32) -> tuple[int, bytes]:
    return len(tokens), tokens[-_TAIL:].tobytes()


def _take(candidates: list[Context], row: BatchRow) -> Context | None:
    """Remove and return the first candidate that begins the row."""
    for place, context in enumerate(candidates):
        if _begins_with(row.tokens, context.tokens):
            return candidates.pop(place)
    return None


def _begins_with(tokens: Int32, start: Int32) -> bool:
    length = len(start)
    return length <= len(tokens) and bool(np.array_equal(tokens[:length], start))
