"""Typical acceptance in a whole system: only requests that set it use it, and are marked lossy."""

import asyncio

from specinfer.drafters import DraftJob
from specinfer.tree import TokenTree, TreeBuilder
from tests.support.oracle import greedy
from tests.support.system import ScriptedDrafter, running_system
from tests.support.tiny_models import reference_logits, tiny_transformers

PROMPT = [5, 17, 3, 88, 41]


def second_best(job: DraftJob) -> TokenTree:
    """Draft the target's second most probable token."""
    logits = reference_logits(tiny_transformers("llama"), list(job.context))[-1]
    builder = TreeBuilder(job.context[-1])
    builder.propose_points(0, [int(logits.topk(2).indices[1])], [0.5])
    return builder.build()


async def test_only_requests_that_set_it_accept_plausible_tokens(redis_url: str) -> None:
    asks = {"sampling": {"temperature": 1.0, "typical_epsilon": 1e-6, "typical_delta": 1.0, "seed": 3}}
    async with running_system(redis_url, {"second": ScriptedDrafter(second_best)}) as system:
        typical, lossless, plain, careful = await asyncio.gather(
            system.generate(PROMPT, **asks),
            system.generate(PROMPT, temperature=1.0, seed=3),
            system.tokens(PROMPT, temperature=1.0, seed=3, speculation=3),
            system.generate(PROMPT, sampling={"temperature": 0.0, "typical_epsilon": 0.5}),
        )
    assert [t for reply in lossless for t in reply.token_ids] == plain
    assert [t for reply in careful for t in reply.token_ids] == greedy(PROMPT, 16)
    stats = [replies[-1].summary.stats for replies in (typical, lossless, careful)]
    assert [s.lossy for s in stats] == [True, False, False]
    assert stats[0].accepted == stats[0].drafted > 6, "every second best token is above 1e-6"
    assert stats[2].accepted == 0
