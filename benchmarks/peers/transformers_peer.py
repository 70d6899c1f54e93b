"""`transformers` on the task read from standard input: plain and prompt lookup, batch 1, and prefill."""

import json
import statistics
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM


def main() -> None:
    task = json.load(sys.stdin)
    torch.set_num_threads(task["threads"])
    model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.bfloat16).eval()
    result = {
        "plain": {"1": throughput(model, task)},
        "prompt lookup": {"1": throughput(model, task, prompt_lookup_num_tokens=6)},
        "prefill_1024_ms": prefill(model, task["long_prompt"]),
    }
    json.dump(result, sys.stdout)


@torch.inference_mode()
def throughput(model: Any, task: dict[str, Any], **options: Any) -> float:
    """Tokens per second, one prompt after another; the first prompt warms up."""
    rates = []
    for prompt in task["prompts"][: task["few"] + 1]:
        started = time.perf_counter()
        model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=task["new_tokens"],
            min_new_tokens=task["new_tokens"],
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            **options,
        )
        rates.append(time.perf_counter() - started)
    return float(task["new_tokens"] * (len(rates) - 1) / sum(rates[1:]))


@torch.inference_mode()
def prefill(model: Any, prompt: list[int]) -> float:
    """Median milliseconds of reading one prompt."""
    tokens, times = torch.tensor([prompt]), []
    for _ in range(6):
        started = time.perf_counter()
        model(tokens, use_cache=True, logits_to_keep=1)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[1:])


if __name__ == "__main__":
    main()
