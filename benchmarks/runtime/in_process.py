"""`LLM`, with its planner and default speculators, on the same requests: plain decoding and merged trees."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from specinfer.client import acceptance_length
from specinfer.llm import LLM, RequestOutput, SamplingParams

MODES = {"plain": "off", "tree": "tree"}


def measure(
    llm: LLM, prompts: list[list[int]], batches: Sequence[int], few: int, new_tokens: int
) -> dict[str, dict[str, Any]]:
    """Per mode: tokens per second by batch size, and what single requests look like."""
    found: dict[str, dict[str, Any]] = {}
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
                result |= _single(answers)
        found[mode] = result
    return found


def _single(answers: Sequence[RequestOutput]) -> dict[str, Any]:
    metrics = [answer.metrics for answer in answers if answer.metrics is not None]
    counts = [each.speculative_decoding for each in metrics]
    outputs = [list(answer.outputs[0].token_ids) for answer in answers]
    paces = [
        (each.total_seconds - each.first_token_seconds) / (len(output) - 1)
        for each, output in zip(metrics, outputs, strict=True)
    ]
    accepted, drafted = (sum(getattr(each, name) for each in counts) for name in ("accepted", "drafted"))
    return {
        "ttft_ms": 1000 * statistics.median(each.first_token_seconds for each in metrics),
        "tpot_ms": 1000 * statistics.median(paces),
        "tokens_per_round": acceptance_length(sum(each.steps for each in counts), accepted),
        **({"acceptance_rate": accepted / drafted} if drafted else {}),
        "outputs": outputs,
    }
