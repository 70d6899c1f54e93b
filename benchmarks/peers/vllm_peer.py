"""Measure vLLM for CPUs on the task read from standard input.

It decodes plainly or with n-gram speculation, by batch size.
"""

import os
import time
from collections.abc import Callable
from typing import Any

from measure import Task, answer_tasks, resident_mib

N_GRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    cores = ",".join(map(str, range(task["threads"])))
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": cores.replace(",", "-") if task["threads"] == 2 else cores}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from vllm import LLM

    n_gram = task.get("variant") == "n-gram"
    llm = LLM(
        task["model"],
        dtype="bfloat16",
        max_model_len=2048,
        max_num_seqs=max(task["batches"]),
        disable_log_stats=False,
        **({"speculative_config": N_GRAM} if n_gram else {}),
    )
    settings = f"bfloat16; threads on cores {cores}" + (f", {N_GRAM}" if n_gram else "")
    return lambda task: {task.get("variant") or "plain": {**run(llm, task), "settings": settings}}


def run(llm: Any, task: Task) -> dict[str, Any]:
    """Return tokens per second by batch size, and figures of single requests."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0, max_tokens=task["new_tokens"], ignore_eos=True)
    result: dict[str, Any] = {}
    for batch in task["batches"]:
        prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
        count = max(batch, task["few"] if batch == 1 else 2 * batch)
        llm.generate(prompts[:batch], sampling, use_tqdm=False)
        counters, memory = speculation(llm), resident_mib()
        outputs, started = [], time.perf_counter()
        # like the others, batch 1 leaves out the first prompt
        for start in range(batch == 1, count + (batch == 1), batch):
            outputs += llm.generate(prompts[start : start + batch], sampling, use_tqdm=False)
        result[str(batch)] = count * task["new_tokens"] / (time.perf_counter() - started)
        if batch == 1:
            result |= single(outputs, counters, speculation(llm)) | {
                "memory_growth_mib": resident_mib() - memory
            }
    return result


def speculation(llm: Any) -> dict[str, float]:
    """Return vLLM's counters of speculation."""
    names = {"num_drafts": "rounds", "num_draft_tokens": "proposed", "num_accepted_tokens": "accepted"}
    return {
        short: metric.value
        for metric in llm.get_metrics()
        for name, short in names.items()
        if metric.name == f"vllm:spec_decode_{name}"
    }


def single(outputs: list[Any], before: dict[str, float], after: dict[str, float]) -> dict[str, Any]:
    """Return latencies, outputs and, with speculation, the acceptance rate."""
    result: dict[str, Any] = {"outputs": [list(o.outputs[0].token_ids) for o in outputs]}
    stats = [o.metrics for o in outputs if o.metrics is not None]
    if stats:
        ordered = sorted(s.first_token_latency for s in stats)
        result["ttft_ms"] = 1000 * ordered[len(ordered) // 2]
        paces = sorted((s.last_token_ts - s.first_token_ts) / (s.num_generation_tokens - 1) for s in stats)
        result["tpot_ms"] = 1000 * paces[len(paces) // 2]
    tokens = sum(map(len, result["outputs"]))
    accepted = after.get("accepted", 0) - before.get("accepted", 0)
    proposed = after.get("proposed", 0) - before.get("proposed", 0)
    result["tokens_per_round"] = tokens / (tokens - accepted)
    return result | ({"acceptance_rate": accepted / proposed} if proposed else {})


if __name__ == "__main__":
    answer_tasks(load)
