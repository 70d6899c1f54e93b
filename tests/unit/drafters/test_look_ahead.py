"""Drafts ahead of a verdict: those of every outcome are the drafts that its context gets without looking ahead."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from specinfer.drafters import Drafter, DrafterDescription
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.outcomes import PendingTree
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import SpecInferError
from specinfer.model.drafting.task import GrowthShape
from specinfer.outcomes import EntryStatus
from specinfer.sampling import Sampling
from specinfer.tree import ExpansionVector, ProposalKind, TokenTree, TreeLimits
from tests.support.oracle import chain
from tests.support.system import ScriptedDrafter
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.support.trees import trees

MODEL = tiny_transformers("llama", seed=3, hidden_size=64, intermediate_size=64, head_dim=16)
SHAPES = {
    "points": GrowthShape(beam=2, deepest=3),
    "expansion": GrowthShape(ExpansionVector((2, 1))),
    "with": GrowthShape(beam=2, kind=ProposalKind.WITH_REPLACEMENT),
    "without": GrowthShape(beam=2, kind=ProposalKind.WITHOUT_REPLACEMENT),
}
SAMPLINGS = [Sampling(temperature=0), Sampling(temperature=0.8, seed=7), Sampling(temperature=1.2, seed=3)]
LIMITS = [TreeLimits(6, 4), TreeLimits(3, 3, width=1), TreeLimits(9, 2, min_path_probability=0.02)]


def ssm(shape: GrowthShape, **options: Any) -> SsmDrafter:
    """An SSM in the kernels, whose rows do not depend on what else is in their batch."""
    return SsmDrafter(runner_of(MODEL, executor="native", **options), DrafterDescription("tiny", 97), shape)


@cache
def engine_of(kind: str, which: str) -> SpeculatorEngine:
    """One for drafts ahead, and one that never looks ahead."""
    return SpeculatorEngine([NgramDrafter(1), ssm(SHAPES[kind])])


def drafted(kind: str, context: Sequence[int], fields: dict[str, Any]) -> list[Any]:
    """The draft of a context as whoever does not look ahead makes it."""
    engine = engine_of(kind, "now")
    (outcome,) = engine.draft([entry("x", 0, context, **fields)])
    return shown(outcome.drafts)


def shown(drafts: Sequence[tuple[int, TokenTree | SpecInferError]]) -> list[Any]:
    """Everything of some drafts."""
    found = []
    for speculator, tree in drafts:
        assert isinstance(tree, TokenTree), tree
        rows = [[np.asarray(part).tolist() for part in proposal] for proposal in tree.proposals]
        found.append((speculator, tree.token_ids.tolist(), tree.parents.tolist(), rows, tree.order))
    return found


def pending(tree: TokenTree, positions: int = 500) -> PendingTree:
    return PendingTree(tree.token_ids.tolist(), tree.parents.tolist(), tree.scores.tolist(), positions)


def entry(name: str, base: int, delta: Sequence[int], **fields: Any) -> DraftEntry:
    known = {"limits": LIMITS[0], "sampling": SAMPLINGS[0]} | fields
    return DraftEntry(name, base, delta, known.pop("limits"), known.pop("sampling"), **known)


@settings(max_examples=40, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    kind=st.sampled_from(sorted(SHAPES)),
    limits=st.sampled_from(LIMITS),
    sampling=st.sampled_from(SAMPLINGS),
    sees_noise=st.booleans(),
    context=st.lists(st.integers(3, 20), min_size=1, max_size=40),
    data=st.data(),
)
def test_a_draft_ahead_is_the_draft_of_its_context(
    kind: str,
    limits: TreeLimits,
    sampling: Sampling,
    sees_noise: bool,
    context: list[int],
    data: st.DataObject,
) -> None:
    """Over all outcomes that are drafted for, of several requests; what was looked at leaves no trace."""
    fields = {"limits": limits, "sampling": sampling, "draw_seed": 5, "sees_noise": sees_noise}
    contexts = {"a": context, "b": context[::-1]}
    drawn = {name: data.draw(trees(root=tokens[-1], max_nodes=8)) for name, tokens in contexts.items()}
    ahead = engine_of(kind, "ahead")
    asked = [
        entry(name, 0, tokens, pending=pending(drawn[name]), **fields) for name, tokens in contexts.items()
    ]
    outcomes = ahead.draft(asked, ahead_s=60.0)
    assert any(outcome.ahead for outcome in outcomes)
    for outcome in outcomes:
        tokens = contexts[outcome.request_id]
        for made in outcome.ahead:
            assert shown(made.drafts) == drafted(kind, [*tokens, *made.tokens], fields)
    for outcome in outcomes:
        name, added = outcome.request_id, data.draw(st.lists(st.integers(3, 20), min_size=1, max_size=4))
        (later,) = ahead.draft([entry(name, len(contexts[name]), added, **fields)])
        fresh = drafted(kind, [*contexts[name], *added], fields)
        assert shown(later.drafts) == fresh, "of an outcome that nobody looked at"
    ahead.release(list(contexts))
    ahead.drafters[1]._runner.cache.check()  # type: ignore[attr-defined]


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_outcomes_are_ranked_by_their_probability(data: st.DataObject) -> None:
    """Against the sum over a target that accepts each node with its score, and guesses that are its own."""
    tree = data.draw(trees(root=5, max_nodes=8))
    sent = pending(tree)
    guesses = {
        node: [chain(sent.token_ids[node], [data.draw(st.integers(3, 96))], 0.3)] for node in sent.ends()
    }
    found = sent.outcomes(guesses)
    assert [o.probability for o in found] == sorted((o.probability for o in found), reverse=True)
    for node, (guess,) in guesses.items():
        token = int(guess.token_ids[1])
        path = tree.sequence_of(node)[1:]
        reached = float(np.prod([min(1.0, float(tree.scores[v])) for v in tree.path_to(node)]))
        expected = 0.3 * reached if token not in sent.children(node) and 0.3 * reached >= 0.005 else None
        known = {o.tokens: o.probability for o in found}
        assert known.get((*path, token)) == (None if expected is None else pytest.approx(expected, rel=1e-5))


def test_the_most_probable_outcomes_are_drafted_for_without_any_time() -> None:
    engine = SpeculatorEngine([ssm(SHAPES["points"])])
    tree = chain(9, [11, 12], 0.9)
    (short,) = engine.draft([entry("a", 0, [5, 9], pending=pending(tree))])
    engine.release(["a"])
    (long,) = engine.draft([entry("a", 0, [5, 9], pending=pending(tree))], ahead_s=60.0)
    assert 0 < len(short.ahead) < len(long.ahead)
    assert [each.tokens for each in long.ahead[: len(short.ahead)]] == [e.tokens for e in short.ahead]
    assert short.held_len == 2


def test_drafts_reach_no_further_than_positions() -> None:
    engine = SpeculatorEngine([ssm(SHAPES["points"])])
    tree = chain(9, [11, 12], 0.9)
    (found,) = engine.draft([entry("a", 0, [5, 9], pending=pending(tree, positions=6))], ahead_s=60.0)
    for each in found.ahead:
        depths = [_depth(tree) for _, tree in each.drafts if isinstance(tree, TokenTree)]
        assert all(depth <= 6 - 2 - len(each.tokens) for depth in depths)
    assert {len(each.tokens) for each in found.ahead} >= {1, 3}


def test_a_full_cache_costs_drafts_ahead_and_nothing_else() -> None:
    drafter = ssm(SHAPES["points"], kv_tokens=48)
    engine = SpeculatorEngine([drafter])
    (found,) = engine.draft([entry("a", 0, list(range(3, 33)), pending=pending(chain(32, [40])))], 60.0)
    assert (found.status, found.ahead, found.held_len) == (EntryStatus.OK, (), 30)
    drafter._runner.cache.check()
    (now,) = engine.draft([entry("a", 30, [40])])
    assert now.drafts


def test_a_drafter_that_fails_ahead_drafts_on() -> None:
    class Failing(ScriptedDrafter):
        def draft_ahead(self, jobs: Sequence[Any]) -> list[Any]:
            raise RuntimeError("out of luck")

    engine = SpeculatorEngine([Failing(lambda job: chain(job.context[-1], [1]))])
    (found,) = engine.draft([entry("a", 0, [5, 9], pending=pending(chain(9, [11])))], 60.0)
    assert (found.status, found.ahead) == (EntryStatus.OK, ())
    assert engine.draft([entry("a", 2, [11])])[0].drafts


BAD: dict[str, Callable[[PendingTree], PendingTree]] = {
    "no nodes": lambda tree: replace(tree, token_ids=[], parents=[], scores=[]),
    "other root": lambda tree: replace(tree, token_ids=[8, 11]),
    "two roots": lambda tree: replace(tree, parents=[-1, -1]),
    "child first": lambda tree: replace(tree, parents=[-1, 1]),
    "few scores": lambda tree: replace(tree, scores=[1.0]),
    "foreign token": lambda tree: replace(tree, token_ids=[9, 97]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_trees_are_refused(name: str) -> None:
    def draft(drafter: Drafter) -> DraftOutcome:
        tree = pending(chain(9, [11]))
        asked = entry("a", 0, [5, 9], pending=BAD[name](tree))
        return SpeculatorEngine([drafter]).draft([asked])[0]

    refused = draft(ssm(SHAPES["points"]))
    assert refused.status is EntryStatus.ERROR
    assert "pending" in refused.message


def test_a_drafter_that_cannot_is_not_taken_for_one_that_can() -> None:
    engine = SpeculatorEngine([ScriptedDrafter(lambda job: chain(job.context[-1], [1]))])
    (refused,) = engine.draft([entry("a", 0, [5, 9], pending=pending(chain(9, [11])))])
    assert "it cannot draft ahead" in refused.message


def _depth(tree: TokenTree) -> int:
    return max(len(tree.path_to(node)) for node in range(len(tree)))
