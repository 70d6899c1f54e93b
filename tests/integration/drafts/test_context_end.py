"""Requests that fill the context get the tokens of plain decoding, with any trees at its end."""

import asyncio
import random

import pytest

from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.ssm import SsmDrafter
from specinfer.model.drafting.task import GrowthShape
from specinfer.tree import TokenTree, TreeBuilder
from specinfer.v1 import common_pb2, generation_pb2
from specinfer.verification.jobs import EngineLimits
from tests.support.system import VOCABULARY, ScriptedDrafter, System, running_system
from tests.support.tiny_models import runner_of, tiny_transformers

OFF, SEQUENCE, TREE = (
    generation_pb2.SPECULATION_OFF,
    generation_pb2.SPECULATION_SEQUENCE,
    generation_pb2.SPECULATION_TREE,
)
CONSTRAINTS = (
    None,
    common_pb2.Constraint(regex="(abcdefghijklmnop){9}"),
    common_pb2.Constraint(regex="([ab]cde){40}"),
)
"""The second one forces all tokens, the third one most."""


def wide(job: DraftJob) -> TokenTree:
    builder = TreeBuilder(job.context[-1])
    tokens = [3 + (sum(job.context) + i) % (VOCABULARY - 3) for i in range(job.limits.nodes)]
    builder.propose_points(0, tokens[: job.limits.width], [0.5] * len(tokens[: job.limits.width]))
    return builder.build()


def deep(job: DraftJob) -> TokenTree:
    """Draft a chain as deep as allowed."""
    builder, node = TreeBuilder(job.context[-1]), 0
    for token in range(min(job.limits.depth, job.limits.nodes)):
        (node,) = builder.propose_points(node, [3 + (job.context[-1] + token) % 90], [0.9])
    return builder.build()


def ssm(family: str, positions: int) -> SsmDrafter:
    """Return an SSM with this number of positions, which is sometimes right."""
    runner = runner_of(tiny_transformers(family, max_position_embeddings=positions), kv_tokens=4096)
    return SsmDrafter(runner, DrafterDescription("tiny", VOCABULARY, "", positions), GrowthShape())


async def answer(
    system: System, prompt: list[int], new: int, speculation: int, constraint: common_pb2.Constraint | None
) -> tuple[list[int], int]:
    """Return the tokens and the finish reason of an answer."""
    fields = {} if constraint is None else {"constraint": constraint}
    replies = await system.generate(prompt, max_new_tokens=new, speculation=speculation, **fields)
    return [token for reply in replies for token in reply.token_ids], replies[-1].summary.finish_reason


@pytest.mark.parametrize("family", ["llama", "opt"])
@pytest.mark.parametrize("context", [19, 64])
async def test_the_end_of_the_context_is_like_plain_decoding(
    redis_url: str, family: str, context: int
) -> None:
    """Models have rotary or learnt positions; one SSM has fewer positions than the target."""
    draw = random.Random(f"{family} {context}")
    drafters: dict[str, Drafter] = {
        "wide": ScriptedDrafter(wide),
        "deep": ScriptedDrafter(deep),
        "short": ssm(family, context - 7),
        "even": ssm(family, context),
        "ngram": NgramDrafter(),
    }
    async with running_system(
        redis_url,
        drafters,
        model=tiny_transformers(family, max_position_embeddings=context),
        engine_limits=EngineLimits(max_context_len=context),
        one_service=draw.random() < 0.5,
        tree_nodes=24,
        step_nodes=256,
        max_batch=16,
        tree_depth=draw.choice([0, 3, 8]),
        prefill_chunk=draw.choice([5, 512]),
        kv_tokens=4096,
    ) as system:
        lengths = [1, context - 1, context - 2, *(draw.randrange(1, context) for _ in range(7))]
        for length in lengths:
            prompt, left = [draw.randrange(3, VOCABULARY) for _ in range(length)], context - length
            new, constraint = draw.choice([left, left, draw.randint(1, left)]), draw.choice(CONSTRAINTS)
            texts = await asyncio.gather(
                *(answer(system, prompt, new, mode, constraint) for mode in (OFF, SEQUENCE, TREE))
            )
            assert texts[0] == texts[1] == texts[2], (length, new, constraint)
            assert len(texts[0][0]) == new
            assert texts[0][1] == generation_pb2.FINISH_REASON_LENGTH
