"""Requests through gRPC servers and Redis: tokens, hand-computed steps, and fields of messages."""

import asyncio

import pytest

from specinfer.drafters.ngram import NgramDrafter
from specinfer.request.statuses import FinishReason
from specinfer.v1 import generation_pb2
from specinfer.verification.engine import EngineLimits
from tests.support.network.scrape import Scrape
from tests.support.oracle import always, first, greedy, never
from tests.support.system import ScriptedDrafter, running_system, until
from tests.support.tiny_models import tiny_transformers

PROMPTS = [[5, 17, 3, 88, 41, 9, 60], [33], [7] * 20, [90, 11, 52, 19, 64, 23, 8, 95, 14, 77, 31, 4] * 4]
OFF, SEQUENCE, TREE = (
    generation_pb2.SPECULATION_OFF,
    generation_pb2.SPECULATION_SEQUENCE,
    generation_pb2.SPECULATION_TREE,
)


@pytest.mark.parametrize("speculation", [OFF, SEQUENCE, TREE])
async def test_greedy_output_is_that_of_transformers(redis_url: str, speculation: int) -> None:
    drafters = {"half": ScriptedDrafter(first(2)), "wrong": ScriptedDrafter(never), "ngram": NgramDrafter(1)}
    async with running_system(redis_url, drafters) as system:
        answers = await asyncio.gather(
            *(system.tokens(prompt, max_new_tokens=24, speculation=speculation) for prompt in PROMPTS)
        )
    assert answers == [greedy(prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(
    ("script", "steps", "histogram"),
    [
        # 16 tokens, chains of at most 4 nodes, one bonus token per step
        (never, 16, [16]),  # 16 x 1
        (always, 4, [1, 0, 0, 0, 3]),  # 5 + 5 + 5 and 1 left, for which nothing is drafted
        (first(1), 8, [0, 8]),  # 8 x 2
        (first(2), 6, [1, 0, 5]),  # 5 x 3 + 1
        (first(3), 4, [0, 0, 0, 4]),  # 4 x 4
    ],
)
async def test_steps_are_as_computed_by_hand(
    redis_url: str, script: object, steps: int, histogram: list[int]
) -> None:
    drafter = ScriptedDrafter(script)  # type: ignore[arg-type]
    async with running_system(redis_url, {"scripted": drafter}) as system:
        replies = await system.generate(PROMPTS[0])
    stats = replies[-1].summary.stats
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPTS[0], 16)
    assert (stats.steps, list(stats.acceptance_histogram)) == (steps, histogram)
    assert stats.accepted == 16 - steps
    if script is not never:
        (row,) = stats.speculators
        assert (row.name, row.accepted) == ("scripted", stats.accepted)
        assert row.wins == steps - histogram[0]


async def test_drafters_share_the_noise_seed_but_not_the_draw_seed(redis_url: str) -> None:
    """Draws of two services for one request must be independent."""
    drafters = {name: ScriptedDrafter(always) for name in ("a", "b")}
    async with running_system(redis_url, drafters) as system:
        await system.tokens(PROMPTS[0], temperature=0.7, seed=5)
    seen = [(job.sampling.seed, job.draw_seed) for drafter in drafters.values() for job in drafter.jobs]
    assert {noise for noise, _ in seen} == {5}
    assert len({draws for _, draws in seen}) == 2


async def test_summary_and_store_agree(redis_url: str) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        replies = await system.generate(PROMPTS[0], seed=99)
        summary = replies[-1].summary
        request_id = replies[-1].request_id
        record = await system.store.load(request_id)
        status = await system.stub.Status(generation_pb2.StatusRequest())
    assert record is not None
    assert record.tokens == greedy(PROMPTS[0], 16)
    assert record.ending is not None
    assert (record.ending.finish, record.ending.error) == (FinishReason.LENGTH, "")
    assert (summary.prompt_tokens, summary.new_tokens, summary.seed) == (7, 16, 99)
    assert summary.finish_reason == generation_pb2.FINISH_REASON_LENGTH
    assert 0 < summary.ttft_seconds <= summary.total_seconds
    assert (status.new_tokens, status.running, status.waiting) == (16, 0, 0)
    assert status.speculators[0].ready


async def test_a_windowed_cache_exceeds_the_models_positions_and_is_reported_as_lossy(redis_url: str) -> None:
    """Answers of 300 tokens, of a model with 128 positions, in a cache of 20 blocks."""
    window = {"kv_tokens": 320, "kv_window": 48, "prefill_chunk": 16}
    limits = EngineLimits(max_context_len=4096, max_step_tokens=64)
    model = tiny_transformers("llama", max_position_embeddings=128)
    async with running_system(
        redis_url, {"a": NgramDrafter(1)}, model=model, engine_limits=limits, **window
    ) as system:
        prompts = [[3 + i] * (1 + 30 * i) for i in range(2)]
        answers = await asyncio.gather(*(system.tokens(p, max_new_tokens=300) for p in prompts))
        status = await system.stub.Status(generation_pb2.StatusRequest())
        dropped = system.verifier.evicted_tokens
        counter = "verifier_window_dropped_tokens_total"
        await until(lambda: Scrape.of(system.registries["verifier"]).value(counter) == dropped)
        assert dropped > 2 * 200
    assert [len(answer) for answer in answers] == [300] * 2
    assert status.lossy
