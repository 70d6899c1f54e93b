"""Measure a gateway under load, one function per question."""

import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.serving.steps import FixedStep, added_ms, slope, spread
from benchmarks.serving.streams import Order, StreamOutcome
from benchmarks.serving.system import GATEWAY, GATEWAY_WITHOUT_STORE, ServingSystem, Setup
from benchmarks.serving.usage import MemoryWatch, cpu_seconds, resident_mib
from specinfer.errors import InvalidInputError
from specinfer.service.api_keys import make_key, write_keys

FEW, MANY = 5, 900
"""Requests of each modest caller and of the greedy one, where fairness is measured."""
_MODEST_CALLERS = 9
_HEAD_START_S = 0.5
"""By which the greedy caller's requests are in the queue before the others come."""
STORE_BATCH = 16


async def by_batch(setup: Setup, batches: Sequence[int], new_tokens: int) -> dict[str, dict[str, Any]]:
    """Measure what the gateway adds to a step, and its processor time per token, by requests at once."""
    found: dict[str, dict[str, Any]] = {}
    async with ServingSystem(replace(setup, max_batch=max(batches))) as system:
        await system.run([Order(1, 8)])
        for batch in batches:
            first, cpu_s = len(system.steps()), cpu_seconds(system.gateway_pid)
            (outcomes,) = await system.run([Order(batch, new_tokens)])
            cpu_s = cpu_seconds(system.gateway_pid) - cpu_s
            found[str(batch)] = {
                "added_ms": added_ms(system.steps(first), batch),
                "cpu_ms_per_token": 1000 * cpu_s / (batch * new_tokens),
                "failed": _failed(outcomes),
            }
    return found


async def crowd(setup: Setup, streams: int, new_tokens: int) -> dict[str, Any]:
    """Times to the first token with so many streams at once, and the memory that a stream takes.

    Memory is the slope over a quarter of the streams, half and all, each on a new gateway: one that has
    had more does not give all of it back.
    """
    sizes = sorted({max(1, streams // 4), max(2, streams // 2), streams})
    grown_mib: list[float] = []
    for size in sizes:
        async with ServingSystem(setup) as system:
            await system.run([Order(1, 8)])
            first, before = len(system.steps()), resident_mib(system.gateway_pid)
            (outcomes,), watch = await _watched(system, [Order(size, new_tokens)], 0.1)
            grown_mib.append(max(watch.mib) - before)
            steps = system.steps(first)
    return {
        "streams": streams,
        "max_batch": setup.max_batch,
        "ttft_s": _ttft(outcomes),
        "added_ms": added_ms(steps, min(streams, setup.max_batch)),
        "grown_mib": dict(zip(map(str, sizes), grown_mib, strict=True)),
        "kib_per_stream": 1024 * slope(sizes, grown_mib),
        "failed": _failed(outcomes),
    }


async def store_share(setup: Setup, new_tokens: int, turns: int) -> dict[str, Any]:
    """Measure how much shorter a step at batch 16 is if nothing is written to Redis; both ways in turns.

    The gateway's processor time tells the same with less noise, and from above: it writes while the next
    pass is under way, so a step is longer by that time at most.
    """
    steps: dict[str, list[StoreTurn]] = {GATEWAY: [], GATEWAY_WITHOUT_STORE: []}
    for _ in range(turns):
        for module, found in steps.items():
            async with ServingSystem(replace(setup, module=module, max_batch=STORE_BATCH)) as system:
                found.append(await _store_turn(system, new_tokens))
    pairs = list(zip(*steps.values(), strict=True))
    shares = [1 - without.step_ms / with_it.step_ms for with_it, without in pairs]
    cpu = [(with_it.cpu_ms - without.cpu_ms) / with_it.step_ms for with_it, without in pairs]
    return {
        "batch": STORE_BATCH,
        "with": [turn._asdict() for turn in steps[GATEWAY]],
        "without": [turn._asdict() for turn in steps[GATEWAY_WITHOUT_STORE]],
        "share": statistics.median(shares),
        "shares": shares,
        "cpu_share": statistics.median(cpu),
        "cpu_shares": cpu,
    }


class StoreTurn(NamedTuple):
    """One gateway's steps: their median, and its processor time for each."""

    step_ms: float
    cpu_ms: float


async def _store_turn(system: ServingSystem, new_tokens: int) -> StoreTurn:
    await system.run([Order(STORE_BATCH, 8)])
    first, cpu_s = len(system.steps()), cpu_seconds(system.gateway_pid)
    await system.run([Order(STORE_BATCH, new_tokens)])
    steps, cpu_s = system.steps(first), cpu_seconds(system.gateway_pid) - cpu_s
    return StoreTurn(_median_step_ms(steps, STORE_BATCH), 1000 * cpu_s / len(steps))


async def fairness(setup: Setup, new_tokens: int, with_keys: bool) -> dict[str, Any]:
    """Measure how long requests of a caller with many and of callers with few wait for their first token.

    Args:
        with_keys: each caller has an API key; without keys all are one caller to the gateway.
    """
    with tempfile.TemporaryDirectory(prefix="specinfer-load-keys-") as directory:
        keys = [""] * (1 + _MODEST_CALLERS)
        if with_keys:
            setup, keys = with_callers(setup, Path(directory) / "keys", len(keys))
        orders = [
            Order(MANY, new_tokens, key=keys[0]),
            *(Order(FEW, new_tokens, key=key, delay_s=_HEAD_START_S) for key in keys[1:]),
        ]
        async with ServingSystem(setup) as system:
            greedy, *modest = await system.run(orders)
    few = [outcome for outcomes in modest for outcome in outcomes]
    return {
        "keys": len(keys) if with_keys else 0,
        "greedy": {"requests": len(greedy), "ttft_s": _ttft(greedy), "failed": _failed(greedy)},
        "modest": {"requests": len(few), "ttft_s": _ttft(few), "failed": _failed(few)},
    }


def with_callers(setup: Setup, file: Path, count: int) -> tuple[Setup, list[str]]:
    """A gateway that knows so many callers by a file that is written here, and their keys."""
    made = [make_key(f"caller-{number}") for number in range(count)]
    write_keys(file, [key for _, key in made])
    return replace(setup, flags={**setup.flags, "api-keys": str(file)}), [secret for secret, _ in made]


async def soak(setup: Setup, streams: int, new_tokens: int, seconds: float) -> dict[str, Any]:
    """The gateway's memory over time with so many streams, each begun again when it ends."""
    async with ServingSystem(setup) as system:
        orders = [Order(streams, new_tokens, seconds=seconds)]
        (outcomes,), watch = await _watched(system, orders, max(0.2, seconds / 400))
    return {
        "minutes": seconds / 60,
        "streams": streams,
        "requests": len(outcomes),
        "failed": _failed(outcomes),
        "errors": dict(Counter(outcome.error for outcome in outcomes if outcome.error).most_common(10)),
        "mib": [round(value, 1) for value in watch.mib],
        "mib_per_hour": watch.mib_per_hour(),
    }


async def _watched(
    system: ServingSystem, orders: Sequence[Order], every_s: float
) -> tuple[list[list[StreamOutcome]], MemoryWatch]:
    watch = MemoryWatch(system.gateway_pid, every_s)
    task = asyncio.create_task(watch.run())
    try:
        return await system.run(orders), watch
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _median_step_ms(steps: Sequence[FixedStep], batch: int) -> float:
    """From one message to the next."""
    found = [step for step in steps if step.batch == batch and step.plain and step.gap_s]
    if not found:
        raise InvalidInputError("new_tokens", len(steps), f"too few for a step of {batch} requests")
    gap = statistics.median(step.gap_s for step in found)
    return 1000 * (gap + statistics.median(step.pass_s for step in found))


def _ttft(outcomes: Sequence[StreamOutcome]) -> dict[str, float]:
    return spread([outcome.ttft_s for outcome in outcomes if not outcome.error])


def _failed(outcomes: Sequence[StreamOutcome]) -> int:
    return sum(bool(outcome.error) for outcome in outcomes)
