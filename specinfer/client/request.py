"""Build request messages from a prompt and options."""

import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, Unpack

from specinfer.client.options import (
    RequestOptions,
    check_names,
    checked,
    known_options,
    shows_options,
)
from specinfer.errors import InvalidInputError
from specinfer.request.fields import CONSTRAINTS, SamplingFields
from specinfer.v1 import common_pb2, generation_pb2


def make_constraint(options: Mapping[str, Any]) -> common_pb2.Constraint | None:
    """Return the message of a constraint; None without a constraint.

    Raises:
        InvalidInputError: if two options set a constraint, or the schema is not JSON.
    """
    given = [(kind, options[kind]) for kind in CONSTRAINTS if options.get(kind) is not None]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInputError(given[1][0], given[1][1], f"cannot be combined with {given[0][0]}")
    ((kind, source),) = given
    if kind == "choice":
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=source))
    message: dict[str, Any] = {kind: source if isinstance(source, str) else _encode(source)}
    return common_pb2.Constraint(**message)


def _encode(schema: Mapping[str, Any]) -> str:
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("json_schema", str(schema), f"not JSON: {error}") from error


_SAMPLING = tuple(field.name for field in fields(SamplingFields))
"""Options that are fields of the same name in `SamplingParams`."""
_PLAIN = (known_options().keys() - {"chat", "speculation", "references"}) & {
    field.name for field in generation_pb2.GenerateRequest.DESCRIPTOR.fields
}
"""Options that are fields of the same name and type in `GenerateRequest`."""
Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A text, messages with `role` and `content`, or token ids."""


def new_request_id() -> str:
    """Return a random id; without API keys, only the id protects requests."""
    return secrets.token_hex(12)


@shows_options
def make_request(prompt: Prompt, **options: Unpack[RequestOptions]) -> generation_pb2.GenerateRequest:
    """Return the message of a request.

    Raises:
        TypeError: for an unknown option.
        InvalidInputError: naming an option and its invalid value.
    """
    values = checked(options)
    sampling = common_pb2.SamplingParams(
        **{name: values[name] for name in (*_SAMPLING, "seed")}, logit_bias=values["logit_bias"] or {}
    )
    request = generation_pb2.GenerateRequest(
        **{name: values[name] for name in _PLAIN},
        sampling=sampling,
        stop_strings=_texts(values["stop"]),
        speculation=f"SPECULATION_{values['speculation'].upper()}",
        constraint=make_constraint(options),
        references=_texts(values["references"]),
    )
    _set_prompt(request, prompt, values["chat"])
    return request


def as_request(
    prompt: Prompt | generation_pb2.GenerateRequest, options: RequestOptions
) -> generation_pb2.GenerateRequest:
    """Return a message with an id, for a prompt or a message.

    Raises:
        TypeError: for an unknown option.
        InvalidInputError: for an invalid option, or an option given together with a message.
    """
    check_names(options)
    if isinstance(prompt, generation_pb2.GenerateRequest):
        for name, value in options.items():
            raise InvalidInputError(name, value, "cannot be given with a message: set the message's field")
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(prompt)
    else:
        request = make_request(prompt, **options)
    request.request_id = request.request_id or new_request_id()
    return request


def _set_prompt(request: generation_pb2.GenerateRequest, prompt: Prompt, chat: bool) -> None:
    if isinstance(prompt, str):
        if chat:
            request.chat.messages.add(role="user", content=prompt)
        else:
            request.text = prompt
        return
    if not isinstance(prompt, Iterable):
        raise InvalidInputError("prompt", prompt, "must be a text, messages or token ids")
    kinds = {isinstance(item, Mapping) for item in prompt}
    if len(kinds) > 1:
        raise InvalidInputError("prompt", prompt, "must be messages or token ids, not both")
    for index, item in enumerate(prompt):
        if isinstance(item, Mapping) and set(item) == {"role", "content"}:
            for name in ("role", "content"):
                if not isinstance(item[name], str):
                    raise InvalidInputError(f"prompt[{index}].{name}", item[name], "must be a string")
            request.chat.messages.add(role=item["role"], content=item["content"])
        elif isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 2**32:
            request.tokens.ids.append(item)
        else:
            raise InvalidInputError(
                f"prompt[{index}]", item, "must be a token id, or a mapping with role and content"
            )


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    return [given] if isinstance(given, str) else given
