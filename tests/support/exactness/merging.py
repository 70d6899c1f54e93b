"""Methods whose trees are merged."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from specinfer.drafters import Drafter
from tests.support.oracle import greedy
from tests.support.system import running_system

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]


async def assert_all_are_accepted(redis_url: str, drafters: Mapping[str, Drafter], **settings: Any) -> None:
    """Each of these drafters gets tokens accepted in texts that repeat themselves, which are the target's."""
    accepted: Counter[str] = Counter()
    async with running_system(redis_url, drafters, **settings) as system:
        for prompt in (PROMPT * 3, PROMPT[::-1] * 2, PROMPT):
            replies = await system.generate(prompt, max_new_tokens=40)
            assert [t for reply in replies for t in reply.token_ids] == greedy(prompt, 40)
            accepted.update({each.name: each.accepted for each in replies[-1].summary.stats.speculators})
    assert min(accepted[name] for name in drafters) > 0
