"""Resident speculators: drafters in the verifier's process change no token."""

import asyncio
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.recycling import RecyclingDrafter
from specinfer.drafters.suffix import SuffixDrafter
from specinfer.errors import IncompatibleError
from specinfer.statuses import EntryStatus
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2
from specinfer.verification.engine import EngineLimits, VerifierEngine
from specinfer.verification.jobs import VerifyOutcome
from tests.integration.drafts.test_context_end import CONSTRAINTS, answer, deep, ssm, wide
from tests.integration.drafts.test_draws import drawing
from tests.integration.drafts.test_features import Reader as StateReader
from tests.integration.drafts.test_features import assert_are_the_targets
from tests.integration.services.test_failing_speculators import MALFORMED
from tests.support.exactness.markov import REQUESTS, markov, p_value, sampled
from tests.support.oracle import always, first, greedy
from tests.support.system import VOCABULARY, ScriptedDrafter, running_system, text_of
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.resident import ResidentSpeculators

PROMPT = [5, 17, 3, 88, 41]
OFF, SEQUENCE, TREE = 3, 2, 1


async def test_every_step_but_the_first_has_a_tree(redis_url: str) -> None:
    """All drafts are right, so that every other step commits four tokens."""
    contexts: list[list[int]] = []

    def note(job: DraftJob) -> TokenTree:
        contexts.append(list(job.context))
        return first(3)(job)

    async with running_system(
        redis_url, {"own": ScriptedDrafter(note)}, resident=True, tree_nodes=3
    ) as system:
        replies = await system.generate(PROMPT, max_new_tokens=21)
        (service,) = system.loop.pool.services
        stats = replies[-1].summary.stats
    assert [t for reply in replies for t in reply.token_ids] == greedy(PROMPT, 21)
    assert stats.steps == 6, "one token, then four a step"
    assert contexts == [[*PROMPT, *greedy(PROMPT, n)] for n in range(1, 21, 4)]
    assert service.counters.answered == 5, "the step that reads the prompt has no drafts"


async def test_independent_services_are_merged_with_residents(redis_url: str) -> None:
    """Both kinds have names and statistics; the residents come first."""
    service, other = ScriptedDrafter(first(1)), ScriptedDrafter(always)
    async with running_system(redis_url, {"own": service, "other": other}, resident={"own"}) as system:
        replies = await system.generate(PROMPT)
        status = await system.stub.Status(generation_pb2.StatusRequest())
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert [row.name for row in status.speculators] == ["own", "other"]
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"own", "other"}


@pytest.mark.parametrize("every", [1, 2, 3])
async def test_residents_draft_again_after_the_verifier_drops_requests(redis_url: str, every: int) -> None:
    drafters = {"own": ScriptedDrafter(first(2)), "states": StateReader([1, 3])}
    async with running_system(redis_url, drafters, resident=True) as system:
        system.forget_every(every + 1)
        assert await system.tokens(PROMPT, max_new_tokens=30) == greedy(PROMPT, 30)


async def test_requests_come_and_go_in_one_batch(redis_url: str) -> None:
    widths: dict[int, set[int | None]] = {}

    def note(job: DraftJob) -> TokenTree:
        widths.setdefault(job.context[0], set()).add(job.limits.width)
        return first(2)(job)

    drafters: dict[str, Drafter] = {"first": ScriptedDrafter(note), "ngram": NgramDrafter(1, 4, 3)}
    prompts = [[3 + n, *(3 + (7 * n + i) % 90 for i in range(5 * n))] for n in range(12)]
    modes = [OFF, SEQUENCE, TREE] * 4
    async with running_system(redis_url, drafters, resident=True, max_batch=4) as system:
        texts = await asyncio.gather(
            *(
                system.tokens(prompt, max_new_tokens=5 + n, speculation=modes[n])
                for n, prompt in enumerate(prompts)
            )
        )
    assert texts == [greedy(prompt, 5 + n) for n, prompt in enumerate(prompts)]
    wanted = {SEQUENCE: {1}, TREE: {None}}
    assert widths == {3 + n: wanted[mode] for n, mode in enumerate(modes) if mode != OFF}


@pytest.mark.parametrize("name", MALFORMED)
async def test_malformed_trees_are_dropped_and_counted(redis_url: str, name: str) -> None:
    drafters = {"bad": ScriptedDrafter(MALFORMED[name]), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, resident=True) as system:
        replies = await system.generate(PROMPT)
        (service,) = system.loop.pool.services
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert service.faults.malformed >= 6
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}


async def test_a_drafter_that_fails_costs_drafts_and_no_verdict(redis_url: str) -> None:
    def fail(job: DraftJob) -> TokenTree:
        raise RuntimeError("out of luck")

    drafters = {"bad": ScriptedDrafter(fail), "good": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, resident=True) as system:
        replies = await system.generate(PROMPT)
        status = await system.stub.Status(generation_pb2.StatusRequest())
        metric = system.registries["verifier"].get_sample_value
        assert (
            metric("specinfer_resident_failures_total", {"speculator": "bad"}) == status.speculators[0].failed
        )
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert [(row.name, row.failed > 0) for row in status.speculators] == [("bad", True), ("good", False)]
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"good"}


@pytest.mark.parametrize("context", [19, 64])
async def test_the_end_of_the_context_is_like_plain_decoding(redis_url: str, context: int) -> None:
    draw = random.Random(context)
    drafters: dict[str, Drafter] = {
        "wide": ScriptedDrafter(wide),
        "deep": ScriptedDrafter(deep),
        "short": ssm("llama", context - 7),
        "ngram": NgramDrafter(),
    }
    async with running_system(
        redis_url,
        drafters,
        resident=True,
        model=tiny_transformers("llama", max_position_embeddings=context),
        engine_limits=EngineLimits(max_context_len=context),
        tree_nodes=24,
        step_nodes=256,
        prefill_chunk=draw.choice([5, 512]),
        kv_tokens=4096,
    ) as system:
        for length in [1, context - 1, context - 2, *(draw.randrange(1, context) for _ in range(5))]:
            prompt, left = [draw.randrange(3, VOCABULARY) for _ in range(length)], context - length
            new, constraint = draw.choice([left, draw.randint(1, left)]), draw.choice(CONSTRAINTS)
            texts = await asyncio.gather(
                *(answer(system, prompt, new, mode, constraint) for mode in (OFF, SEQUENCE, TREE))
            )
            assert texts[0] == texts[1] == texts[2], (length, new, constraint)
            assert len(texts[0][0]) == new
        (service,) = system.loop.pool.services
        assert not service.faults.malformed, "no tree is deeper than the context allows"


async def test_hidden_states_of_residents_are_the_targets_and_are_not_sent(redis_url: str) -> None:
    """Two drafters read different layers; the gateway requests none."""
    low, high = StateReader([1]), StateReader([2, 3])
    async with running_system(redis_url, {"low": low, "high": high}, resident=True) as system:
        prompts = {"one": PROMPT, "two": [3 + i % 90 for i in range(40)]}
        texts = await asyncio.gather(
            *(system.tokens(prompt, request_id=name) for name, prompt in prompts.items())
        )
        assert texts == [greedy(prompt, 16) for prompt in prompts.values()]
        assert system.loop.pool.wanted([]).features.layers == ()
    for reader, layers in ((low, [1]), (high, [2, 3])):
        for name in prompts:
            ((start, states),) = reader.stretches(name)
            context = reader.last_context(name)
            assert (start, len(states)) == (0, len(context) - 1), "the last token's are not computed yet"
            assert_are_the_targets(0, states, context, layers)


async def test_gateway_and_residents_read_different_hidden_states(redis_url: str) -> None:
    """Both get the states of their layers; only the independent speculator's are sent."""
    service, other = StateReader([2]), StateReader([1, 3])
    async with running_system(redis_url, {"own": service, "other": other}, resident={"own"}) as system:
        assert await system.tokens(PROMPT) == greedy(PROMPT, 16)
    for reader, layers in ((service, [2]), (other, [1, 3])):
        ((start, states),) = reader.stretches()
        assert start == 0
        assert_are_the_targets(0, states, reader.last_context(), layers)


async def test_predictions_of_the_target_are_those_of_the_last_tree(redis_url: str) -> None:
    seen: list[DraftJob] = []

    def note(job: DraftJob) -> TokenTree:
        seen.append(replace(job, context=list(job.context)))
        return first(2)(job)

    drafter = ScriptedDrafter(note)
    drafter.description = DrafterDescription(target_top_k=3)
    recycler = RecyclingDrafter(DrafterDescription(vocab_size=VOCABULARY, target_top_k=4))
    async with running_system(redis_url, {"own": drafter, "recycling": recycler}, resident=True) as system:
        assert await system.tokens(PROMPT, max_new_tokens=30) == greedy(PROMPT, 30)
    assert all(job.target_top_k is not None for job in seen)
    for before, after in pairwise(seen):
        predicted = after.target_top_k
        assert predicted is not None
        assert predicted.token_ids[0] == before.context[-1], "of the tree that the verdict was about"
        assert predicted.top_k.shape == (len(predicted.token_ids), 3)
        assert predicted.top_k[0, 0] == after.context[len(before.context)], "the target chose its first"


async def test_references_are_read_once(redis_url: str) -> None:
    text = greedy(PROMPT, 30)
    drafters: dict[str, Drafter] = {"ngram": NgramDrafter(1, 4, 3), "suffix": SuffixDrafter()}
    reference = text_of([*PROMPT, *text])
    async with running_system(redis_url, drafters, resident=True) as system:
        without = await system.generate(PROMPT, max_new_tokens=30)
        replies = await system.generate(PROMPT, max_new_tokens=30, references=[reference])
    assert [t for reply in replies for t in reply.token_ids] == text
    assert replies[-1].summary.stats.steps < without[-1].summary.stats.steps / 2


async def test_sampled_text_follows_the_target(redis_url: str) -> None:
    """Drawn trees are merged with points; chi-square and negative control as in `markov`."""
    target = markov(1)
    drafters = {"draws": drawing(_draws), "points": ScriptedDrafter(_point)}
    async with running_system(
        redis_url,
        drafters,
        resident=True,
        model=target,
        engine_limits=EngineLimits(max_context_len=1024),
        max_batch=REQUESTS,
        tree_nodes=4,
        step_nodes=4 * REQUESTS,
        kv_tokens=REQUESTS * 1024,
    ) as system:
        texts = await sampled(system, range(16), 80)
        (service,) = system.loop.pool.services
    assert service.counters.answered
    assert not service.faults.malformed
    assert p_value(target, texts) > 1e-4
    assert p_value(markov(2), texts) < 1e-4


def _draws(job: DraftJob) -> TokenTree:
    q = np.array([0, 1, 2, 3], np.int32), np.array([0.4, 0.3, 0.2, 0.1], np.float32)
    rng = np.random.default_rng([job.draw_seed, len(job.context)])
    builder = TreeBuilder(job.context[-1])
    tokens = rng.choice(4, size=2, replace=False, p=[0.4, 0.3, 0.2, 0.1]).tolist()
    builder.propose_samples(0, ProposalKind.WITHOUT_REPLACEMENT, tokens, q)
    return builder.build()


def _point(job: DraftJob) -> TokenTree:
    builder = TreeBuilder(job.context[-1])
    builder.propose_points(0, [job.context[-1] % 4], [0.5])
    return builder.build()


def test_drafters_that_do_not_fit_the_target_are_refused() -> None:
    reader = StateReader([9])
    reader.description = replace(reader.description, feature_size=5)
    engine = VerifierEngine(runner_of(tiny_transformers("llama"), kv_tokens=64))
    with pytest.raises(IncompatibleError, match=r"hidden states of size 5 after layers \[9\]"):
        ResidentSpeculators(SpeculatorEngine([reader]), ["reader"], engine.runner)


async def test_a_deferred_step_uses_its_drafts_again(redis_url: str) -> None:
    """Dropping a drawn tree because of its size would bias the text."""
    seen: list[tuple[int, list[int], bool]] = []
    async with running_system(redis_url, {"draws": drawing()}, resident=True) as system:
        verify = system.verifier.verify

        def deferring(jobs: Any) -> Any:
            (job,) = jobs
            late = job.base_len > 0 and len(seen) % 3 == 2
            seen.append((job.base_len, job.tree.token_ids.tolist(), late))
            return [VerifyOutcome(job.request_id, EntryStatus.EXHAUSTED)] if late else verify(jobs)

        system.verifier.verify = deferring  # type: ignore[method-assign]
        tokens = await system.tokens(PROMPT, temperature=0.8, seed=3, max_new_tokens=24)
    assert len(tokens) == 24
    again = [(first, second) for first, second in pairwise(seen) if first[2]]
    assert len(again) > 3
    for (base, tree, _), (next_base, next_tree, _) in again:
        assert (next_base, next_tree) == (base, tree)
    assert all(len(tree) == 2 for base, tree, _ in seen[:-2] if base), (
        "only the first and last steps have no draw"
    )


async def test_a_fault_in_drafting_costs_one_step(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, faults = ScriptedDrafter(first(2)), list[int]()
    async with running_system(redis_url, {"own": drafter}, resident=True) as system:
        draft = SpeculatorEngine.draft

        def failing(engine: SpeculatorEngine, entries: Any) -> Any:
            faults.append(len(entries))
            if len(faults) == 3:
                raise RuntimeError("out of luck")
            return draft(engine, entries)

        monkeypatch.setattr(SpeculatorEngine, "draft", failing)
        replies = await system.generate(PROMPT, max_new_tokens=30)
    assert [t for reply in replies for t in reply.token_ids] == greedy(PROMPT, 30)
    assert replies[-1].summary.stats.steps <= 12, "two of three tokens are right in all steps but two"


async def test_refused_requests_are_not_drafted_for_again(redis_url: str) -> None:
    """Its prompt has a token outside the drafters' vocabulary."""
    drafter = ScriptedDrafter(first(1))
    drafter.description = DrafterDescription(vocab_size=VOCABULARY - 1)
    async with running_system(redis_url, {"own": drafter}, resident=True) as system:
        prompt = [*PROMPT, VOCABULARY - 1, 7]
        assert await system.tokens(prompt) == greedy(prompt, 16)
        (service,) = system.loop.pool.services
        assert service.statistics.outcomes["failed"] == 0, "the counts are already in the status"
        status = await system.stub.Status(generation_pb2.StatusRequest())
    assert status.speculators[0].failed == 1
