"""Budget of forced tokens: after the root they replace drafts, elsewhere they use the rest."""

from types import MappingProxyType
from typing import Any

from specinfer.planning.calibration import Calibration
from specinfer.planning.trees import trees_to_verify
from specinfer.request.sampling import Sampling
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits
from tests.support.constraints.allowed import Allowed, TableMatcher

ROOT = 1


def tree_of(allowed: Allowed, nodes: int, forced: int = 0, **fields: Any) -> TokenTree:
    """Return the tree to verify if four children of the root are drafted; paths start after the root."""
    constraint = Constraint(ConstraintKind.REGEX, "a")
    request = GenerationRequest(
        "r",
        (5, ROOT),
        9,
        Sampling(),
        constraint=constraint,
        **{"speculation": Speculation.TREE} | fields,
    )
    state = RequestState.new(request, 0.0, 0, False)
    state.matcher = TableMatcher(10, allowed)
    builder = TreeBuilder(ROOT)
    builder.propose_points(0, [2, 3, 4, 5], [0.4, 0.3, 0.2, 0.1])
    entry = StepEntry(state, 1, (ROOT,), True, TreeLimits(nodes, 4), state.remaining - 1, forced)
    drafts = MappingProxyType({"r": [(0, builder.build())]})
    (tree,) = trees_to_verify([entry], drafts, Calibration(), lambda kept, chance: True).values()
    return tree


def tokens(tree: TokenTree) -> list[int]:
    return sorted(tree.token_ids[1:].tolist())


def test_forced_tokens_after_the_root_replace_drafts() -> None:
    def six_seven(path: tuple[int, ...]) -> list[int]:
        return {(): [6], (6,): [7]}.get(path, [1, 2])

    assert tokens(tree_of(six_seven, nodes=2)) == [6, 7]
    assert tokens(tree_of(six_seven, nodes=1)) == [6]


def test_forbidden_drafts_use_no_budget() -> None:
    assert tokens(tree_of(lambda path: [4, 5, 6], nodes=2)) == [4, 5]


def test_forced_tokens_elsewhere_use_the_rest_of_the_budget() -> None:
    def eight_after_two(path: tuple[int, ...]) -> list[int]:
        return [8] if path == (2,) else [2, 3, 9]

    assert tokens(tree_of(eight_after_two, nodes=2)) == [2, 3]
    assert tokens(tree_of(eight_after_two, nodes=3)) == [2, 3, 8]
    assert tokens(tree_of(eight_after_two, nodes=2, forced=1)) == [2, 3, 8]


def test_forced_tokens_are_limited_by_the_remaining_tokens() -> None:
    one = tree_of(lambda path: [6], nodes=4, forced=4)
    assert len(one.forced) == 8  # of nine tokens, one is the bonus
