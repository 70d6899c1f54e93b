"""Requests through gRPC servers and Redis: tokens, hand-computed steps, and fields of messages."""

import asyncio
from collections.abc import Sequence

import pytest

from specinfer.drafters import DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.errors import UnavailableError
from specinfer.statuses import FinishReason
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2
from specinfer.verification.engine import EngineLimits
from tests.support.network.scrape import Scrape
from tests.support.oracle import always, default_target, first, greedy, never
from tests.support.system import EOS, ScriptedDrafter, ascii_tokenizer, running_system, text_of, until
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


@pytest.mark.parametrize("adaptive", [True, False])
async def test_drafters_get_the_probability_below_which_nodes_are_cut(redis_url: str, adaptive: bool) -> None:
    """The planner sends the probability below which it will cut nodes; without it: 0."""
    drafter = ScriptedDrafter(always)
    async with running_system(redis_url, {"scripted": drafter}, adaptive=adaptive) as system:
        assert await system.tokens(PROMPTS[0], max_new_tokens=24) == greedy(PROMPTS[0], 24)
    drafted = [job.limits.min_path_probability for job in drafter.jobs if not job.limits.empty]
    assert drafted
    assert all((0 < threshold < 1) if adaptive else threshold == 0 for threshold in drafted)


async def test_drafters_share_the_noise_seed_but_not_the_draw_seed(redis_url: str) -> None:
    """Draws of two services for one request must be independent."""
    drafters = {name: ScriptedDrafter(always) for name in ("a", "b")}
    async with running_system(redis_url, drafters) as system:
        await system.tokens(PROMPTS[0], temperature=0.7, seed=5)
    seen = [(job.sampling.seed, job.draw_seed) for drafter in drafters.values() for job in drafter.jobs]
    assert {noise for noise, _ in seen} == {5}
    assert len({draws for _, draws in seen}) == 2


async def test_no_speculator_and_speculation_off_take_one_step_per_token(redis_url: str) -> None:
    drafter = ScriptedDrafter(always)
    async with running_system(redis_url, {"scripted": drafter}) as system:
        replies = await system.generate(PROMPTS[0], speculation=OFF)
    assert replies[-1].summary.stats.steps == 16
    assert not drafter.jobs
    async with running_system(redis_url) as system:
        replies = await system.generate(PROMPTS[0])
    assert replies[-1].summary.stats.steps == 16


@pytest.mark.parametrize("one_service", [False, True])
async def test_merged_trees_win_where_either_speculator_is_right(redis_url: str, one_service: bool) -> None:
    """One speculator is right at even positions, the other one at odd positions."""

    def right_at(parity: int) -> ScriptedDrafter:
        def script(job: DraftJob) -> TokenTree:
            return always(job) if len(job.context) % 2 == parity else never(job)

        return ScriptedDrafter(script)

    drafters = {"even": right_at(0), "odd": right_at(1)}
    async with running_system(redis_url, drafters, one_service=one_service) as system:
        replies = await system.generate(PROMPTS[0])
    stats = replies[-1].summary.stats
    assert stats.steps == 4
    # steps begin with 7, 12, 17 and 22 tokens; the last one drafts nothing
    assert {row.name: row.wins for row in stats.speculators} == {"even": 1, "odd": 2}


async def test_sequence_speculation_asks_for_one_branch(redis_url: str) -> None:
    drafter = ScriptedDrafter(always)
    async with running_system(redis_url, {"scripted": drafter}) as system:
        replies = await system.generate(PROMPTS[0], speculation=SEQUENCE)
    assert {job.limits.width for job in drafter.jobs} == {1}
    assert replies[-1].summary.stats.steps == 4  # chains of 3: 4 x 4


@pytest.mark.parametrize("chunk", [1, 7])
async def test_long_prompts_are_read_in_chunks_without_changing_the_answer(
    redis_url: str, chunk: int
) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}, prefill_chunk=chunk) as system:
        answers = await asyncio.gather(*(system.tokens(prompt) for prompt in PROMPTS))
    assert answers == [greedy(prompt, 16) for prompt in PROMPTS]


@pytest.mark.parametrize("extra", [1, 2, 15, 16, 17, 40])
async def test_a_cached_prompt_is_not_read_in_chunks(redis_url: str, extra: int) -> None:
    """It takes two steps, or as many as its new part has chunks."""
    known = [(7 * i) % 90 + 3 for i in range(200)]
    prompt = [*known, *known[:extra]]
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}, prefill_chunk=24) as system:
        await system.tokens(known, max_new_tokens=1)
        steps = system.forget_every(10**6)
        answer = await system.tokens(prompt, max_new_tokens=1)
    assert answer == greedy(prompt, 1)
    assert len(steps) <= 2 + (8 + extra) // 16, "200 tokens have twelve whole blocks"


async def test_more_requests_than_fit_into_a_batch(redis_url: str) -> None:
    prompts = [[i + 3, 2 * i + 5, 40 + i] for i in range(9)]
    async with running_system(
        redis_url, {"a": ScriptedDrafter(first(1))}, max_batch=2, kv_tokens=160
    ) as system:
        answers = await asyncio.gather(*(system.tokens(prompt, max_new_tokens=12) for prompt in prompts))
    assert answers == [greedy(prompt, 12) for prompt in prompts]


async def test_a_cache_that_overflows_preempts_and_changes_nothing(redis_url: str) -> None:
    model = tiny_transformers("llama")
    prompts = [[3 + i] * (5 + 7 * i) for i in range(6)]
    drafters = {"a": ScriptedDrafter(first(1))}
    async with running_system(redis_url, drafters, model=model, max_batch=6, kv_tokens=192) as system:
        requests = [
            system.generate(p, max_new_tokens=60, temperature=t, seed=1) for p in prompts for t in (0, 1)
        ]
        answers = await asyncio.gather(*requests)
        preempted = system.gateway.observer.metrics.steps.preemptions._value.get()
    assert preempted > 0
    tokens = [[t for r in replies for t in r.token_ids] for replies in answers]
    assert tokens[::2] == [greedy(prompt, 60) for prompt in prompts]
    async with running_system(redis_url, drafters) as roomy:
        again = [await roomy.tokens(p, max_new_tokens=60, temperature=1, seed=1) for p in prompts]
    assert tokens[1::2] == again, "a preempted request continues with the same random stream"


async def test_blocks_that_could_not_be_released_are_released_before_the_next_pass(redis_url: str) -> None:
    """`Release` failed once after a preemption; unreleased requests would fill the cache."""
    prompts = [[3 + i] * (5 + 7 * i) for i in range(6)]
    async with running_system(redis_url, max_batch=6, kv_tokens=192) as system:
        release, requested = system.loop.verifier.release, list[set[str]]()

        async def failing_once(names: Sequence[str]) -> None:
            if set(names) & system.loop.scheduler.states.keys():  # preempted, not ended
                requested.append(set(names))
                if len(requested) == 1:
                    raise UnavailableError("the verifier does not answer")
            await release(names)

        system.loop.verifier.release = failing_once  # type: ignore[method-assign]
        answers = await asyncio.gather(*(system.tokens(p, max_new_tokens=60) for p in prompts))
    assert answers == [greedy(prompt, 60) for prompt in prompts]
    assert requested[0] <= requested[1], "in the next attempt"


async def test_sampling_repeats_with_its_seed_whatever_the_batch(redis_url: str) -> None:
    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:

        async def run(prompt: list[int], seed: int) -> list[int]:
            return await system.tokens(prompt, temperature=0.9, seed=seed)

        alone = [await run(prompt, 7) for prompt in PROMPTS]
        together = await asyncio.gather(*(run(prompt, 7) for prompt in PROMPTS))
        other = await run(PROMPTS[0], 8)
    assert together == alone
    assert other != alone[0]


@pytest.mark.parametrize("acceptance", ["naive", "multi_step", "traversal"])
async def test_sampling_repeats_plain_decoding_token_for_token(redis_url: str, acceptance: str) -> None:
    """This holds for drafts that are points; with naive sampling for all drafts."""
    drafters = {"a": ScriptedDrafter(first(2))}
    async with running_system(redis_url, drafters, acceptance=acceptance) as system:
        for prompt in PROMPTS:
            plain = await system.tokens(prompt, temperature=0.8, seed=3, speculation=OFF)
            assert await system.tokens(prompt, temperature=0.8, seed=3) == plain


async def test_the_end_of_sequence_cuts_an_accepted_path(redis_url: str) -> None:
    """A stop token inside an accepted path drops the tokens after it."""
    expected = greedy(PROMPTS[0], 16)
    stop = expected[6]
    cut = expected[: expected.index(stop) + 1]
    async with running_system(redis_url, {"a": ScriptedDrafter(always)}) as system:
        replies = await system.generate(PROMPTS[0], stop_token_ids=[stop])
    assert [t for r in replies for t in r.token_ids] == cut
    assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_STOP_TOKEN
    assert replies[-1].summary.new_tokens == len(cut)
    assert "".join([r.text for r in replies]) == text_of(cut[:-1]), "the token that ends it is no text"


async def test_the_models_own_end_of_sequence_is_obeyed_unless_ignored(redis_url: str) -> None:
    prompt = _prompt_that_ends()
    async with running_system(redis_url, {"a": ScriptedDrafter(always)}) as system:
        ended = await system.tokens(prompt, ignore_eos=False)
        ignored = await system.tokens(prompt, ignore_eos=True)
    assert ended[-1] == EOS
    assert ignored[: len(ended)] == ended
    assert len(ignored) == 16


def _prompt_that_ends() -> list[int]:
    """Return a prompt whose greedy answer soon contains the end-of-sequence token."""
    for a in range(3, 97):
        for b in range(3, 97, 7):
            if EOS in greedy([a, b], 16)[1:12]:
                return [a, b]
    raise AssertionError("the tiny model never ends a sequence")


async def test_a_stop_string_ends_the_text_before_it_and_the_tokens_with_it(redis_url: str) -> None:
    expected = greedy(PROMPTS[0], 16)
    text = text_of(expected)
    stop = text[5:8]
    cut = text.index(stop)
    async with running_system(redis_url, {"a": ScriptedDrafter(always)}) as system:
        replies = await system.generate(PROMPTS[0], stop_strings=["no such text", stop])
        stored = await system.store.load(replies[-1].request_id)
    assert "".join(r.text for r in replies) == text[:cut]
    tokens = [t for r in replies for t in r.token_ids]
    assert text_of(tokens) == text[: cut + 3]
    assert stored is not None
    assert stored.tokens == tokens
    assert replies[-1].summary.finish_reason == generation_pb2.FINISH_REASON_STOP_STRING


async def test_text_and_chat_prompts_become_tokens(redis_url: str) -> None:
    tokenizer = ascii_tokenizer()
    async with running_system(redis_url) as system:
        from_text = [t for r in await system.generate([], text="hello") for t in r.token_ids]
        chat = generation_pb2.ChatMessages(messages=[generation_pb2.ChatMessage(role="user", content="hi")])
        from_chat = [t for r in await system.generate([], chat=chat) for t in r.token_ids]
    assert from_text == greedy(tokenizer.encode("hello"), 16)
    assert from_chat == greedy(tokenizer.encode("u:hi;a:"), 16)


async def test_logprobs_are_the_models_own(redis_url: str) -> None:
    import torch

    async with running_system(redis_url, {"a": ScriptedDrafter(first(2))}) as system:
        replies = await system.generate(PROMPTS[0], logprobs=True)
        without = await system.generate(PROMPTS[0])
    tokens = [t for r in replies for t in r.token_ids]
    with torch.inference_mode():
        logits = default_target()(torch.tensor([[*PROMPTS[0], *tokens]])).logits[0]
    rows = logits.log_softmax(-1)[len(PROMPTS[0]) - 1 : -1]
    expected = rows[torch.arange(len(tokens)), tokens].tolist()
    assert [p for r in replies for p in r.logprobs] == pytest.approx(expected, abs=1e-4)
    assert not any(r.logprobs for r in without)


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


async def test_a_higher_priority_is_admitted_first(redis_url: str) -> None:
    order: list[str] = []
    async with running_system(redis_url, max_batch=1) as system:
        release = system.hold()

        async def run(name: str, priority: int) -> None:
            await system.tokens(PROMPTS[0], priority=priority)
            order.append(name)

        busy = asyncio.create_task(run("first", 0))
        await until(lambda: system.loop.scheduler.running == 1)
        later = [asyncio.create_task(run("low", -1))]
        await until(lambda: system.loop.scheduler.waiting == 1)
        later.append(asyncio.create_task(run("high", 5)))
        await until(lambda: system.loop.scheduler.waiting == 2)
        release.set()
        await asyncio.gather(busy, *later)
    assert order == ["first", "high", "low"]


def _wide(job: DraftJob) -> TokenTree:
    """Draft the right token between two wrong siblings at every depth."""
    builder, node = TreeBuilder(job.context[-1]), 0
    for token in greedy(job.context, min(job.limits.depth, job.limits.nodes // 3)):
        nodes = builder.propose_points(node, [(token + 1) % 97, token, (token + 2) % 97], [0.3, 0.3, 0.3])
        node = nodes[1]
    return builder.build()


async def test_accepted_nodes_scattered_over_a_wide_tree(redis_url: str) -> None:
    """There are siblings between the accepted nodes, whose cache entries must be moved together."""
    async with running_system(redis_url, {"wide": ScriptedDrafter(_wide)}) as system:
        replies = await system.generate(PROMPTS[0], max_new_tokens=30)
    assert [t for r in replies for t in r.token_ids] == greedy(PROMPTS[0], 30)
    assert replies[-1].summary.stats.steps == 10  # budget 8 holds two levels of three: 10 x 3


async def test_a_windowed_cache_exceeds_the_models_positions_and_is_reported_as_lossy(redis_url: str) -> None:
    """Answers of 600 tokens, of a model with 128 positions, in a cache of 20 blocks."""
    model = tiny_transformers("llama", max_position_embeddings=128)
    async with running_system(
        redis_url,
        {"a": NgramDrafter(1)},
        model=model,
        prefill_chunk=16,
        kv_tokens=320,
        kv_window=48,
        engine_limits=EngineLimits(max_context_len=4096, max_step_tokens=64),
    ) as system:
        prompts = [[3 + i] * (1 + 30 * i) for i in range(2)]
        modes = (OFF, TREE)
        fields = {"max_new_tokens": 600}
        answers = await asyncio.gather(
            *(system.tokens(p, speculation=mode, **fields) for p in prompts for mode in modes)
        )
        status = await system.stub.Status(generation_pb2.StatusRequest())
        dropped = system.verifier.evicted_tokens
        counter = "verifier_window_dropped_tokens_total"
        await until(lambda: Scrape.of(system.registries["verifier"]).value(counter) == dropped)
        assert dropped > 4 * 400
    assert [len(answer) for answer in answers] == [600] * 4
    assert status.lossy
