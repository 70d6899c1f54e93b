"""Room for what a constraint forces: behind the root before drafts, elsewhere in what they leave."""

from types import MappingProxyType
from typing import Any

from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.planning.calibration import Calibration
from specinfer.planning.trees import trees_to_verify
from specinfer.sampling import Sampling
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits
from tests.support.constraints.allowed import Allowed, TableMatcher

ROOT = 1


def tree_of(allowed: Allowed, nodes: int, forced: int = 0, **fields: Any) -> TokenTree:
    """Return what is verified where four children of the root are drafted; paths begin behind the root."""
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


def test_what_is_forced_behind_the_root_takes_the_place_of_drafts() -> None:
    def six_seven(path: tuple[int, ...]) -> list[int]:
        return {(): [6], (6,): [7]}.get(path, [1, 2])

    assert tokens(tree_of(six_seven, nodes=2)) == [6, 7]
    assert tokens(tree_of(six_seven, nodes=1)) == [6]


def test_forbidden_drafts_cost_no_place() -> None:
    assert tokens(tree_of(lambda path: [4, 5, 6], nodes=2)) == [4, 5]


def test_what_is_forced_elsewhere_takes_what_is_left() -> None:
    def eight_behind_two(path: tuple[int, ...]) -> list[int]:
        return [8] if path == (2,) else [2, 3, 9]

    assert tokens(tree_of(eight_behind_two, nodes=2)) == [2, 3]
    assert tokens(tree_of(eight_behind_two, nodes=3)) == [2, 3, 8]
    assert tokens(tree_of(eight_behind_two, nodes=2, forced=1)) == [2, 3, 8]


def test_not_more_than_may_still_be_generated() -> None:
    one = tree_of(lambda path: [6], nodes=4, forced=4)
    assert len(one.forced) == 8  # of nine tokens, one is the bonus
