"""Correct, merge and cut drafts into trees to verify. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from specinfer.errors import ConstraintError, InvalidInputError
from specinfer.planning.calibration import Calibration
from specinfer.planning.feedback import Drafts
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import RequestState, Speculation
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.matcher import Matcher
from specinfer.tree import (
    TokenMatcher,
    TokenTree,
    cut_trees,
    merge_trees,
    with_forced,
    without_forbidden,
)
from specinfer.tree.cut import Keeps

T = TypeVar("T")
MATCHING_S = 0.01
"""Maximum seconds per step in which matchers filter the tokens of drafts."""
MATCHING_MIN_S = 0.001
"""Seconds per step below which a constraint is never called expensive."""


def give_matchers(states: Iterable[RequestState], compiler: Compiler | None) -> None:
    """Attach matchers of compiled constraints to requests that want drafts.

    If the matchers took over `MATCHING_S` in the previous step, the most expensive are removed, so that other
    requests do not wait for them. The drafts of the affected requests are then verified unfiltered.
    """
    if compiler is None:
        return
    constrained = [state for state in states if state.request.constraint is not None]
    _drop_most_expensive(constrained, compiler)
    for state in constrained:
        constraint = state.request.constraint
        assert constraint is not None
        if state.matcher is not None or state.request.speculation is Speculation.OFF:
            continue
        if not compiler.is_expensive(constraint):
            try:
                state.matcher = compiler.ready(constraint)
            except InvalidInputError:  # recorded by a newer gateway, which supports more kinds
                continue


def _drop_most_expensive(states: Sequence[RequestState], compiler: Compiler) -> None:
    """Remove the slowest matchers until `MATCHING_S` is met."""
    spent = [(state.matcher.seconds, state) for state in states if isinstance(state.matcher, Matcher)]
    total = sum([seconds for seconds, _ in spent])
    for seconds, state in sorted(spent, key=lambda pair: -pair[0]):
        if total > MATCHING_S and seconds > MATCHING_MIN_S and state.request.constraint is not None:
            compiler.note_expensive(state.request.constraint)
            state.matcher = None
        elif isinstance(state.matcher, Matcher):
            state.matcher.seconds = 0.0
        total -= seconds


def trees_to_verify(
    entries: Sequence[StepEntry],
    drafts: Drafts,
    calibration: Calibration,
    keeps: Keeps,
    given: Mapping[str, TokenTree] = MappingProxyType({}),
) -> dict[str, TokenTree]:
    """Return the tree to verify of each request.

    A tree is only a root if nothing was drafted; a request whose prompt is still being read has no tree.
    Sequence speculation uses the chain of the first speculator that drafted, cut like trees. Tokens that a
    request's constraint forbids are removed before the cut, and forced tokens are added after the cut.

    Args:
        given: merged and corrected trees of other speculators by request id; merged last.
    """
    final = [entry for entry in entries if entry.final]
    if not drafts and not given and not any(entry.state.request.constraint for entry in final):
        return {entry.request_id: TokenTree.root_only(entry.delta[-1]) for entry in final}
    trees: dict[str, TokenTree] = {}
    drafted: list[StepEntry] = []
    for entry in final:
        parts: list[tuple[int | None, TokenTree]] = [
            (index, calibration.correct(index, tree)) for index, tree in drafts.get(entry.request_id, ())
        ]
        if (client_tree := given.get(entry.request_id)) is not None:
            parts.append((None, client_tree))
        if entry.state.request.speculation is Speculation.SEQUENCE:
            parts = parts[:1]
        if parts:
            drafted.append(entry)
        tree = merge_trees(parts) if parts else TokenTree.root_only(entry.delta[-1])
        trees[entry.request_id] = _constrained(entry, tree, without_forbidden)
    limits = [entry.limits.nodes + 1 - _reserved(entry) for entry in drafted]
    whole = [trees[entry.request_id] for entry in drafted]
    cut = cut_trees(whole, limits, calibration.beliefs(), keeps)
    trees |= {entry.request_id: tree for entry, tree in zip(drafted, cut, strict=True)}
    for entry in final:
        if entry.state.request.constraint is not None:
            trees[entry.request_id] = _constrained(entry, trees[entry.request_id], _adding_forced(entry))
    return trees


def _constrained(
    entry: StepEntry, tree: TokenTree, change: Callable[[TokenTree, TokenMatcher], TokenTree]
) -> TokenTree:
    """Apply `change` to a tree if its request has a compiled constraint."""
    return _with_matcher(entry, lambda matcher: change(tree, matcher), tree)


def _reserved(entry: StepEntry) -> int:
    """Return the number of nodes reserved for forced tokens after the root.

    Forced tokens are likelier than drafts. The number depends on committed tokens alone, not on draws.
    """
    forced = _with_matcher(entry, lambda matcher: len(matcher.forced()), 0)
    return min(forced, entry.limits.nodes, entry.reach)


def _with_matcher(entry: StepEntry, ask: Callable[[TokenMatcher], T], otherwise: T) -> T:
    """Return `ask(matcher)` of a request, or `otherwise` if it has no matcher.

    `otherwise` is also returned if the matcher has not read all generated tokens. This is safe, as the
    verifier applies the constraint, too.
    """
    state = entry.state
    try:
        matcher = state.match()
        return otherwise if matcher is None or state.matched < state.new_tokens else ask(matcher)
    except ConstraintError:
        return otherwise


def _adding_forced(entry: StepEntry) -> Callable[[TokenTree, TokenMatcher], TokenTree]:
    chain = entry.state.request.speculation is Speculation.SEQUENCE
    whole = entry.limits.nodes + entry.forced

    def add(tree: TokenTree, matcher: TokenMatcher) -> TokenTree:
        return with_forced(tree, matcher, whole + 1 - len(tree), entry.reach, chain)

    return add
