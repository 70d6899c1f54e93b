"""Hugging Face's assisted generation, with the SSM that was trained for the target as the assistant.

    python -m benchmarks.suite.assisted < task.json > answers.json

A process of its own, as its threads and memory must not stay beside what is measured next. Plain and assisted
generation take turns over the prompts, greedy, one prompt after another: `transformers` assists no batches.
How many tokens the assistant drafts is left to the library.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria, StoppingCriteriaList

from specinfer.hub import resolve_model
from specinfer.model.weights.account import load_whole
from specinfer.model.weights.draft_checkpoint import DraftModel
from specinfer.model.weights.drafts import load_draft

_HEAD, _TOKEN_OFFSETS = "lm_head.weight", "d2t"


class ReducedHead(nn.Module):
    """An output head that knows some tokens only; all others have no chance."""

    def __init__(self, weight: torch.Tensor, token_ids: torch.Tensor, vocab_size: int) -> None:
        """`weight`: [tokens, hidden]; `token_ids`: [tokens]."""
        super().__init__()
        self.weight, self._token_ids, self._vocab_size = nn.Parameter(weight), token_ids, vocab_size

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., vocabulary]."""
        known = hidden @ self.weight.T
        every = known.new_full((*known.shape[:-1], self._vocab_size), torch.finfo(known.dtype).min)
        every[..., self._token_ids] = known
        return every


def load_assistant(target: Path, draft: DraftModel) -> Any:
    """A trained SSM as a model of `transformers`, over the target's whole vocabulary."""
    config = AutoConfig.from_pretrained(target)
    config.num_hidden_layers, config.tie_word_embeddings = draft.config.layers, False
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: draft.config.layers]
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    weights = {name: draft.weights[name].to(torch.bfloat16) for name in draft.weights}
    head = weights.pop(_HEAD)
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) != {_HEAD} or set(unexpected) - {_TOKEN_OFFSETS}:
        raise ValueError(f"the SSM does not fit: {missing} are missing, {unexpected} unexpected")
    model.lm_head = ReducedHead(head, draft.token_ids, config.vocab_size)
    return model.eval()


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Called after every round of generation; notes when, and stops nothing."""

    def __init__(self) -> None:
        self.started, self.rounds = time.perf_counter(), list[float]()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Implement the interface of `transformers`."""
        self.rounds.append(time.perf_counter())
        return torch.zeros(len(input_ids), dtype=torch.bool)


@torch.inference_mode()
def answer(model: Any, prompt: Sequence[int], new_tokens: int, assistant: Any | None) -> dict[str, Any]:
    """One greedy answer: token ids, rounds, seconds to the first token and of all."""
    clock = Clock()
    ids = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=new_tokens,
        min_new_tokens=new_tokens,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([clock]),
        **({} if assistant is None else {"assistant_model": assistant}),
    )
    done = time.perf_counter()
    return {
        "token_ids": ids[0, len(prompt) :].tolist(),
        "rounds": len(clock.rounds),
        "ttft_s": clock.rounds[0] - clock.started,
        "total_s": done - clock.started,
    }


def run(task: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Answers by mode to prompts of token ids; the first prompt is asked once before, to warm up."""
    target = resolve_model(task["model"])
    model = load_whole(target, "llama", torch.bfloat16).eval()
    draft = load_draft(resolve_model(task["ssm"]), target)
    if not isinstance(draft, DraftModel):
        raise TypeError(f"{task['ssm']} is no SSM")
    assistants = {"incremental": None, "sequence": load_assistant(target, draft)}
    for assistant in assistants.values():
        answer(model, task["prompts"][0], task["new_tokens"], assistant)
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in assistants}
    for number, prompt in enumerate(task["prompts"]):
        for mode in list(assistants)[:: -1 if number % 2 else 1]:
            found[mode].append(answer(model, prompt, task["new_tokens"], assistants[mode]))
    return found


if __name__ == "__main__":
    json.dump(run(json.load(sys.stdin)), sys.stdout)
