"""vLLM for CPUs on the task read from standard input: plain and n-gram speculation, by batch size."""

import contextlib
import json
import os
import sys
import time
from typing import Any


def main() -> None:
    task = json.load(sys.stdin)
    cores = ",".join(map(str, range(task["threads"])))
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": cores.replace(",", "-") if task["threads"] == 2 else cores}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    with contextlib.redirect_stdout(sys.stderr):
        if task.get("variant") == "n-gram":
            options = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}
            result = {"n-gram": run(task, speculative_config=options)}
        else:
            result = {"plain": run(task)}
    json.dump(result, sys.stdout)


def run(task: dict[str, Any], **options: Any) -> dict[str, float]:
    """Tokens per second by batch size."""
    from vllm import LLM, SamplingParams

    llm = LLM(
        task["model"], dtype="bfloat16", max_model_len=2048, max_num_seqs=max(task["batches"]), **options
    )
    sampling = SamplingParams(temperature=0, max_tokens=task["new_tokens"], ignore_eos=True)
    rates = {}
    for batch in task["batches"]:
        prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
        count = max(batch, task["few"] if batch == 1 else 2 * batch)
        llm.generate(prompts[:batch], sampling, use_tqdm=False)
        started = time.perf_counter()
        for start in range(0, count, batch):
            llm.generate(prompts[start : start + batch], sampling, use_tqdm=False)
        rates[str(batch)] = count * task["new_tokens"] / (time.perf_counter() - started)
    return rates


if __name__ == "__main__":
    main()
