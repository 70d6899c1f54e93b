"""The verifier engine with a tiny model: contexts, limits, isolation, and losslessness with a real SSM drafter."""

from collections import Counter
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from specinfer.drafters import DrafterDescription, DraftJob, ssm
from specinfer.drafters.ssm import SsmDrafter
from specinfer.errors import SettingError
from specinfer.model.drafting.task import GrowthShape
from specinfer.request.sampling import GREEDY, Sampling, draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.tree import ProposalKind, TokenTree, TreeLimits, merge_trees
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob, checked_context
from tests.support.oracle import chain, greedy
from tests.support.tiny_models import reference_logits, replaceable_head, runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88]


def make(limits: EngineLimits | None = None, **options: object) -> VerifierEngine:
    return VerifierEngine(runner_of(tiny_transformers("llama"), **options), limits=limits)


def job(name: str, base: int, delta: list[int], tree: TokenTree | None = None) -> VerifyJob:
    return VerifyJob(name, base, delta, tree or TokenTree.root_only(delta[-1]), GREEDY)


def only(outcomes: list[Verdict]) -> Verdict:
    (outcome,) = outcomes
    return outcome


@pytest.mark.parametrize("settled", [True, False])
def test_a_tree_is_accepted_up_to_the_first_wrong_node(settled: bool) -> None:
    engine, expected = make(), greedy(PROMPT, 6)
    tree = chain(PROMPT[-1], [*expected[:2], (expected[2] + 1) % 97])
    outcome = only(engine.verify([job("r", 0, PROMPT, tree)]))
    assert (outcome.accepted, outcome.bonus) == ((1, 2), expected[2])
    assert outcome.cached_len == len(PROMPT) + 2
    if settled:
        engine.settle()
        (sequence,) = engine.runner.cache._sequences
        assert (sequence.tokens, sequence.nodes) == ([*PROMPT, *expected[:2]], 0)
    after = only(engine.verify([job("r", outcome.cached_len, [expected[2]])]))
    assert after.bonus == expected[3]


def test_a_request_may_be_released_before_its_step_is_settled() -> None:
    engine = make()
    engine.verify([job("a", 0, PROMPT, chain(PROMPT[-1], greedy(PROMPT, 2))), job("b", 0, [1])])
    assert engine.release(["a", "b"]) == 2
    cache = engine.runner.cache
    cache.check()
    assert cache.free_tokens == cache.capacity_tokens


def test_one_branch_and_a_wider_tree_around_it_agree_bit_for_bit_with_the_chain() -> None:
    """Trap 6, in float32: the logits of a path do not depend on other nodes of the tree."""
    engine, expected = make(), greedy(PROMPT, 3)
    as_chain = only(engine.verify([job("chain", 0, PROMPT, chain(PROMPT[-1], expected))]))
    merged = merge_trees([(0, chain(PROMPT[-1], expected)), (1, chain(PROMPT[-1], [1, 2, 3]))])
    in_tree = only(engine.verify([job("tree", 0, PROMPT, merged)]))
    tokens = [int(merged.token_ids[v]) for v in in_tree.accepted]
    assert tokens == expected
    assert in_tree.bonus == as_chain.bonus


def test_a_wrong_base_asks_for_resync_and_changes_nothing() -> None:
    engine = make()
    engine.verify([job("r", 0, PROMPT)])
    outcome = only(engine.verify([job("r", 2, [9])]))
    assert (outcome.status, outcome.cached_len) == (EntryStatus.RESYNC, 4)
    assert only(engine.verify([job("r", 4, [9])])).status is EntryStatus.OK


def test_non_finite_logits_fail_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make()
    run = engine.runner.run

    def poisoned(segments):  # type: ignore[no-untyped-def]
        logits = run(segments)
        logits[0] = logits[0].clone()
        logits[0][:, 5] = float("nan")
        return logits

    monkeypatch.setattr(engine.runner, "run", poisoned)
    bad, good = engine.verify([job("bad", 0, PROMPT), job("good", 0, PROMPT)])
    assert (bad.status, bad.message) == (
        EntryStatus.ERROR,
        "the model produced non-finite logits (NaN or infinity): try --dtype float32, or check the model's weights "
        "with `specinfer models check`",
    )
    assert good.status is EntryStatus.OK
    assert engine.cached_requests == 1


def test_base_zero_starts_over() -> None:
    engine = make()
    first = only(engine.verify([job("r", 0, PROMPT)]))
    engine.verify([job("r", 4, [9])])
    assert only(engine.verify([job("r", 0, PROMPT)])).bonus == first.bonus


def test_limits_are_enforced_per_entry() -> None:
    limits = EngineLimits(max_requests=2, max_nodes=3, max_step_tokens=12, max_context_len=10)
    engine = make(limits)
    outcomes = engine.verify(
        [
            job("nodes", 0, [5], chain(5, [1, 2, 3])),
            job("context", 0, [1] * 11),
            job("root", 0, [5], chain(6, [1])),
            job("a", 0, [5, 6]),
            job("b", 0, [7]),
            job("third", 0, [8]),
            job("a", 2, [1] * 9),
        ]
    )
    assert [o.status for o in outcomes] == [
        EntryStatus.ERROR,
        EntryStatus.ERROR,
        EntryStatus.ERROR,
        EntryStatus.OK,
        EntryStatus.OK,
        EntryStatus.EXHAUSTED,
        EntryStatus.RESYNC,
    ]
    assert "tree.nodes = 4: must be at most 3, root included" in outcomes[0].message
    assert "context = 11 tokens: at most 10 in base_len and delta_token_ids" in outcomes[1].message
    assert "tree.token_ids[0]: must repeat the last delta token" in outcomes[2].message


def test_a_step_over_its_token_limit_serves_entries_that_fit() -> None:
    engine = make(EngineLimits(max_step_tokens=6))
    a, b = engine.verify([job("a", 0, [1, 2, 3, 4]), job("b", 0, [1, 2, 3, 4])])
    assert (a.status, b.status) == (EntryStatus.OK, EntryStatus.ERROR)
    assert "of the step's 6 tokens and nodes are free" in b.message


def test_a_full_cache_is_reported_and_recovers() -> None:
    engine = make(kv_tokens=32)
    a, b = engine.verify([job("a", 0, [1] * 20), job("b", 0, [2] * 20)])
    assert (a.status, b.status) == (EntryStatus.OK, EntryStatus.EXHAUSTED)
    assert engine.release(["a", "b", "nobody"]) == 1
    assert only(engine.verify([job("b", 0, [2] * 20)])).status is EntryStatus.OK


@pytest.mark.parametrize("executor", ["torch", "native"])
def test_a_common_prompt_is_computed_once_and_changes_nothing(executor: str) -> None:
    model = tiny_transformers("llama", head_dim=16)
    engine = VerifierEngine(runner_of(model, executor=executor))
    prompt = [(7 * i) % 97 for i in range(70)]
    first = only(engine.verify([job("a", 0, [*prompt, 3])]))
    read: list[int] = []
    run = engine.runner.run
    engine.runner.run = lambda segments: (  # type: ignore[method-assign]
        read.extend(len(s.delta) for s in segments),
        run(segments),
    )[1]
    again, other = engine.verify([job("b", 0, [*prompt, 3]), job("c", 0, [*prompt, 4])])
    assert read == [71 - 64, 71 - 64]
    assert (again.accepted, again.bonus) == (first.accepted, first.bonus)
    assert other.bonus == int(reference_logits(model, [*prompt, 4])[-1].argmax())
    assert engine.release(["a", "b", "c"]) == 3


def test_idle_requests_are_forgotten() -> None:
    now = [0.0]
    runner = runner_of(tiny_transformers("llama"))
    engine = VerifierEngine(runner, limits=EngineLimits(idle_seconds=10), clock=lambda: now[0])
    engine.verify([job("old", 0, PROMPT)])
    now[0] = 11.0
    engine.verify([job("new", 0, PROMPT)])
    assert engine.cached_requests == 1
    assert only(engine.verify([job("old", 4, [1])])).status is EntryStatus.RESYNC


def test_top_k_ids_of_every_node_on_request() -> None:
    engine, expected = make(), greedy(PROMPT, 2)
    request = VerifyJob("r", 0, PROMPT, chain(PROMPT[-1], expected), GREEDY, top_k=3)
    outcome = only(engine.verify([request]))
    assert [row[0] for row in outcome.top_k] == [*expected, outcome.bonus]
    assert {len(row) for row in outcome.top_k} == {3}


@pytest.mark.parametrize("sampling", [Sampling(0.8, seed=3), Sampling(1.2, 0, 0.9, seed=4)])
def test_a_drafter_that_is_the_target_guesses_everything_that_is_sampled(sampling: Sampling) -> None:
    """Drafter and target use the same noise at the same positions, in every step."""
    engine = make()
    drafter = SsmDrafter(
        runner_of(tiny_transformers("llama")), DrafterDescription(vocab_size=97), GrowthShape()
    )
    context, cached_len = list(PROMPT), 0
    for _ in range(5):
        (tree,) = drafter.draft([DraftJob("r", context, TreeLimits(4, 4, width=1), sampling)])
        assert isinstance(tree, TokenTree)
        outcome = only(engine.verify([VerifyJob("r", cached_len, context[cached_len:], tree, sampling)]))
        assert outcome.accepted == (1, 2, 3, 4)
        context += [*tree.token_ids[1:].tolist(), outcome.bonus]
        cached_len = outcome.cached_len


@pytest.mark.statistical
@pytest.mark.parametrize(
    "kind",
    [
        ProposalKind.POINT,
        pytest.param(ProposalKind.WITH_REPLACEMENT, marks=pytest.mark.thorough),
        ProposalKind.WITHOUT_REPLACEMENT,
    ],
)
def test_sampling_end_to_end_follows_the_target(kind: ProposalKind) -> None:
    """Two real SSM drafters, a real target, 3 tokens of a vocabulary of 4, 600 requests.

    Chi-square test against the exact distribution by `transformers` with fixed seeds; false alarms 1e-4.
    """
    shape = {"vocab_size": 4, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    target = tiny_transformers("llama", seed=1, **shape)
    engine = VerifierEngine(runner_of(target, kv_tokens=8192), limits=EngineLimits(400, max_step_tokens=4096))
    drafters = [
        SsmDrafter(
            runner_of(tiny_transformers("llama", seed=s, **shape), kv_tokens=16384),
            DrafterDescription(vocab_size=4),
            GrowthShape(kind=kind, q_support=4),
        )
        for s in (2, 3)
    ]
    start, exact = [0, 1], {}
    for tokens in product(range(4), repeat=3):
        rows = reference_logits(target, [*start, *tokens]).double().softmax(-1)
        exact[tokens] = float(np.prod([rows[1 + i, t] for i, t in enumerate(tokens)]))
    counts = dict.fromkeys(exact, 0)
    for block in range(2):
        for tokens in _sample(engine, drafters, start, range(block * 300, block * 300 + 300)):
            counts[tokens] += 1
    assert _pvalue(counts, exact) > 1e-4


def _pvalue(counts: dict[tuple[int, ...], int], exact: dict[tuple[int, ...], float]) -> float:
    """Return the p-value of counts against probabilities; outcomes expected less than five times are merged."""
    total = sum(counts.values())
    common = [k for k in exact if exact[k] * total >= 5]
    rare = [k for k in exact if k not in common]
    observed = [counts[k] for k in common] + ([sum(counts[k] for k in rare)] if rare else [])
    expected = [exact[k] for k in common] + ([sum(exact[k] for k in rare)] if rare else [])
    return float(stats.chisquare(observed, np.array(expected) / sum(expected) * total).pvalue)


@pytest.mark.native
@pytest.mark.statistical
@pytest.mark.parametrize("kind", [ProposalKind.POINT, ProposalKind.WITHOUT_REPLACEMENT])
def test_sampling_follows_the_target_while_a_draft_vocabulary_changes(
    kind: ProposalKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafter has two of four tokens, and replaces one whenever it lacks a token."""
    monkeypatch.setattr(ssm, "_SWAPPED_AT_ONCE", 1)
    shape = {"vocab_size": 4, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
    target = tiny_transformers("llama", seed=1, **shape)
    engine = VerifierEngine(runner_of(target, kv_tokens=8192), limits=EngineLimits(400, max_step_tokens=4096))
    draft = tiny_transformers("llama", seed=2, head_dim=16, **shape)
    runner = runner_of(draft, kv_tokens=16384, token_ids=(0, 1), executor="native")
    head, heads = replaceable_head(draft, runner, (0, 1)), set()
    replace = head.replace
    head.replace = lambda tokens: (heads.add(tuple(tokens.items())), replace(tokens))[1]  # type: ignore[func-returns-value, method-assign]
    drafter = SsmDrafter(
        runner,
        DrafterDescription(vocab_size=4),
        GrowthShape(kind=kind, q_support=4),
        torch.tensor([0, 1]),
    )
    counts: Counter[tuple[int, ...]] = Counter()
    for block in range(60):
        counts.update(_sample(engine, [drafter], [0, 1], range(block * 10, block * 10 + 10)))
    assert len(heads) > 4
    exact = {}
    for tokens in product(range(4), repeat=3):
        rows = reference_logits(target, [0, 1, *tokens]).double().softmax(-1)
        exact[tokens] = float(np.prod([rows[1 + i, t] for i, t in enumerate(tokens)]))
    assert _pvalue({tokens: counts[tokens] for tokens in exact}, exact) > 1e-4


def _sample(
    engine: VerifierEngine, drafters: list[SsmDrafter], start: list[int], seeds: range
) -> list[tuple[int, ...]]:
    """Return three sampled tokens per seed, with all requests in one batch."""

    contexts = {seed: list(start) for seed in seeds}
    cached_lens = dict.fromkeys(seeds, 0)
    while active := [seed for seed in seeds if len(contexts[seed]) < len(start) + 3]:
        drafts = [
            drafter.draft(
                [
                    DraftJob(str(s), contexts[s], TreeLimits(4, 2), Sampling(seed=s), draft_seed(s, index))
                    for s in active
                ]
            )
            for index, drafter in enumerate(drafters)
        ]
        trees = [merge_trees(list(enumerate(draft)), 6) for draft in zip(*drafts, strict=True)]  # type: ignore[arg-type]
        outcomes = engine.verify(
            [
                VerifyJob(str(s), cached_lens[s], contexts[s][cached_lens[s] :], tree, Sampling(seed=s))
                for s, tree in zip(active, trees, strict=True)
            ]
        )
        for seed, tree, outcome in zip(active, trees, outcomes, strict=True):
            contexts[seed] += [int(tree.token_ids[v]) for v in outcome.accepted]
            contexts[seed].append(outcome.bonus)
            cached_lens[seed] = outcome.cached_len
    ids = [str(seed) for seed in seeds]
    engine.release(ids)
    for drafter in drafters:
        for request_id in ids:
            drafter.release(request_id)
    return [tuple(contexts[seed][len(start) : len(start) + 3]) for seed in seeds]


def test_a_context_beyond_the_models_positions_is_refused() -> None:
    assert checked_context("max_context_len", 0, 512) == 512
    assert checked_context("max_context_len", 512, 512) == 512
    with pytest.raises(SettingError, match="max_context_len = 513:"):
        checked_context("max_context_len", 513, 512)


@given(st.integers(2, 90), st.integers(0, 90), st.integers(1, 70))
@settings(max_examples=15)
def test_a_limited_prompt_uses_cached_tokens_and_then_computes_up_to_the_limit(
    length: int, cached: int, limit: int
) -> None:
    engine, prompt = make(), [(7 * i) % 90 + 3 for i in range(length)]
    before = min(cached, length)
    if before:
        engine.verify([job("before", 0, prompt[:before])])
    limited = VerifyJob("r", 0, prompt, None, GREEDY, read_limit=limit)
    outcome = only(engine.verify([limited]))
    known = min(before // 16, (length - 1) // 16) * 16
    assert (outcome.status, outcome.cached_tokens) == (EntryStatus.OK, known)
    assert outcome.cached_len > 0
    assert known <= outcome.cached_len <= min(known + limit, length - 1)
    assert outcome.cached_len in (length - 1, known + limit) or outcome.cached_len % 16 == 0
    assert outcome.cached_len > known + limit - 16 or outcome.cached_len == length - 1
    after = only(engine.verify([job("r", outcome.cached_len, prompt[outcome.cached_len :])]))
    assert [after.bonus] == greedy(prompt, 1)


def test_a_limit_of_reading_is_refused_with_a_tree() -> None:
    outcome = only(make().verify([replace(job("r", 0, PROMPT), read_limit=2)]))
    assert outcome.status is EntryStatus.ERROR
    assert "read_limit" in outcome.message
