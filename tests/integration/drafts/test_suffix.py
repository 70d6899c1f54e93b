"""Suffix decoding through the real services: alone, with finished requests, and merged with other methods."""

import asyncio

import pytest

from specinfer.drafters import DrafterDescription
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.recycling import RecyclingDrafter
from specinfer.drafters.suffix import SuffixDrafter
from tests.support.exactness.markov import assert_points_follow
from tests.support.exactness.merging import assert_all_are_accepted
from tests.support.oracle import greedy
from tests.support.system import VOCABULARY, running_system, until

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]


async def test_finished_requests_are_drafted_from_and_change_nothing(redis_url: str) -> None:
    drafter = SuffixDrafter(learn=True)
    async with running_system(redis_url, {"suffix": drafter}) as system:
        prompts = [PROMPT, PROMPT[3:], PROMPT[::-1]]
        found = await asyncio.gather(*(system.tokens(prompt) for prompt in prompts))
        assert found == [greedy(prompt, 16) for prompt in prompts]
        await until(lambda: not drafter._own)
        replies = await system.generate(PROMPT)
        assert [t for reply in replies for t in reply.token_ids] == greedy(PROMPT, 16)
        assert replies[-1].summary.stats.steps <= 5, "the whole answer is known, four tokens a step"
        with_seed = {"temperature": 1.0, "seed": 3}
        plain = await system.tokens(PROMPT, speculation=3, **with_seed)
        assert await system.tokens(PROMPT, **with_seed) == plain


async def test_merged_with_other_methods_all_are_accepted_and_change_nothing(redis_url: str) -> None:
    reads = DrafterDescription(vocab_size=VOCABULARY, target_top_k=4)
    drafters = {
        "ngram": NgramDrafter(1, 4, 3),
        "suffix": SuffixDrafter(),
        "recycling": RecyclingDrafter(reads),
    }
    await assert_all_are_accepted(redis_url, drafters)


@pytest.mark.statistical
async def test_its_tokens_follow_the_target(redis_url: str) -> None:
    await assert_points_follow(redis_url, {"suffix": SuffixDrafter(learn=True)}, 4)
