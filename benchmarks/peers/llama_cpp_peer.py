"""Measure llama.cpp on the task read from standard input.

It decodes at batch 1 with the GGUF file's 4-bit weights, plain and with prompt lookup.
"""

from collections.abc import Callable
from typing import Any

from llama_cpp import Llama
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from measure import Recorder, Task, answer_tasks


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    lookup = CountingLookup()
    kinds: dict[str, tuple[CountingLlama, CountingLookup | None]] = {
        "plain (Q4_1)": (model(task, None), None),
        "prompt lookup (Q4_1)": (model(task, lookup), lookup),
    }
    return lambda task: {kind: measure(llm, task, draft) for kind, (llm, draft) in kinds.items()}


class CountingLookup(LlamaPromptLookupDecoding):
    """Prompt lookup that counts proposed tokens."""

    def __init__(self) -> None:
        super().__init__(num_pred_tokens=4)
        self.proposed = 0

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        draft = super().__call__(*arguments, **options)
        self.proposed += len(draft)
        return draft


class CountingLlama(Llama):
    """Model that counts passes."""

    passes = 0

    def eval(self, tokens: Any) -> None:
        self.passes += 1
        super().eval(tokens)


def model(task: Task, draft: CountingLookup | None) -> CountingLlama:
    return CountingLlama(
        task["gguf"],
        n_ctx=2048,
        n_threads=task["threads"],
        n_threads_batch=task["threads"],
        logits_all=draft is not None,
        draft_model=draft,
        verbose=False,
    )


def measure(llm: CountingLlama, task: Task, draft: CountingLookup | None) -> dict[str, Any]:
    """Measure one prompt after another; the first warms up."""
    recorder, proposed = Recorder(), draft.proposed if draft else 0
    for prompt in task["prompts"][: task["few"] + 1]:
        llm.reset()
        before, output = llm.passes, []
        recorder.begin()
        for token in llm.generate(prompt, temp=0.0):
            recorder.tick()
            output.append(token)
            if len(output) == task["new_tokens"]:
                break
        recorder.end(output, llm.passes - before)
    settings = f"the GGUF file's blocks of 4 bits; {task['threads']} threads" + (
        ", num_pred_tokens=4" if draft else ""
    )
    figures = recorder.report(draft.proposed - proposed if draft else 0)
    return {"1": recorder.rate(task["new_tokens"]), **figures, "settings": settings}


if __name__ == "__main__":
    answer_tasks(load)
