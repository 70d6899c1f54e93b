"""Run by vLLM's Python: print vLLM's greedy answers to the task on standard input, as JSON.

model            directory
prompts          lists of token ids
new_tokens       one number per prompt
speculative_config  None for plain decoding
end_process      process id to end before a second round of all prompts; 0: one round
"""

import contextlib
import json
import os
import sys
from typing import Any

COUNTERS = {"num_drafts": "rounds", "num_draft_tokens": "proposed", "num_accepted_tokens": "accepted"}


def main() -> None:
    task = json.load(sys.stdin)
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    os.environ |= {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    with contextlib.redirect_stdout(sys.stderr):
        result = run(task)
    json.dump(result, sys.stdout)


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Return answers, vLLM's counters and the pool's counters after each round."""
    from vllm import LLM

    llm = LLM(
        task["model"],
        dtype="float32",
        max_model_len=512,
        max_num_seqs=len(task["prompts"]),
        enforce_eager=True,
        disable_log_stats=False,
        speculative_config=task["speculative_config"],
    )
    times = [ask(llm, task)]
    if task["end_process"]:
        os.kill(task["end_process"], 9)
        times.append(ask(llm, task))
    return {"times": times}


def ask(llm: Any, task: dict[str, Any]) -> dict[str, Any]:
    """Return the answers and the counters of one batch of all prompts."""
    from vllm import SamplingParams

    prompts = [{"prompt_token_ids": prompt} for prompt in task["prompts"]]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in task["new_tokens"]]
    outputs = llm.generate(prompts, params, use_tqdm=False)
    counters = {
        short: metric.value
        for metric in llm.get_metrics()
        for name, short in COUNTERS.items()
        if metric.name == f"vllm:spec_decode_{name}"
    }
    return {"outputs": [list(output.outputs[0].token_ids) for output in outputs], "vllm": counters} | pool(
        llm
    )


def pool(llm: Any) -> dict[str, Any]:
    """Return the counters of the proposer class that vLLM loaded."""
    worker = llm.llm_engine.model_executor.driver_worker.worker
    drafter = getattr(worker.model_runner, "drafter", None)
    if drafter is None:
        return {}
    return {"pool": dict(drafter.counters), "services": dict(drafter.outcomes)}


if __name__ == "__main__":
    main()
