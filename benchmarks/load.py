"""Send requests to a running system, a fixed number at once."""

import asyncio
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.client import Answer, AsyncClient
from specinfer.v1 import common_pb2, generation_pb2


@dataclass(frozen=True, slots=True)
class Load:
    """Parameters of requests; `batch` requests run at once."""

    batch: int
    speculation: generation_pb2.Speculation
    new_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = True
    """True if answers continue after end-of-sequence, for equal lengths."""
    no_training: bool = False
    """True if speculators must not learn from the requests."""


async def generate_all(
    client: AsyncClient,
    prompts: Sequence[Sequence[int]],
    load: Load,
    drained: asyncio.Event | None = None,
) -> list[Answer]:
    """Return answers to prompts of token ids, in order.

    `drained` is set when fewer than `load.batch` requests are left.
    """
    slots = asyncio.Semaphore(load.batch)
    ended = 0

    async def one(prompt: Sequence[int]) -> Answer:
        nonlocal ended
        async with slots:
            answer = await client.generate(
                generation_pb2.GenerateRequest(
                    tokens=generation_pb2.TokenIds(ids=prompt),
                    max_new_tokens=load.new_tokens,
                    sampling=common_pb2.SamplingParams(temperature=load.temperature, seed=_seed(prompt)),
                    speculation=load.speculation,
                    ignore_eos=load.ignore_eos,
                    no_training=load.no_training,
                )
            )
            ended += 1
            if drained is not None and ended > len(prompts) - load.batch:
                drained.set()
            return answer

    return list(await asyncio.gather(*(one(prompt) for prompt in prompts)))


def _seed(prompt: Sequence[int]) -> int:
    """Return a seed that depends only on the prompt."""
    return zlib.crc32(repr(list(prompt)).encode())


async def sustained(
    client: AsyncClient, prompts: Sequence[Sequence[int]], load: Load
) -> tuple[list[Answer], float]:
    """Return answers, and tokens per second while `batch` requests were running.

    The time when fewer than `batch` requests are left does not count. Needs at least `batch` prompts.
    """
    drained = asyncio.Event()
    before, started = (await client.status()).new_tokens, time.perf_counter()
    work = generate_all(client, prompts, load, drained)
    answers, empty = asyncio.create_task(work), asyncio.create_task(drained.wait())
    await asyncio.wait([answers, empty], return_when=asyncio.FIRST_COMPLETED)
    empty.cancel()
    seconds = time.perf_counter() - started
    tokens = (await client.status()).new_tokens - before
    return await answers, tokens / seconds
