"""Planner and verifier agree on the maximum depth of trees of any width."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.errors import InvalidInputError
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.entries import StepEntry, plan_entries
from specinfer.scheduling.limits import CacheRoom, NodeBudget, SchedulerLimits
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.text.constraints.constraint import Constraint
from specinfer.tree import FREE, TokenTree, TreeBuilder, depth_limit
from specinfer.verification.jobs import EngineLimits, VerifyJob, check_job

VOCABULARY = 97


def comb(root: int, depth: int, width: int) -> TokenTree:
    """Return a chain of this depth whose every node has `width` siblings."""
    builder, node = TreeBuilder(root), 0
    for level in range(depth):
        tokens = [(level + i) % VOCABULARY for i in range(width + 1)]
        node = builder.propose_points(node, tokens, [0.1] * len(tokens))[0]
    return builder.build()


@pytest.mark.parametrize(
    ("base", "delta", "limit", "depth"),
    [(0, 4, 6, 2), (3, 1, 6, 2), (0, 6, 6, 0), (0, 7, 6, 0), (5, 1, 8, 2)],
)
def test_a_tree_may_reach_the_last_position(base: int, delta: int, limit: int, depth: int) -> None:
    assert depth_limit(base, delta, limit) == depth


@given(
    base=st.integers(0, 30),
    delta=st.integers(1, 30),
    left=st.integers(0, 12),
    depth=st.integers(1, 13),
    width=st.integers(0, 6),
)
def test_the_verifier_accepts_a_tree_if_its_deepest_node_has_a_position(
    base: int, delta: int, left: int, depth: int, width: int
) -> None:
    limits = EngineLimits(max_context_len=base + delta + left)
    job = VerifyJob("r", base, [5] * delta, comb(5, depth, width), GREEDY)
    if depth <= left:
        check_job(job, 2048, VOCABULARY, limits)
    else:
        with pytest.raises(InvalidInputError, match=r"tree\.depth"):
            check_job(job, 2048, VOCABULARY, limits)


@given(
    prompt=st.integers(1, 40),
    new=st.integers(1, 40),
    spare=st.integers(-4, 20),
    generated=st.integers(0, 39),
    cached_len=st.integers(0, 80),
    speculation=st.sampled_from(Speculation),
    constrained=st.booleans(),
)
def test_the_verifier_accepts_all_planned_trees(
    prompt: int,
    new: int,
    spare: int,
    generated: int,
    cached_len: int,
    speculation: Speculation,
    constrained: bool,
) -> None:
    """Depths of drafts and of forced tokens are tested, also for requests longer than the context."""
    generated = min(generated, new - 1)
    request = GenerationRequest(
        "r",
        (5,) * prompt,
        new,
        GREEDY,
        speculation=speculation,
        constraint=Constraint.choice(["a"]) if constrained else None,
    )
    state = RequestState.new(request, 0.0, 0, False, [6] * generated)
    state.verifier_len = min(cached_len, len(state.tokens) - 1)
    context = max(prompt + new + spare, len(state.tokens))
    limits = SchedulerLimits(max_context_len=context)
    (entry,) = plan_entries([state], CacheRoom(limits, NodeBudget(16, 64)), None, FREE)
    assert entry.final
    for depth in reaches(entry):
        tree = comb(entry.delta[-1], depth, 3)
        job = VerifyJob("r", entry.base_len, entry.delta, tree, GREEDY)
        check_job(job, 2048, VOCABULARY, EngineLimits(max_context_len=context))
        assert depth < state.remaining, "one remaining token is for the bonus"


def reaches(entry: StepEntry) -> list[int]:
    """Return the depth of drafts and that of forced tokens, if the entry allows them."""
    drafted = [] if entry.limits.empty else [entry.limits.depth]
    return drafted + ([entry.reach] if entry.forced else [])
