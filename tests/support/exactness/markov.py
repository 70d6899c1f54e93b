"""A target that is a Markov chain of four tokens, served by a whole system, to test the distribution of
sampled texts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from scipy import stats

from specinfer.drafters import Drafter
from specinfer.verification.engine import EngineLimits
from tests.support.system import System, running_system
from tests.support.tiny_models import reference_logits, silence_attention, tiny_transformers

SHAPE = {"vocab_size": 4, "eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
TOKENS, REQUESTS = 200, 32
"""Tokens per request, and requests: 6,400 tokens detect a total variation of .04 (see `p_value`)."""


def markov(seed: int) -> Any:
    """A random model whose prediction depends on the last token only."""
    model = tiny_transformers("llama", seed=seed, max_position_embeddings=1024, **SHAPE)
    silence_attention(model)
    return model


@asynccontextmanager
async def serving(
    redis_url: str, drafters: Mapping[str, Drafter], target: Any, budget: int, **options: Any
) -> AsyncIterator[System]:
    """Run a system of this target with trees of `budget` nodes; `options` are those of `running_system`."""
    async with running_system(
        redis_url,
        drafters,
        model=target,
        engine_limits=EngineLimits(max_context_len=1024),
        max_batch=REQUESTS,
        tree_depth=3,
        tree_nodes=budget,
        step_nodes=budget * REQUESTS,
        kv_tokens=REQUESTS * 1024,
        **options,
    ) as system:
        yield system


async def sampled(system: System, seeds: Iterable[int], tokens: int = TOKENS) -> list[list[int]]:
    """Return texts after token 1. Without draws, requests with the same seed have the same text."""
    return await asyncio.gather(
        *(system.tokens([1], temperature=1.0, seed=seed, max_new_tokens=tokens) for seed in seeds)
    )


def p_value(target: Any, texts: list[list[int]]) -> float:
    """Return the p-value of texts' transitions if a Markov chain wrote them: chi-square, 12 degrees of freedom.

    Power at 1e-4: of n = 6,400 tokens a total variation of .04 in every row is found with probability .99
    (noncentrality n * .04^2 * (1/.25 + 1/.25) = 82 at least); of 1,280 tokens .09.
    """
    counts = Counter(pair for text in texts for pair in zip([1, *text], text, strict=False))
    statistic = 0.0
    for before in range(4):
        p = reference_logits(target, [before])[-1].double().softmax(-1).numpy()
        seen = np.array([counts[before, after] for after in range(4)])
        statistic += float(((seen - seen.sum() * p) ** 2 / (seen.sum() * p)).sum())
    return float(stats.chi2.sf(statistic, 12))
