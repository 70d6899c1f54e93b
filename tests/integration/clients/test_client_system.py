"""The client and a whole system, connected by a proxy that breaks connections."""

import random

from specinfer.client import AsyncClient, Patience, Retry
from tests.support.network.cutting_proxy import cutting_proxy
from tests.support.oracle import first, greedy
from tests.support.system import ScriptedDrafter, request_for, running_system, text_of

PATIENCE = Patience(patience_s=30.0, first_wait_s=0.01, longest_wait_s=0.1)
PROMPT = [5, 17, 3, 88]


async def test_connections_that_break_at_any_byte_change_nothing(redis_url: str) -> None:
    """A request that is sent again with its id does not run again."""
    points = random.Random(5)
    cuts = [points.randrange(20, 2500) for _ in range(20)]
    expected = greedy(PROMPT, 48)
    retries: list[Retry] = []
    async with (
        running_system(redis_url, {"a": ScriptedDrafter(first(1))}, linger_seconds=10.0) as system,
        cutting_proxy(system.address, cuts) as address,
        AsyncClient(address, patience=PATIENCE, on_retry=retries.append) as client,
    ):
        number = 0
        while cuts:
            request = request_for(
                PROMPT, max_new_tokens=48, request_id=f"r{number}", stop_strings=["a\u00a7"]
            )
            answer = await client.generate(request)
            assert (answer.token_ids, answer.text) == (expected, text_of(expected))
            again = await client.generate(request)
            assert (again.token_ids, again.text, again.summary) == (expected, answer.text, answer.summary)
            number += 1
        assert (await client.status()).new_tokens == 48 * number
    assert any(retry.call.attach_from for retry in retries)
