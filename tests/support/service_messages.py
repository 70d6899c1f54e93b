"""Messages to verifier and speculator services, with valid defaults."""

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from specinfer.v1 import (
    common_pb2,
    speculator_pb2,
    tree_pb2,
    verifier_pb2,
)

PROMPT = [5, 17, 3]
OK, RESYNC, ERROR, EXHAUSTED = 1, 2, 3, 4
HUGE = 2**32 - 1


def verify_entry(request_id: str, **fields: Any) -> verifier_pb2.VerifyEntry:
    defaults = {"delta_token_ids": PROMPT, "tree": tree_pb2.TokenTree(token_ids=[3], parents=[-1])}
    return verifier_pb2.VerifyEntry(request_id=request_id, **(defaults | fields))


def draft_entry(request_id: str, **fields: Any) -> speculator_pb2.DraftEntry:
    defaults: dict[str, Any] = {"delta_token_ids": PROMPT, "node_budget": 4, "max_depth": 4}
    return speculator_pb2.DraftEntry(request_id=request_id, **(defaults | fields))


def tree(**fields: Any) -> tree_pb2.TokenTree:
    defaults: dict[str, Any] = {"token_ids": [3, 4], "parents": [-1, 0]}
    return tree_pb2.TokenTree(**(defaults | fields))


def proposal(**fields: Any) -> tree_pb2.Proposal:
    return tree_pb2.Proposal(**({"kind": 1, "children": [1]} | fields))


def sampled(**fields: Any) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(**fields)


def top_k(**fields: Any) -> speculator_pb2.TargetTopK:
    return speculator_pb2.TargetTopK(
        **({"token_ids": [3], "parents": [-1], "top_k_token_ids": [4, 5]} | fields)
    )


async def one_reply(call: Callable[[AsyncIterator[Any]], Any], *messages: Any) -> list[Any]:
    """Send messages on one stream; return the replies."""

    async def stream() -> AsyncIterator[Any]:
        for message in messages:
            yield message

    return [reply async for reply in call(stream())]


def request(entries: Iterable[verifier_pb2.VerifyEntry], **fields: Any) -> verifier_pb2.VerifyRequest:
    return verifier_pb2.VerifyRequest(step_id=1, entries=entries, **fields)


def drafting(entries: Iterable[speculator_pb2.DraftEntry], client: str = "") -> speculator_pb2.DraftRequest:
    return speculator_pb2.DraftRequest(step_id=1, entries=entries, client=client)
