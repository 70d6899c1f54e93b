"""Hidden states in a whole system: a speculator gets those of its context once.

Without a reader, none are computed.
"""

import asyncio
from collections.abc import Sequence

import numpy as np
import torch

from specinfer.drafters import DrafterDescription
from specinfer.model.batch import Segment
from tests.support.oracle import always, greedy
from tests.support.system import ScriptedDrafter, running_system
from tests.support.tiny_models import runner_of, tiny_transformers

PROMPT = [5, 17, 3, 88, 41, 60, 7, 9, 20, 33]
HIDDEN = 32


class Reader(ScriptedDrafter):
    """Drafter that records hidden states."""

    def __init__(self, layers: Sequence[int]) -> None:
        super().__init__(always)
        self.description = DrafterDescription(feature_layers=tuple(layers), feature_size=HIDDEN)

    def stretches(self, request: str = "") -> list[tuple[int, torch.Tensor]]:
        """Return the received states as (start, states) of parts without gaps."""
        parts: list[tuple[int, torch.Tensor]] = []
        for job in self.jobs:
            if job.features is None or not len(job.features.states) or request not in job.request_id:
                continue
            states = torch.from_numpy(np.array(job.features.states)).view(torch.bfloat16)
            if parts and parts[-1][0] + len(parts[-1][1]) == job.features.start:
                parts[-1] = parts[-1][0], torch.cat([parts[-1][1], states])
            else:
                parts.append((job.features.start, states))
        return parts

    def last_context(self, request: str = "") -> list[int]:
        return [list(job.context) for job in self.jobs if request in job.request_id][-1]


def assert_are_the_targets(start: int, states: torch.Tensor, context: list[int], layers: list[int]) -> None:
    runner = runner_of(tiny_transformers("llama"))
    _, (wanted,) = runner.forward_with_features([Segment(runner.open(), context)], layers)
    torch.testing.assert_close(
        states.float(), wanted[start : start + len(states)].float(), atol=0.05, rtol=0.02
    )


async def test_two_services_read_different_layers_of_two_requests(redis_url: str) -> None:
    low, high = Reader([1]), Reader([2, 3])
    async with running_system(
        redis_url, {"low": low, "high": high, "blind": ScriptedDrafter(always)}
    ) as system:
        prompts = {"one": PROMPT, "two": PROMPT[::-1][:6]}
        texts = await asyncio.gather(
            *(system.tokens(prompt, request_id=name) for name, prompt in prompts.items())
        )
        assert texts == [greedy(prompt, 16) for prompt in prompts.values()]
    for reader, layers in ((low, [1]), (high, [2, 3])):
        for name in prompts:
            (start, states), *more = reader.stretches(name)
            context = reader.last_context(name)
            assert (start, [at for at, _ in more]) == (0, [])
            assert len(states) == len(context) - 1, "the last token's are not computed yet"
            assert_are_the_targets(0, states, context, layers)


async def test_states_of_cached_and_of_chunked_prompts(redis_url: str) -> None:
    """The second request shares cached blocks of the first; prompts are read in chunks."""
    reader, prompt = Reader([1, 3]), [3 + i % 90 for i in range(100)]
    async with running_system(redis_url, {"reader": reader}, prefill_chunk=32) as system:
        await system.tokens(prompt, request_id="one", max_new_tokens=12)
        await system.tokens([*prompt, 50], request_id="two", max_new_tokens=12)
        assert system.verifier.runner.cache.pool.shared_tokens >= 48
    for name in ("one", "two"):
        ((start, states),) = reader.stretches(name)
        assert (start, len(states)) == (0, len(reader.last_context(name)) - 1)
        assert_are_the_targets(0, states, reader.last_context(name), [1, 3])


async def test_states_of_tokens_read_before_they_were_requested_are_missing(redis_url: str) -> None:
    reader, prompt = Reader([2]), [3 + i % 90 for i in range(40)]
    async with running_system(redis_url, {"reader": reader}) as system:
        runner = system.verifier.runner
        runner.forward([Segment(sequence := runner.open(), prompt)])  # before states are requested
        runner.cache.release(sequence)
        await system.tokens([*prompt, 50, 51], max_new_tokens=8)
    ((start, states),) = reader.stretches()
    assert start == 32, "the shared blocks have no states"
    assert start + len(states) == len(reader.last_context()) - 1
    assert_are_the_targets(start, states, reader.last_context(), [2])
