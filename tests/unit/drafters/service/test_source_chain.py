"""A chain of sources: sure copies draft alone, models elsewhere, and copies extend a model's tree."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.search import END, Match
from specinfer.drafters.source_chain import (
    SHORTEST,
    SourceChain,
    dominant_copy,
    drafting_alone,
    expected_tokens,
)
from specinfer.drafters.ssm import SsmDrafter
from specinfer.drafters.suffix import SuffixDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.tree import TokenTree, TreeBuilder, TreeLimits, check_draft
from tests.support.oracle import chain
from tests.support.system import ScriptedDrafter
from tests.support.tiny_models import runner_of, tiny_transformers
from tests.support.trees import paths

WIDE = TreeLimits(8, 8)
REPEAT = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]
"""Ends with four tokens that occurred before 5 6 7 8 9 1 2 3 4."""

matches = st.lists(
    st.builds(
        lambda text, end, length: Match(text, min(end, len(text)), length),
        st.lists(st.integers(END, 3), max_size=12),
        st.integers(0, 12),
        st.integers(SHORTEST, 20),
    ),
    max_size=6,
)


def described_model(script: object = lambda job: chain(job.context[-1], [90, 91])) -> ScriptedDrafter:
    drafter = ScriptedDrafter(script)  # type: ignore[arg-type]
    drafter.description = DrafterDescription("model", vocab_size=97)
    return drafter


def entry(
    context: Sequence[int], base: int = 0, asked: Sequence[int] = (), limits: TreeLimits = WIDE
) -> DraftEntry:
    return DraftEntry("r", base, context[base:], limits, GREEDY, asked)


def drafts(engine: SpeculatorEngine, *entries: DraftEntry) -> dict[int, TokenTree]:
    outcomes = engine.draft(entries)
    return {n: tree for outcome in outcomes for n, tree in outcome.drafts if isinstance(tree, TokenTree)}


@given(matches, st.integers(0, 8))
def test_a_copy_follows_a_match_and_its_probabilities_are_shares(found: list[Match], tokens: int) -> None:
    copy = dominant_copy(found, tokens)
    assert len(copy) <= tokens
    assert all(0 < chance < 1 for _, chance in copy)
    path = [token for token, _ in copy]
    assert END not in path
    assert not copy or any(list(match.text[match.end : match.end + len(path)]) == path for match in found)


@given(matches, matches)
def test_a_rival_match_never_makes_a_copy_surer(found: list[Match], more: list[Match]) -> None:
    if both := dominant_copy([*found, *more], 1):
        own = [m for m in [*found, *more] if list(m.text[m.end : m.end + 1]) == [both[0][0]]]
        assert dominant_copy(own, 1)[0][1] >= both[0][1]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], []),
        ([Match([9, 5], 1, 4)], [5]),
        ([Match([9, 5], 1, 6), Match([9, 6], 1, 6)], []),
        ([Match([9, 5], 1, 9), Match([9, 6], 1, 4)], [5]),
        ([Match([9, 5, 7], 1, 8), Match([9, 5, 8], 1, 8)], [5]),
        ([Match([9], 1, 9)], []),
        ([Match([9, END, 5], 1, 9)], []),
    ],
)
def test_a_copy_ends_where_no_successor_dominates(found: list[Match], expected: list[int]) -> None:
    assert [token for token, _ in dominant_copy(found, 4)] == expected


def test_a_copy_ends_where_its_path_is_too_improbable() -> None:
    found = [Match(list(range(9)), 1, 4)]
    chances = [chance for _, chance in dominant_copy(found, 4)]
    assert len(dominant_copy(found, 4, chances[0] * chances[1] + 0.01)) == 1


copies = st.lists(st.tuples(st.integers(0, 9), st.floats(0.01, 1)), max_size=5)


@given(st.dictionaries(st.integers(0, 3), st.tuples(copies, st.floats(0, 3))), st.floats(0, 2))
def test_copies_draft_alone_if_they_yield_more(requests: dict[int, tuple], saved: float) -> None:
    """The model's time is saved only if no request needs it."""
    found = {one: copy for one, (copy, _) in requests.items()}
    usual = {one: tokens for one, (_, tokens) in requests.items()}
    alone = drafting_alone(found, usual, saved)
    assert all(found[one] for one in alone)
    gain = sum([expected_tokens(found[one]) - usual[one] for one in found])
    if all(found.values()) and gain + saved >= 0:
        assert alone == set(found)
    else:
        assert alone == {one for one in found if found[one] and expected_tokens(found[one]) >= usual[one]}
    assert drafting_alone(found, usual, saved) <= drafting_alone(found, usual, saved + 1)


def test_a_model_that_yields_more_is_asked() -> None:
    def next_tokens(job: DraftJob) -> TokenTree:
        return chain(job.context[-1], range(job.context[-1] + 1, job.context[-1] + 9))

    def drafters(right: bool) -> list[int]:
        engine, text = SpeculatorEngine([NgramDrafter(), described_model(next_tokens)]), [1, 2, 3, 4, 9]
        drafts(engine, entry(text))
        for _ in range(9):
            known = len(text)
            text += range(text[-1] + 1, text[-1] + 9) if right else [text[-1] + 2]
            assert list(drafts(engine, entry(text, known))) == [1]
        return list(drafts(engine, entry([*text, 1, 2, 3, 4], len(text))))

    assert drafters(right=True) == [1]
    assert drafters(right=False) == [0]


def test_a_sure_copy_drafts_alone_and_the_model_drafts_elsewhere() -> None:
    model = described_model()
    engine = SpeculatorEngine([NgramDrafter(), model])
    drafted = drafts(engine, entry(REPEAT))
    assert list(drafted) == [0]
    assert paths(drafted[0]) == {(4, *REPEAT[4 : 4 + n]) for n in range(9)}
    assert model.jobs == []
    assert engine.seconds[1] == 0, "the planner sees that it was not asked"
    context = [*REPEAT, 50, 51]
    drafted = drafts(engine, entry(context, len(REPEAT)))
    assert list(drafted) == [1]
    assert list(model.jobs[0].context) == context, "all that it missed"


def test_who_is_asked_alone_drafts_as_without_a_chain() -> None:
    model = described_model()
    engine = SpeculatorEngine([model, NgramDrafter()])
    assert list(drafts(engine, entry(REPEAT, asked=[0]))) == [0]
    assert list(drafts(engine, entry([*REPEAT, 5], len(REPEAT), asked=[1]))) == [1]
    assert SourceChain.of([NgramDrafter()]) is None
    assert SourceChain.of([model]) is None
    assert SourceChain.of([SuffixDrafter(), model]) is not None
    assert SourceChain.of([SuffixDrafter(learn=True), model]) is None, (
        "finished requests are drafted from, too"
    )


def test_a_context_beyond_the_model_is_left_to_the_copier() -> None:
    model = described_model()
    model.description = replace(model.description, max_context_len=7)
    context = [1, 2, 3, 9, 8, 1, 2, 3]
    assert list(drafts(SpeculatorEngine([NgramDrafter(), model]), entry(context))) == [0]


def test_short_matches_take_no_node_from_a_model() -> None:
    context = [1, 2, 3, 9, 8, 1, 2, 3]
    assert drafts(SpeculatorEngine([NgramDrafter()]), entry(context)), "three tokens match"
    assert list(drafts(SpeculatorEngine([NgramDrafter(), described_model()]), entry(context))) == [1]


def test_a_copy_extends_the_surest_leaf() -> None:
    def script(job: DraftJob) -> TokenTree:
        builder = TreeBuilder(job.context[-1])
        sure, _ = builder.propose_points(0, [4, 60], [0.8, 0.2])
        builder.propose_points(sure, [61], [0.1])
        return builder.build()

    context = REPEAT[:-1]  # three tokens match; with the model's first guess, four
    (tree,) = drafts(SpeculatorEngine([NgramDrafter(), described_model(script)]), entry(context)).values()
    assert (3, 4, 61) in paths(tree)
    assert not [path for path in paths(tree) if len(path) > 3], (
        "the surest leaf is 60, which occurred nowhere"
    )


@given(st.integers(1, 8), st.integers(1, 8), st.floats(0.05, 0.95), st.floats(0, 0.9))
def test_an_extension_keeps_limits_and_surer_nodes(
    nodes: int, depth: int, score: float, least: float
) -> None:
    limits = TreeLimits(nodes, depth, min_path_probability=least)

    def script(job: DraftJob) -> TokenTree:
        tree = TreeBuilder(job.context[-1])
        tree.propose_points(0, [4, 60][:nodes], [score, 0.05][:nodes])
        return tree.build()

    (tree,) = drafts(
        SpeculatorEngine([NgramDrafter(), described_model(script)]), entry(REPEAT[:-1], limits=limits)
    ).values()
    check_draft(tree, 3, limits, 97)
    assert (3, 4) in paths(tree)
    if nodes >= 3 and depth >= 3 and score * 0.5 > least:
        assert (3, 4, 5) in paths(tree)


def test_a_model_runs_no_pass_when_a_copy_drafts_alone() -> None:
    runner = runner_of(tiny_transformers("llama"))
    passes: list[int] = []
    grow = runner.grow
    runner.grow = lambda tasks, *rest: passes.append(len(tasks)) or grow(tasks, *rest)  # type: ignore[method-assign]
    description = DrafterDescription("tiny", 97, max_context_len=runner.config.max_positions)
    engine = SpeculatorEngine([NgramDrafter(), SsmDrafter(runner, description, GrowthShape(beam=2))])
    drafts(engine, entry(REPEAT))
    assert passes == []
    first = drafts(engine, entry([*REPEAT, 50], len(REPEAT)))
    assert passes == [1]
    again = drafts(SpeculatorEngine(engine.drafters), entry([*REPEAT, 50]))
    assert first.keys() == again.keys() == {1}
    assert paths(first[1]) == paths(again[1]), "the missed tokens are read in one pass"


def test_sampled_requests_get_the_same_copies() -> None:
    engine = SpeculatorEngine([NgramDrafter(), described_model()])
    sampled = DraftEntry("s", 0, REPEAT, WIDE, Sampling(temperature=0.8, seed=3), sees_noise=False)
    assert list(drafts(engine, sampled)) == [0]
    assert not drafts(engine, DraftEntry("t", 0, REPEAT, WIDE, Sampling(seed=4)))[0].has_draws
