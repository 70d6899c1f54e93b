"""Resident speculators: drafters in the verifier's process change no token."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import pytest

from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.recycling import RecyclingDrafter
from specinfer.errors import IncompatibleError
from specinfer.tree import TokenTree
from specinfer.v1 import generation_pb2
from specinfer.verification.engine import VerifierEngine
from tests.integration.drafts.test_features import Reader as StateReader
from tests.integration.drafts.test_features import assert_are_the_targets
from tests.support.oracle import always, first, greedy
from tests.support.system import VOCABULARY, ScriptedDrafter, System, running_system, until
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.resident import ResidentSpeculators

PROMPT = [5, 17, 3, 88, 41]


async def test_independent_services_are_merged_with_residents(redis_url: str) -> None:
    """Both kinds have names and statistics; the residents come first."""
    service, other = ScriptedDrafter(first(1)), ScriptedDrafter(always)
    async with running_system(redis_url, {"own": service, "other": other}, resident={"own"}) as system:
        replies = await system.generate(PROMPT)
        status = await system.stub.Status(generation_pb2.StatusRequest())
        await until(lambda: _are_ready(system, status))
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPT, 16)
    assert [row.name for row in status.speculators] == ["own", "other"]
    assert {row.name for row in replies[-1].summary.stats.speculators} == {"own", "other"}


def _are_ready(system: System, status: generation_pb2.StatusReply) -> bool:
    value = system.registries["gateway"].get_sample_value
    ready = [value("specinfer_speculator_ready", {"service": row.service}) for row in status.speculators]
    return ready == [1, 1]


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


def test_drafters_that_do_not_fit_the_target_are_refused() -> None:
    reader = StateReader([9])
    reader.description = replace(reader.description, feature_size=5)
    engine = VerifierEngine(runner_of(tiny_transformers("llama"), kv_tokens=64))
    with pytest.raises(IncompatibleError, match=r"hidden states of size 5 after layers \[9\]"):
        ResidentSpeculators(SpeculatorEngine([reader]), ["reader"], engine.runner)


async def test_refused_requests_are_not_drafted_for_again(redis_url: str) -> None:
    """Its prompt has a token outside the drafters' vocabulary."""
    drafter = ScriptedDrafter(first(1))
    drafter.description = DrafterDescription(vocab_size=VOCABULARY - 1)
    async with running_system(redis_url, {"own": drafter}, resident=True) as system:
        prompt = [*PROMPT, VOCABULARY - 1, 7]
        assert await system.tokens(prompt) == greedy(prompt, 16)
        (service,) = system.loop.pool.records
        assert service.statistics.outcomes["failed"] == 0, "the counts are already in the status"
        status = await system.stub.Status(generation_pb2.StatusRequest())
    assert status.speculators[0].failed == 1
