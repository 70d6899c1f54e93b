"""Write one answer of `/v1/responses`, whole or as events with sequence numbers."""

import time
from collections.abc import Sequence
from itertools import count
from typing import Any

from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.errors import ApiError
from http_svc.items.answer import Event, ItemWriter, ended, response_object
from http_svc.items.body import ResponsesBody
from http_svc.responses import is_whole
from http_svc.streaming import parts_of
from specinfer.client import Answer


class ItemAnswer:
    """One answer of `/v1/responses`."""

    def __init__(self, body: ResponsesBody, identity: str, model: str) -> None:
        self._writer, self._numbers = ItemWriter(identity), count()
        self._begun = response_object(body, identity, model, int(time.time()))

    def whole(self, answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
        self._writer.push("", parts_of(answer, reader))
        self._writer.end(is_whole(answer))
        return ended(self._begun, self._writer, answer, reader)

    def begin(self, answer: Answer) -> list[Event]:
        kinds = ("response.created", "response.in_progress")
        return self._numbered([{"type": kind, "response": self._begun} for kind in kinds])

    def push(self, text: str, deltas: Sequence[Delta] | None) -> list[Event]:
        return self._numbered(self._writer.push(text, deltas))

    def end(self, answer: Answer, reader: AnswerReader | None) -> list[Event]:
        complete = is_whole(answer)
        events = self._writer.end(complete)
        kind = "response.completed" if complete else "response.incomplete"
        last = {"type": kind, "response": ended(self._begun, self._writer, answer, reader)}
        return self._numbered([*events, last])

    def failure(self, error: ApiError) -> Event:
        content = {name: error.content["error"][name] for name in ("code", "message", "param")}
        (event,) = self._numbered([{"type": "error", **content}])
        return event

    def _numbered(self, events: Sequence[Event]) -> list[Event]:
        return [{**event, "sequence_number": next(self._numbers)} for event in events]
