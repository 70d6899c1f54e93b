"""Constrained requests in a whole system: trees and plain decoding give the same answers."""

import asyncio
import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import grpc
import jsonschema
import numpy as np
import pytest

from specinfer.drafters import DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import MAX_BYTES, Constraint, ConstraintKind
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, generation_pb2
from specinfer.wire.codec import encode_constraint
from tests.support.constraints.schemas import SCHEMAS, TEXTS
from tests.support.oracle import chain, default_target, greedy
from tests.support.system import VOCABULARY, ScriptedDrafter, System, ascii_tokenizer, refused, running_system
from tests.support.tiny_models import reference_logits

OFF, SEQUENCE, TREE = (
    generation_pb2.SPECULATION_OFF,
    generation_pb2.SPECULATION_SEQUENCE,
    generation_pb2.SPECULATION_TREE,
)
LONGEST = 160
EOS = 0
"""Token that ends a sequence; that of other tests is also a blank."""
FINISHED = generation_pb2.FINISH_REASON_CONSTRAINT
CONSTRAINTS = [Constraint(ConstraintKind.JSON_SCHEMA, text) for text in TEXTS]
PROMPTS = [[5 + index, 17, 3, 88, 41] for index in range(len(CONSTRAINTS))]


@cache
def compiler() -> Compiler:
    return Compiler(ascii_tokenizer().to_json(), VOCABULARY, [EOS])


@cache
def constrained_greedy(prompt: tuple[int, ...], constraint: Constraint) -> list[int]:
    """Decode greedily by `transformers`, among the tokens that the constraint allows."""
    matcher, context = compiler().compile(constraint), list(prompt)
    while not matcher.finished and len(context) < len(prompt) + LONGEST:
        logits = reference_logits(default_target(), context)[-1].double().numpy()
        context.append(int(np.where(matcher.mask(), logits, -np.inf).argmax()))
        matcher.read(context[-1:])
    return context[len(prompt) :]


def knowing(job: DraftJob) -> TokenTree:
    """Draft the next three tokens of constrained requests, and wrong ones of others."""
    for prompt, constraint in zip(PROMPTS, CONSTRAINTS, strict=True):
        whole = [*prompt, *constrained_greedy(tuple(prompt), constraint)]
        if len(job.context) >= len(prompt) and list(job.context) == whole[: len(job.context)]:
            return chain(job.context[-1], whole[len(job.context) :][: min(3, job.limits.depth)])
    return wrong(job)


def wrong(job: DraftJob) -> TokenTree:
    """Draft tokens that are mostly wrong and often forbidden."""
    return chain(
        job.context[-1], [(job.context[-1] + add) % VOCABULARY for add in (1, 2)][: job.limits.depth]
    )


def drafters() -> dict[str, Any]:
    """Return drafters that are right, wrong (many nodes are forbidden), and n-grams."""
    return {"knows": ScriptedDrafter(knowing), "wrong": ScriptedDrafter(wrong), "ngram": NgramDrafter(1)}


async def ask(
    system: System, prompt: Sequence[int], constraint: Constraint, **fields: Any
) -> tuple[list[int], str, generation_pb2.Summary]:
    """Return tokens, text and summary of an answer."""
    wanted = {"constraint": encode_constraint(constraint), "max_new_tokens": LONGEST, "ignore_eos": False}
    replies = await system.generate(prompt, **wanted | fields)
    tokens = [token for reply in replies for token in reply.token_ids]
    return tokens, "".join([reply.text for reply in replies]), replies[-1].summary


@pytest.mark.parametrize("speculation", [SEQUENCE, TREE])
async def test_thirty_schemas_are_answered_as_by_constrained_plain_decoding(
    redis_url: str, speculation: int
) -> None:
    """Unconstrained requests are in the same batch."""
    requested = list(zip(PROMPTS, CONSTRAINTS, strict=True))
    async with running_system(redis_url, drafters(), eos=EOS) as system:
        answers, free = await asyncio.gather(
            asyncio.gather(*(ask(system, *one, speculation=speculation) for one in requested)),
            asyncio.gather(*(system.tokens(p, speculation=speculation) for p in PROMPTS[:4])),
        )
    assert free == [greedy(prompt, 16) for prompt in PROMPTS[:4]]
    for (tokens, text, summary), (prompt, constraint), schema in zip(
        answers, requested, SCHEMAS, strict=True
    ):
        assert tokens == constrained_greedy(tuple(prompt), constraint), constraint.source
        jsonschema.validate(json.loads(text), schema)
        stopped = summary.finish_reason == generation_pb2.FINISH_REASON_STOP_TOKEN
        assert stopped == (tokens[-1] == EOS)
        assert stopped or summary.finish_reason == FINISHED
    accepted = sum(summary.stats.accepted for *_, summary in answers)
    assert accepted > sum(summary.stats.steps for *_, summary in answers) / 2


BAD = [
    ({"json_schema": '{"type": "object",}'}, "constraint.json_schema", "line 1, column 19"),
    (
        {"json_schema": '{"properties": {"a": {"items": {"type": "array", "uniqueItems": true}}}}'},
        "constraint.json_schema",
        "#/properties/a/items",
    ),
    ({"json_schema": ""}, "constraint.json_schema", "must not be empty"),
    ({"json_schema": " " * (MAX_BYTES + 1)}, "constraint.json_schema", f"at most {MAX_BYTES}"),
    ({"regex": "ab(c"}, "constraint.regex", "at character 3"),
    ({"grammar": 'start: a\na: "x" (\n'}, "constraint.grammar", "line 2"),
    ({"choice": {"texts": ["a", ""]}}, "constraint.choice.texts[1]", "must not be empty"),
    ({"choice": {"texts": []}}, "constraint.choice.texts", "must not be empty"),
]


async def test_bad_constraints_are_refused_by_field_and_position(redis_url: str) -> None:
    async with running_system(redis_url, eos=EOS) as system:
        for fields, field, where in BAD:
            with refused(grpc.StatusCode.INVALID_ARGUMENT, f"{field} = ", where):
                await system.generate(PROMPTS[0], constraint=common_pb2.Constraint(**fields))


async def test_masks_over_the_budget_are_an_invalid_argument(redis_url: str) -> None:
    """The error names the constraint and the budget, and other requests are not affected."""
    async with running_system(redis_url, eos=EOS) as system:
        system.verifier.masks.budget_s = system.verifier.masks.max_over_s = 0.0
        reason = "constraint.json_schema: too complex: its masks took"
        with refused(grpc.StatusCode.INVALID_ARGUMENT, reason, "the budget of 0 ms"):
            await ask(system, PROMPTS[0], CONSTRAINTS[0])
        assert await system.tokens(PROMPTS[0]) == greedy(PROMPTS[0], 16)
