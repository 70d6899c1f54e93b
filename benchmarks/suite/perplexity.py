"""Perplexity of answers under the target: exp(- mean log p(token | prompt and answer before it)).

Equal for every lossless method where decoding is greedy, since the answers are. It tells what a method costs
that changes the text, a windowed cache.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from specinfer.cli.bench import Turn
from specinfer.prompts import PromptRow
from specinfer.tokenizer import Tokenizer

if TYPE_CHECKING:
    from specinfer.model.runner import ModelRunner

Sequences = tuple[tuple[int, ...], tuple[int, ...]]
"""Token ids of a prompt and of its answer."""


class Scorer:
    """Loads the target where there is something new to score, and lets it go: services need the memory."""

    def __init__(self, directory: Path, dtype: str, weights: str, chat: bool = True) -> None:
        """`weights` as the verifier holds them, whose target it is; `chat`: prompts are user turns."""
        self._directory, self._dtype, self._weights, self._chat = directory, dtype, weights, chat
        self._tokenizer = Tokenizer.load(directory)
        self._known: dict[Sequences, float] = {}
        """Sum of the log probabilities of the answer's tokens."""

    def perplexity(self, prompts: Sequence[PromptRow], turns: Sequence[Turn]) -> float:
        """Return the perplexity of all answers of one mode, which are those to the prompts in their order."""
        answers = [answer for turn in turns for answer in turn.answers]
        asked = [self.prompt_tokens(prompt) for prompt in prompts]
        return self.of([(p, tuple(answer.token_ids)) for p, answer in zip(asked, answers, strict=True)])

    def of(self, pairs: Sequence[Sequences]) -> float:
        """Return the perplexity of answers to prompts."""
        unknown = {pair for pair in pairs if pair not in self._known}
        if unknown:
            runner = self._load()
            self._known |= {pair: _log_probability(runner, *pair) for pair in unknown}
        total = sum(self._known[pair] for pair in pairs)
        return math.exp(-total / sum(len(answer) for _, answer in pairs))

    def prompt_tokens(self, prompt: PromptRow) -> tuple[int, ...]:
        """As the gateway sends them to the model."""
        if not self._chat:
            return tuple(self._tokenizer.encode(prompt.text))
        return tuple(self._tokenizer.encode_chat([{"role": "user", "content": prompt.text}]))

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """An answer that is known as text only."""
        return tuple(self._tokenizer.encode(text))

    def _load(self) -> "ModelRunner":
        from specinfer.model.options import RunnerOptions
        from specinfer.model.runner import ModelRunner

        return ModelRunner.load(self._directory, RunnerOptions(dtype=self._dtype, weights=self._weights))


def _log_probability(runner: "ModelRunner", prompt: Sequence[int], answer: Sequence[int]) -> float:
    """Sum over the answer's tokens: they are a chain of nodes behind the prompt, read in one pass."""
    from specinfer.model.batch import Segment

    sequence = runner.open()
    try:
        chain = answer[:-1]
        parents = list(range(-1, len(chain) - 1))
        (logits,) = runner.forward([Segment(sequence, prompt, chain, parents, want_last=True)])
    finally:
        runner.cache.release(sequence)
    chances = logits.log_softmax(-1).numpy()
    return float(chances[np.arange(len(answer)), list(answer)].sum())
