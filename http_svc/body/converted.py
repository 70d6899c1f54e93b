"""Convert errors of converted bodies: they name the fields of the caller's body."""

import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.names import chat_names, completion_names, text_form_name
from http_svc.errors import ApiError, api_error, invalid_body
from http_svc.tool_schemas import name_function
from specinfer.errors import SpecInferError


def conversion_refusal(error: ValidationError, renamed: Mapping[str, str]) -> ApiError:
    """Return the error of a body that converts to an invalid one.

    `renamed` has the caller's field names by those of a chat body, where they differ.
    """
    rows: list[Any] = []
    for row in error.errors():
        field, *below = row["loc"] or ("",)
        # messages of a chat body have other indices than the caller's, so the index is left out
        place = (renamed.get(str(field), field), *(below[-1:] if field == "messages" else below))
        rows.append({**row, "loc": ("body", *place) if row["loc"] else ("body",)})
    return invalid_body(rows)


def conversation_error(
    error: SpecInferError, chat: ChatBody | CompletionBody, renamed: Mapping[str, str]
) -> ApiError:
    """Return the error of a call that a gateway refused or lost.

    A message's index differs from its index in the caller's body, so the error has no index.
    """
    if isinstance(chat, CompletionBody):
        return api_error(error, _renamed(completion_names(), renamed))
    names, form = _renamed(chat_names(chat), renamed), text_form_name(chat)
    named = renamed.get(form, renamed.get("response_format", form))
    reply = api_error(error, names, partial(name_function, functions=chat.callable, form=named))
    content, turns = reply.content["error"], names["chat.messages"]
    if str(content["param"]).startswith(f"{turns}["):
        content["param"] = turns
        content["message"] = re.sub(rf"^{turns}\[\d+\]", turns, str(content["message"]))
    return reply


def _renamed(names: Mapping[str, str], renamed: Mapping[str, str]) -> dict[str, str]:
    return {field: renamed.get(name, name) for field, name in names.items()}
