"""`GET /v1/watch`: the steps of requests as server-sent events, for the page and for whoever is curious."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator

from starlette.requests import Request
from starlette.responses import Response

from http_svc.call import ClientGoneError, while_wanted
from http_svc.errors import api_error, internal_error
from http_svc.events import EventStream, encode
from http_svc.steps import step_event
from specinfer.client import AsyncClient
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.v1 import generation_pb2

log = logging.getLogger(__name__)
_NAME = "request_id"


async def watch(caller: AsyncClient, request: Request, ending: asyncio.Event) -> Response:
    """The steps of the request that the query names; without one, those of all requests of the caller's key.

    The first event, which has no step, says that from now on all steps are told.

    Raises:
        SpecInferError: if a gateway refuses, or none answers.
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
        raise InvalidInputError(field, request.query_params[field], "unknown" if unknown else "given twice")
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
    except Exception as error:  # the status was sent: an event is all that can tell the client
        log.exception("a watch failed")
        yield encode(internal_error(error).content)
