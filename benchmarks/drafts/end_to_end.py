"""Tokens per second through the real services: plain, sequences of 4 to 8, trees; by batch and source."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.drafts.prompts import Prompt
from benchmarks.load import Load, generate_all, sustained
from specinfer.cli.client import Answer, GatewayClient, acceptance_length
from specinfer.cli.local import LocalOptions, LocalSystem
from specinfer.v1 import generation_pb2

SEQUENCES = range(4, 9)
FIRST_TOKENS = 24
"""Of one batch, before the clock starts."""
Speculation = generation_pb2.Speculation


def end_to_end(
    prompts: Sequence[Prompt],
    batches: Sequence[int],
    temperature: float,
    new_tokens: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Per mode and batch: tokens per second while the batch is full, and by source.

    The machine's speed drifts, so trees stand between two runs of plain decoding at every batch size.
    """
    found: dict[str, dict[str, Any]] = {}
    for length in SEQUENCES:
        modes = {f"sequence of {length}": Speculation.SPECULATION_SEQUENCE}
        if length == SEQUENCES[0]:
            modes = {
                "plain": Speculation.SPECULATION_OFF,
                "tree": Speculation.SPECULATION_TREE,
                "plain again": Speculation.SPECULATION_OFF,
                **modes,
            }
        flags = {"max-batch": str(max(batches)), "sequence-length": str(length)}
        with LocalSystem(LocalOptions(gateway=flags)) as system:
            asyncio.run(_warm_up(system.address, prompts, max(batches)))
            for batch in batches:
                for mode, speculation in modes.items():
                    say(f"{mode}, batch {batch}")
                    run = _run(system.address, prompts, batch, speculation, temperature, new_tokens)
                    found.setdefault(mode, {})[str(batch)] = asyncio.run(run)
    return found


async def _warm_up(address: str, prompts: Sequence[Prompt], batch: int) -> None:
    """Reads all prompts once, so that every mode finds them in the verifier's cache."""
    client = GatewayClient(address)
    try:
        tokens = [prompt.tokens for prompt in prompts]
        await generate_all(client, tokens, Load(batch, Speculation.SPECULATION_OFF, 1))
    finally:
        await client.close()


async def _run(
    address: str,
    prompts: Sequence[Prompt],
    batch: int,
    speculation: generation_pb2.Speculation,
    temperature: float,
    new_tokens: int,
) -> dict[str, Any]:
    client = GatewayClient(address)
    tokens = [prompt.tokens for prompt in prompts]
    try:
        first = Load(batch, speculation, FIRST_TOKENS, temperature)
        await generate_all(client, tokens[:batch], first)
        answers, speed = await sustained(client, tokens, replace(first, new_tokens=new_tokens))
    finally:
        await client.close()
    return {
        "tokens_per_second": speed,
        "acceptance_length": _length(answers),
        "by_source": {
            source: _of_source([a for p, a in zip(prompts, answers, strict=True) if p.source == source])
            for source in dict.fromkeys(p.source for p in prompts)
        },
    }


def _of_source(answers: Sequence[Answer]) -> dict[str, float]:
    """A request's own pace, its prompt included: at batch 1 the reciprocal of its time."""
    seconds = sum(a.ttft_s + a.tpot_s * (len(a.token_ids) - 1) for a in answers)
    return {
        "tokens_per_second": sum(len(a.token_ids) for a in answers) / seconds,
        "acceptance_length": _length(answers),
    }


def _length(answers: Sequence[Answer]) -> float:
    steps = sum(a.summary.stats.steps for a in answers)
    return acceptance_length(steps, sum(a.summary.stats.accepted for a in answers))
