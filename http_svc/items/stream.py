"""Stream the events of `/v1/responses`, with names and sequence numbers."""

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

from http_svc.call import Call
from http_svc.errors import ApiError, internal_error
from http_svc.items.answer import ItemWriter, ended
from http_svc.responses import is_whole
from http_svc.streaming import encode
from specinfer.errors import SpecInferError

log = logging.getLogger(__name__)


async def item_events(
    call: Call, begun: dict[str, Any], writer: ItemWriter, explain: Callable[[SpecInferError], ApiError]
) -> AsyncIterator[bytes]:
    """Yield the events of an answer.

    Args:
        call: a call with one choice.
        begun: the answer's object without items.
        writer: converts text to items.
        explain: converts an error to the API's error.
    """
    number = -1

    def encoded(event: dict[str, Any]) -> bytes:
        nonlocal number
        number += 1
        return encode({**event, "sequence_number": number}, event=event["type"])

    try:
        for kind in ("response.created", "response.in_progress"):
            yield encoded({"type": kind, "response": begun})
        while (event := await call.next()) is not None:
            if event.piece is not None:
                for item_event in writer.push(event.piece.text, event.deltas):
                    yield encoded(item_event)
            elif event.deltas:
                for item_event in writer.push("", event.deltas):
                    yield encoded(item_event)
        (answer,) = call.answers
        complete = is_whole(answer)
        for item_event in writer.end(complete):
            yield encoded(item_event)
        kind = "response.completed" if complete else "response.incomplete"
        yield encoded({"type": kind, "response": ended(begun, writer, answer, call.readers[0])})
    except SpecInferError as error:
        yield encoded(_failure(explain(error)))
    except Exception as error:  # the HTTP status was sent already, so the error becomes an event
        log.exception("a stream of /v1/responses failed; the client gets an error event")
        yield encoded(_failure(internal_error(error)))


def _failure(error: ApiError) -> dict[str, Any]:
    content = error.content["error"]
    return {
        "type": "error",
        "code": content["code"],
        "message": content["message"],
        "param": content["param"],
    }
