"""Measure `transformers` on the task read from standard input.

It decodes plainly, assisted, and with prompt lookup, and reads a long prompt.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from measure import Recorder, Task, answer_tasks
from transformers import AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList
from transformers.generation.candidate_generator import (
    AssistedCandidateGenerator,
    PromptLookupCandidateGenerator,
)

ASSISTANT_LAYERS = 4
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    f"assisted (own first {ASSISTANT_LAYERS} layers)": {"assistant_early_exit": ASSISTANT_LAYERS},
    "prompt lookup": {"prompt_lookup_num_tokens": 6},
}


def load(task: Task) -> Callable[[Task], dict[str, Any]]:
    torch.set_num_threads(task["threads"])
    model = AutoModelForCausalLM.from_pretrained(task["model"], dtype=torch.bfloat16).eval()
    proposed = Proposed()

    def run(task: Task) -> dict[str, Any]:
        result = {name: measure(model, task, proposed, **options) for name, options in VARIANTS.items()}
        return {**result, "prefill_1024_ms": prefill(model, task["long_prompt"])}

    return run


class Proposed:
    """Count proposed tokens, which `generate` does not report."""

    def __init__(self) -> None:
        self.tokens = 0
        for generator in (AssistedCandidateGenerator, PromptLookupCandidateGenerator):
            self._count(generator)

    def _count(self, generator: Any) -> None:
        inner = generator.get_candidates

        def get_candidates(this: Any, input_ids: torch.Tensor, *rest: Any, **more: Any) -> Any:
            candidates = inner(this, input_ids, *rest, **more)
            self.tokens += candidates[0].shape[1] - input_ids.shape[1]
            return candidates

        generator.get_candidates = get_candidates


class EveryRound(StoppingCriteria):
    """Record every round of generation; never stop."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self._recorder.tick()
        return torch.zeros(len(input_ids), dtype=torch.bool)


@torch.inference_mode()
def measure(model: Any, task: dict[str, Any], proposed: Proposed, **options: Any) -> dict[str, Any]:
    """Measure one prompt after another; the first warms up."""
    recorder = Recorder()
    proposed.tokens = 0
    for prompt in task["prompts"][: task["few"] + 1]:
        recorder.begin()
        ids = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=task["new_tokens"],
            min_new_tokens=task["new_tokens"],
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
            stopping_criteria=StoppingCriteriaList([EveryRound(recorder)]),
            **options,
        )
        recorder.end(ids[0, len(prompt) :].tolist())
    given = "".join(f", {name}={value}" for name, value in options.items())
    settings = f"bfloat16; {task['threads']} threads{given}"
    figures = recorder.report(proposed.tokens)
    return {"1": recorder.rate(task["new_tokens"]), **figures, "settings": settings}


@torch.inference_mode()
def prefill(model: Any, prompt: list[int]) -> float:
    """Return the median milliseconds of reading a prompt."""
    tokens, times = torch.tensor([prompt]), []
    for _ in range(6):
        started = time.perf_counter()
        model(tokens, use_cache=True, logits_to_keep=1)
        times.append(time.perf_counter() - started)
    return 1000 * statistics.median(times[1:])


if __name__ == "__main__":
    answer_tasks(load)
