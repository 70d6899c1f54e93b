"""Biases and penalties in a whole system: trees and plain decoding use the same changed P."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from scipy import stats
from transformers import RepetitionPenaltyLogitsProcessor

from specinfer.drafters import DraftJob
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2
from specinfer.verification.adjustments import RequestAdjustment
from tests.integration.drafts.test_draws import table_drafter
from tests.support.exactness.markov import REQUESTS, markov, serving
from tests.support.oracle import default_target, greedy
from tests.support.system import ScriptedDrafter, System, running_system
from tests.support.tiny_models import reference_logits

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


async def test_sampled_text_is_that_of_plain_decoding_if_drafts_are_not_drawn(redis_url: str) -> None:
    for acceptance in ("traversal", "multi_step", "naive"):
        drafters = {"knowing": ScriptedDrafter(knowing)}
        async with running_system(redis_url, drafters, acceptance=acceptance) as system:
            plain = await answers(system, 0.7, speculation=OFF)
            assert await answers(system, 0.7) == plain
            assert (await system.stub.Status(generation_pb2.StatusRequest())).accepted > 0
            assert plain[0] != expected()[0]


async def test_counts_are_rebuilt_when_the_verifier_has_forgotten(redis_url: str) -> None:
    """The verifier drops all requests in every fifth step, and reads them again in chunks."""
    drafters = {"knowing": ScriptedDrafter(knowing)}
    async with running_system(redis_url, drafters, prefill_chunk=16) as system:
        steps = system.forget_every(5)
        assert await answers(system) == expected()
        assert len(steps) > 10


async def test_bad_tokens_are_refused_by_name(redis_url: str) -> None:
    async with running_system(redis_url) as system:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await system.tokens([5], sampling={"logit_bias": {97: 1.0}})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "logit_bias = '97': must be a token id from 0 to 96"


SMALL: Wish = {
    "logit_bias": {0: 1.0, 2: -0.5},
    "presence_penalty": 0.5,
    "frequency_penalty": 1.6,
    "repetition_penalty": 1.7,
}
TOKENS = 60


@pytest.mark.statistical
@pytest.mark.parametrize("broken", [False, True])
async def test_draws_are_verified_against_the_changed_distribution(
    redis_url: str, broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two services draw, one proposes points; half of the requests have adjustments.

    The target is a Markov chain of four tokens. For each last token, the counts of the next token minus its exact
    probabilities, given the whole text, are sums of martingale differences with known covariance: chi-square with
    3 degrees of freedom each, 12 in sum. False alarms: 1e-4 for each half. The negative control is a verifier
    whose counts ignore the tokens of the path (p < 1e-31 in six runs with 80 tokens); requests without
    adjustments are not affected.
    """
    if broken:
        change = RequestAdjustment.change
        monkeypatch.setattr(RequestAdjustment, "change", lambda self, row, path: change(self, row, []))
    target = markov(1)
    kinds = {
        "a": ProposalKind.WITHOUT_REPLACEMENT,
        "b": ProposalKind.WITH_REPLACEMENT,
        "c": ProposalKind.POINT,
    }
    drafters = {name: table_drafter(seed, kind) for seed, (name, kind) in enumerate(kinds.items())}
    wishes = [SMALL if index % 2 else {} for index in range(REQUESTS)]
    async with serving(redis_url, drafters, target, 4) as system:
        texts = await asyncio.gather(
            *(
                system.tokens(
                    [1],
                    max_new_tokens=TOKENS,
                    sampling={"temperature": 1.0, "seed": index, **wanted},
                )
                for index, wanted in enumerate(wishes)
            )
        )
    assert p_value(target, texts[0::2], {}) > 1e-4
    assert (p_value(target, texts[1::2], SMALL) > 1e-4) != broken
    assert p_value(target, texts[1::2], {}) < 1e-4, "the change is large enough to be seen"


def p_value(target: object, texts: Sequence[Sequence[int]], wanted: Wish) -> float:
    logits = [reference_logits(target, [before])[-1].double().numpy() for before in range(4)]
    difference, covariance = np.zeros((4, 4)), np.zeros((4, 4, 4))
    for text in texts:
        for place, token in enumerate(text):
            before = text[place - 1] if place else 1
            row = repeated(wanted, [1, *text[:place]], logits[before])
            p = np.exp(row + added(wanted, text[:place], 4))
            p /= p.sum()
            difference[before] += np.eye(4)[token] - p
            covariance[before] += np.diag(p) - np.outer(p, p)
    statistic = sum(d @ np.linalg.pinv(c) @ d for d, c in zip(difference, covariance, strict=True))
    return float(stats.chi2.sf(statistic, 12))
