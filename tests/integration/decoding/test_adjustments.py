"""Biases and penalties in a whole system: trees and plain decoding use the same changed P."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from specinfer.drafters import DraftJob
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2
from tests.support.oracle import default_target, greedy
from tests.support.system import ScriptedDrafter, System, running_system

Wish = Mapping[str, Any]
OFF = 3
LENGTH = 20
WISHES: list[Wish] = [
    {},
    {"logit_bias": {60: 100.0, 61: 99.0}, "presence_penalty": 2.0, "frequency_penalty": 0.5},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.7},
    {"logit_bias": {5: 2.0, 17: -100.0}},
    {},
    {"logit_bias": {3: 4.0}, "presence_penalty": -0.25, "frequency_penalty": 1.25},
    {"repetition_penalty": 1.4},
    {"repetition_penalty": 0.8, "presence_penalty": 1.5, "logit_bias": {5: 2.0}},
]
PROMPTS = [[5, 17, 3, 88, 41 + index] for index in range(len(WISHES))]
WIDTH = len(PROMPTS[0])


def added(wanted: Wish, generated: Sequence[int], size: int) -> np.ndarray:  # type: ignore[type-arg]
    """Return what OpenAI's formula adds to logits for biases, presence and frequency."""
    total = np.zeros(size)
    for token, bias in wanted.get("logit_bias", {}).items():
        total[token] += bias
    for token, count in Counter(generated).items():
        total[token] -= wanted.get("presence_penalty", 0.0) + count * wanted.get("frequency_penalty", 0.0)
    return total


def repeated(wanted: Wish, context: Sequence[int], row: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
    """Apply the repetition penalty of `transformers`, which counts the prompt, too."""
    process = RepetitionPenaltyLogitsProcessor(wanted.get("repetition_penalty", 1.0))
    return np.asarray(process(torch.tensor([list(context)]), torch.from_numpy(row)[None])[0].numpy())


@torch.inference_mode()
def adjusted_greedy(wishes: Sequence[Wish] = WISHES, counted: int = 0) -> list[list[int]]:
    """Decode all prompts with their adjustments greedily, by `transformers`.

    `counted` tokens at the end of each prompt are penalised, too.
    """
    contexts = [list(prompt) for prompt in PROMPTS]
    for _ in range(LENGTH):
        logits = default_target()(torch.tensor(contexts)).logits[:, -1].double().numpy()
        for context, row, wanted in zip(contexts, logits, wishes, strict=True):
            changed = repeated(wanted, context, row) + added(wanted, context[WIDTH - counted :], len(row))
            context.append(int(changed.argmax()))
    return [context[WIDTH:] for context in contexts]


@cache
def expected() -> list[list[int]]:
    """Return the answer to each prompt with its adjustments."""
    return adjusted_greedy()


def knowing(job: DraftJob) -> TokenTree:
    """Draft the next two tokens, a wrong one after them, and a wrong sibling of the first."""
    builder, node = TreeBuilder(job.context[-1]), 0
    (index,) = [i for i, prompt in enumerate(PROMPTS) if job.context[: len(prompt)] == prompt]
    coming = expected()[index][len(job.context) - len(PROMPTS[index]) :]
    for depth, token in enumerate(coming[: min(3, job.limits.depth, job.limits.nodes)]):
        (node,) = builder.propose_points(node, [token if depth < 2 else (token + 1) % 97], [0.9])
    if len(builder) <= job.limits.nodes and coming:
        builder.propose_points(0, [(coming[0] + 7) % 97], [0.1])
    return builder.build()


async def answers(system: System, temperature: float = 0.0, **fields: Any) -> list[list[int]]:
    """Return the answers to all prompts with their adjustments, in one batch."""
    return await asyncio.gather(
        *(
            system.tokens(
                prompt,
                max_new_tokens=LENGTH,
                sampling={"temperature": temperature, "seed": 3 + index, **wanted},
                **fields,
            )
            for index, (prompt, wanted) in enumerate(zip(PROMPTS, WISHES, strict=True))
        )
    )


def test_the_adjustments_change_the_answers() -> None:
    assert expected()[0] == greedy(PROMPTS[0], LENGTH)
    free, counting = adjusted_greedy([{}] * len(WISHES)), adjusted_greedy(counted=WIDTH)
    for wanted, text, without in zip(WISHES, expected(), free, strict=True):
        assert (text == without) == (not wanted)
    assert sum(a != b for a, b in zip(counting, expected(), strict=True)) >= 1, "the prompt must not count"


async def test_greedy_trees_and_plain_decoding_follow_the_changed_logits(redis_url: str) -> None:
    async with running_system(redis_url, {"knowing": ScriptedDrafter(knowing)}) as system:
        plain = await answers(system, speculation=OFF)
        trees = await answers(system)
        accepted = (await system.stub.Status(generation_pb2.StatusRequest())).accepted
    assert plain == expected()
    assert trees == plain
    assert accepted > LENGTH, "paths of two tokens, whose counts are those of the path"
