"""`LLM` and the services give the same tokens for the same seed, in every mode."""

import random
from typing import Any

import pytest

from specinfer.drafters import Drafter, DraftJob
from specinfer.llm import SamplingParams
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from tests.support.local import tiny_llm
from tests.support.system import VOCABULARY, ScriptedDrafter, running_system

MODES = {"off": 3, "sequence": 2, "tree": 1}
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 11, "top_k": 30}
REQUESTS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    SAMPLED,
    {"temperature": 1.2, "seed": 5, "top_p": 0.9},
]
PROMPTS = [[5, 17, 3, 88], [9, 9, 40], list(range(3, 40))]


def guesses(job: DraftJob) -> TokenTree:
    """Two tokens at each of two depths, some right by chance."""
    draw = random.Random(sum(job.context) + len(job.context))
    builder = TreeBuilder(job.context[-1])
    first = builder.propose_points(0, [draw.randrange(3, VOCABULARY) for _ in range(2)], [0.6, 0.4])
    if job.limits.depth > 1 and job.limits.width != 1:
        builder.propose_points(first[0], [draw.randrange(3, VOCABULARY)], [0.5])
    return builder.build() if job.limits.width != 1 else TokenTree.root_only(job.context[-1])


def drafters() -> dict[str, Drafter]:
    return {"one": ScriptedDrafter(guesses), "two": ScriptedDrafter(guesses)}


@pytest.mark.parametrize("resident", [False, True], ids=["independent", "resident"])
@pytest.mark.parametrize("mode", MODES)
async def test_the_same_tokens_as_through_the_services(redis_url: str, mode: str, resident: bool) -> None:
    llm = tiny_llm(drafters())
    async with running_system(redis_url, drafters(), resident=resident) as system:
        for wanted in REQUESTS:
            for prompt in PROMPTS:
                through = await system.tokens(prompt, max_new_tokens=24, speculation=MODES[mode], **wanted)
                params = SamplingParams(max_tokens=24, ignore_eos=True, speculation=mode, **wanted)
                assert llm.generate(prompt, params)[0].outputs[0].token_ids == through, (mode, wanted, prompt)


def drawn(job: DraftJob) -> TokenTree:
    """One token drawn from a distribution over two, by the stream that the drafter is given."""
    import numpy as np

    if job.limits.width == 1 or job.sampling.greedy:
        return TokenTree.root_only(job.context[-1])
    q = np.array([20, 30], np.int32), np.array([0.5, 0.5], np.float32)
    token = int(q[0][random.Random(job.draw_seed + len(job.context)).randrange(2)])
    builder = TreeBuilder(job.context[-1])
    builder.propose_samples(0, ProposalKind.WITH_REPLACEMENT, [token], q)
    return builder.build()


@pytest.mark.parametrize("resident", [False, True], ids=["independent", "resident"])
async def test_draws_follow_the_same_streams(redis_url: str, resident: bool) -> None:
    """Where drafts are drawn the text depends on the request's id, too."""

    def drawing() -> dict[str, Drafter]:
        drafter = ScriptedDrafter(drawn)
        drafter.description = type(drafter.description)(draws=True)
        return {"drawing": drafter}

    llm = tiny_llm(drawing())
    params = SamplingParams(max_tokens=24, ignore_eos=True, **SAMPLED)
    async with running_system(redis_url, drawing(), resident=resident) as system:
        through = await system.tokens(PROMPTS[0], max_new_tokens=24, request_id="same", **SAMPLED)
    here = [t for delta in llm.stream(PROMPTS[0], params, request_id="same") for t in delta.token_ids]
    other = [t for delta in llm.stream(PROMPTS[0], params, request_id="other") for t in delta.token_ids]
    assert here == through
    assert other != here
