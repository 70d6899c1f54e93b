"""Serve the web page, and the stream of steps that it shows."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Message, Receive, Scope, Send

from http_svc.call import ClientGoneError, while_wanted
from http_svc.errors import api_error, internal_error
from http_svc.streaming import EventStream, encode
from specinfer.client import AsyncClient
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.v1 import generation_pb2, tree_pb2

log = logging.getLogger(__name__)


FILES = Path(__file__).parent / "page"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy: only files and calls of this service."""
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-cache",  # revalidated at each use; 304 if unchanged
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class _Files(StaticFiles):
    """Static files with `HEADERS`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *ours]}
            await send(message)

        await super().__call__(scope, receive, answer)


def add_page(app: FastAPI) -> None:
    """Serve the page at `/` and its files at `/page/`."""

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(FILES / "index.html", headers=HEADERS)

    app.mount("/page", _Files(directory=FILES))


_KIND, _FINISH = "PROPOSAL_KIND_", "FINISH_REASON_"


def step_event(reply: generation_pb2.WatchReply) -> dict[str, Any]:
    """Return one event of `/v1/watch`.

    `step` is null in the first event, and in an event that reports only a request's end.
    """
    return {
        "request_id": reply.request_id,
        "step": _step(reply.step) if reply.HasField("step") else None,
        "dropped": reply.dropped,
        "finish_reason": _finish(reply.finish_reason),
    }


def _finish(reason: generation_pb2.FinishReason) -> str | None:
    name = generation_pb2.FinishReason.Name(reason).removeprefix(_FINISH).lower()
    return name if reason else None


def _step(step: generation_pb2.WatchedStep) -> dict[str, Any]:
    return {
        "position": step.position,
        "nodes": [_node(node, step.planner.speculators) for node in step.nodes],
        "accepted": list(step.accepted),
        "tokens": [_token(token) for token in step.tokens],
        "bonus": _token(step.bonus),
        "planner": _planner(step.planner),
        "batch": step.batch,
        "seconds": step.seconds,
        "phases": {phase.name: phase.seconds for phase in step.phases},
    }


def _node(node: generation_pb2.WatchedNode, names: Any) -> dict[str, Any]:
    proposals = [
        {
            "speculator": names[proposal.speculator],
            "kind": tree_pb2.ProposalKind.Name(proposal.kind).removeprefix(_KIND).lower(),
            "chance": proposal.chance,
        }
        for proposal in node.proposals
    ]
    return {
        "id": node.token_id,
        "text": node.text,
        "parent": node.parent,
        "chance": node.chance,
        "proposals": proposals,
        "forced": node.forced,
    }


def _token(token: generation_pb2.WatchedToken) -> dict[str, Any]:
    logprob = token.logprob if token.HasField("logprob") else None
    return {"id": token.token_id, "text": token.text, "logprob": logprob}


def _planner(planner: generation_pb2.PlannerState) -> dict[str, Any]:
    return {
        "speculators": list(planner.speculators),
        "tree_nodes": planner.tree_nodes,
        "step_nodes": planner.step_nodes,
        "expected_tokens": planner.expected_tokens,
        "expected_seconds": planner.expected_seconds,
        "plain_tokens_per_second": planner.plain_tokens_per_second,
        "reason": planner.reason,
    }


_NAME = "request_id"


async def watch(caller: AsyncClient, request: Request, ending: asyncio.Event) -> Response:
    """Stream the steps of the query's request, or of the caller's requests.

    The first event has no step: it confirms that watching has begun.
    """
    replies = caller.watch(_request_id(request))
    try:
        first = await while_wanted(anext(replies), request.receive, ending)
    except ClientGoneError:
        await replies.aclose()
        return Response(status_code=499)
    except BaseException:
        await replies.aclose()
        raise
    return EventStream(_events(first, replies), replies.aclose, lambda: None, ending)


def _request_id(request: Request) -> str:
    given = request.query_params.multi_items()
    unknown = [name for name, _ in given if name != _NAME]
    if unknown or len(given) > 1:
        field = unknown[0] if unknown else _NAME
        reason = "must be given once" if not unknown else f"unknown parameter; only {_NAME} is accepted"
        raise InvalidInputError(field, request.query_params[field], reason)
    return request.query_params.get(_NAME, "")


async def _events(
    first: generation_pb2.WatchReply, replies: AsyncGenerator[generation_pb2.WatchReply, None]
) -> AsyncIterator[bytes]:
    try:
        yield encode(step_event(first))
        async for reply in replies:
            yield encode(step_event(reply))
    except SpecInferError as error:
        yield encode(api_error(error, {}).content)
    except Exception as error:  # the HTTP status was sent already, so the error becomes an event
        log.exception("a stream of /v1/watch failed; the client gets an error event")
        yield encode(internal_error(error).content)
