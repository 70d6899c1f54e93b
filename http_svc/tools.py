"""Whole answers with calls of functions as messages."""

from typing import Any

from http_svc.calls.answer import AnswerForm, AnswerReader

_ANY_FUNCTION = AnswerForm(functions=())


def message_of(text: str, call_id: str, form: AnswerForm = _ANY_FUNCTION) -> tuple[dict[str, Any], bool]:
    """Return the message of a whole answer, and whether it has calls that have ended."""
    reader = AnswerReader(call_id, form)
    reader.push(text)
    reader.end()
    return reader.message, reader.called
