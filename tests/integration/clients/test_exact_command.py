"""`specinfer exact` against our HTTP service, whose speculator is right in some steps."""

import asyncio

from specinfer.openai_api.comparison import exit_code
from specinfer.openai_api.completion import Question
from specinfer.openai_api.exact import PROMPTS, check, sides
from specinfer.openai_api.server import ApiServer
from tests.support.network.http_service import http_service
from tests.support.oracle import first
from tests.support.system import ScriptedDrafter, running_system


async def test_our_own_service_passes(redis_url: str) -> None:
    """Both single and in batches; the drafter must have been used."""
    drafter = ScriptedDrafter(first(2))
    async with running_system(redis_url, {"a": drafter}) as system, http_service(system.address) as http:
        plain, speculating = sides(
            await asyncio.to_thread(ApiServer.at, http.url), None, {"speculation": "off"}
        )
        questions = [Question(prompt, 12, t, seed=3) for prompt in PROMPTS[:4] for t in (0.0, 0.8)]
        requested = len(drafter.jobs)
        outcome = await asyncio.to_thread(check, plain, speculating, questions, 4)
        assert len(drafter.jobs) > requested
    assert exit_code(outcome, tie=0.0) == 0
    assert [one.tokens for one in outcome] == [12] * 8
    assert {one.kind for one in outcome} == {"greedy", "seeded"}
