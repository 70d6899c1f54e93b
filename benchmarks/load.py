"""Requests to a running system, so many at a time."""

import asyncio
from collections.abc import Sequence

from specinfer.cli.client import Answer, GatewayClient
from specinfer.v1 import common_pb2, generation_pb2


async def generate_all(
    client: GatewayClient,
    prompts: Sequence[Sequence[int]],
    batch: int,
    speculation: generation_pb2.Speculation,
    new_tokens: int,
    temperature: float = 0.0,
) -> list[Answer]:
    """Answers of exactly `new_tokens` tokens to prompts of token ids, in their order."""
    slots = asyncio.Semaphore(batch)

    async def one(prompt: Sequence[int]) -> Answer:
        async with slots:
            return await client.generate(
                generation_pb2.GenerateRequest(
                    tokens=generation_pb2.TokenIds(ids=prompt),
                    max_new_tokens=new_tokens,
                    sampling=common_pb2.SamplingParams(temperature=temperature, seed=1),
                    speculation=speculation,
                    ignore_eos=True,
                )
            )

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))
