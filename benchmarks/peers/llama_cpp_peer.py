"""llama.cpp on the task read from standard input: its own 4-bit weights, plain and prompt lookup, batch 1."""

import json
import sys
import time
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding


def main() -> None:
    task = json.load(sys.stdin)
    result = {
        "plain (Q4_1)": {"1": throughput(task)},
        "prompt lookup (Q4_1)": {"1": throughput(task, LlamaPromptLookupDecoding(num_pred_tokens=4))},
    }
    json.dump(result, sys.stdout)


def throughput(task: dict[str, Any], draft: Any = None) -> float:
    """Tokens per second, one prompt after another; the first prompt warms up."""
    llm = Llama(
        task["gguf"],
        n_ctx=2048,
        n_threads=task["threads"],
        logits_all=draft is not None,
        draft_model=draft,
        verbose=False,
    )
    seconds = []
    for prompt in task["prompts"][: task["few"] + 1]:
        llm.reset()
        started = time.perf_counter()
        for count, _ in enumerate(llm.generate(prompt, temp=0.0), 1):
            if count == task["new_tokens"]:
                break
        seconds.append(time.perf_counter() - started)
    return float(task["new_tokens"] * (len(seconds) - 1) / sum(seconds[1:]))


if __name__ == "__main__":
    main()
