"""Measure the requests of `make bench` with `LLM` and with services.

Decoding is plain, or uses merged trees.
"""

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.load import Load, generate_all
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from specinfer.client import Answer, AsyncClient, acceptance_length
from specinfer.llm import LLM, RequestOutput, SamplingParams
from specinfer.v1 import generation_pb2

MODES = {"plain": "off", "tree": "tree"}


def measure_llm(
    llm: LLM, prompts: list[list[int]], batches: Sequence[int], few: int, new_tokens: int
) -> dict[str, dict[str, Any]]:
    """Return tokens per second by mode and batch size.

    With batch 1, add the figures of single requests.
    """
    modes: dict[str, dict[str, Any]] = {}
    for mode, speculation in MODES.items():
        params = SamplingParams(
            temperature=0, max_tokens=new_tokens, ignore_eos=True, speculation=speculation
        )
        result: dict[str, Any] = {}
        for batch in batches:
            first = int(batch == 1)  # like the peers, batch 1 leaves out the first prompt
            count = max(batch, few if batch == 1 else 2 * batch)
            llm.generate(prompts[:batch], params, use_tqdm=False)
            answers, started = list[RequestOutput](), time.perf_counter()
            for start in range(first, first + count, batch):
                answers += llm.generate(prompts[start : start + batch], params, use_tqdm=False)
            result[str(batch)] = count * new_tokens / (time.perf_counter() - started)
            if batch == 1:
                result |= _of_outputs(answers)
        modes[mode] = result
    return modes


def _of_outputs(answers: Sequence[RequestOutput]) -> dict[str, Any]:
    metrics = [answer.metrics for answer in answers if answer.metrics is not None]
    counts = [metric.speculative_decoding for metric in metrics]
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    paces = [
        (metric.total_seconds - metric.first_token_seconds) / (len(output) - 1)
        for metric, output in zip(metrics, outputs, strict=True)
    ]
    accepted, drafted = (sum(getattr(metric, name) for metric in counts) for name in ("accepted", "drafted"))
    return {
        "ttft_ms": 1000 * statistics.median(metric.first_token_seconds for metric in metrics),
        "tpot_ms": 1000 * statistics.median(paces),
        "tokens_per_round": acceptance_length(sum(metric.steps for metric in counts), accepted),
        **({"acceptance_rate": accepted / drafted} if drafted else {}),
    }


def measure_services(
    prompts: list[list[int]], batches: Sequence[int], few: int, new_tokens: int, weights: str
) -> dict[str, dict[str, Any]]:
    """Return tokens per second by mode and batch size.

    With batch 1, add the figures of single requests.
    """
    options = LocalOptions(gateway={"max-batch": str(max(batches))}, verifier={"weights": weights})
    with LocalSystem(options) as system:
        return asyncio.run(_measure(system.address, prompts, batches, few, new_tokens))


async def _measure(
    address: str, prompts: list[list[int]], batches: Sequence[int], few: int, new_tokens: int
) -> dict[str, dict[str, Any]]:
    client = AsyncClient(address)
    modes: dict[str, dict[str, Any]] = {}
    try:
        for mode, name in MODES.items():
            speculation = getattr(generation_pb2, f"SPECULATION_{name.upper()}")
            result: dict[str, Any] = {}
            for batch in batches:
                first = int(batch == 1)  # like the peers, batch 1 leaves out the first prompt
                count = max(batch, few if batch == 1 else 2 * batch)
                load = Load(batch, speculation, new_tokens)
                await generate_all(client, prompts[:batch], load)
                measured = prompts[first : first + count]
                started = time.perf_counter()
                answers = await generate_all(client, measured, load)
                result[str(batch)] = count * new_tokens / (time.perf_counter() - started)
                if batch == 1:
                    result |= _of_answers(answers)
            modes[mode] = result
    finally:
        await client.close()
    return modes


def _of_answers(answers: Sequence[Answer]) -> dict[str, Any]:
    steps = sum(a.summary.stats.steps for a in answers)
    accepted = sum(a.summary.stats.accepted for a in answers)
    drafted = sum(a.summary.stats.drafted for a in answers)
    return {
        "ttft_ms": 1000 * statistics.median(a.ttft_s for a in answers),
        "tpot_ms": 1000 * statistics.median(a.tpot_s for a in answers),
        "tokens_per_round": acceptance_length(steps, accepted),
        **({"acceptance_rate": accepted / drafted} if drafted else {}),
    }
