"""Fuzzing target for HTTP: bodies of OpenAI's API, mutated as JSON and as text, and Host headers.

A body becomes messages to the gateway, or is refused with a short error. No service runs.
"""

import json
from contextlib import suppress
from copy import deepcopy
from functools import partial
from random import Random
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.entry.hosts import AllowedHosts
from http_svc.errors import ApiError, invalid_body
from http_svc.to_gateway import chat_requests, completion_requests
from specinfer.errors import SpecInferError
from specinfer.text.chat.forms import ChatForm
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.text.constraints.grammars import check_json
from tests.fuzz.doors.door import Episode

_BODIES = 60
_MAX_SAID = 4096
"""Maximum characters of a refusal."""
_TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
_CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "5"},
    ],
    "tools": [_TOOL],
    "tool_choice": "auto",
    "max_tokens": 8,
    "temperature": 0.5,
    "logit_bias": {"5": 1.0},
    "stop": ["a", "b"],
    "n": 2,
    "logprobs": True,
    "top_logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
}
_COMPLETION: dict[str, Any] = {
    "model": "tiny",
    "prompt": ["hi", "there"],
    "max_tokens": 4,
    "echo": False,
    "logprobs": 1,
    "seed": 1,
    "structured_outputs": {"regex": "a+"},
}
_ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        0,
        -1,
        12.0,
        2**63,
        2**70,
        -(2**63),
        1e308,
        float("nan"),
        float("inf"),
        "",
        "\ud800",
        "\0",
        "a" * 300,
    ),
    *(
        [],
        {},
        [[]],
        [None],
        {"": 0},
        {"type": "object"},
        {"$ref": "#"},
        [1.5],
        ["\udfff"],
        "developer",
        "json_object",
    ),
)
_HOSTS = (
    "localhost",
    "127.0.0.1:8000",
    "[::1]:80",
    "evil.example",
    "[",
    "]",
    ":",
    "::::",
    "[[::1]",
    "a" * 999,
    "\xff.\xfe",
)


def _parts(value: Any) -> list[tuple[Any, Any]]:
    """Return every place in a JSON value, as a container and its key or index."""
    parts, level = [], [value]
    while level:
        one = level.pop()
        keys = list(one) if isinstance(one, dict) else range(len(one)) if isinstance(one, list) else ()
        for key in keys:
            parts.append((one, key))
            level.append(one[key])
    return parts


def _spoil(body: dict[str, Any], rng: Random) -> dict[str, Any]:
    """Change a few places of a body."""
    body = deepcopy(body)
    for _ in range(rng.randrange(1, 4)):
        parts = _parts(body)
        if not parts:
            break
        container, key = rng.choice(parts)
        match rng.randrange(5):
            case 0:
                del container[key]
            case 1 if isinstance(container, list):
                container.extend([container[key]] * rng.choice((1, 3, 20)))
            case 2 if isinstance(container, dict):
                container[rng.choice(("unknown", "", "content", "text", "schema", "n"))] = deepcopy(
                    rng.choice(_ODD)
                )
            case 3:
                for _ in range(rng.choice((1, 1, 60, 300)) if len(str(container)) < 2000 else 0):
                    container[key] = rng.choice(([container[key]], {"properties": container[key]}))
            case _:
                container[key] = deepcopy(rng.choice(_ODD))
    return body


def _cut(text: str, rng: Random) -> str:
    """Change a JSON text at one place."""
    at = rng.randrange(len(text) + 1)
    return rng.choice(
        (text[:at], text[:at] + rng.choice('{}[],:"\\0e') + text[at:], text[:at] + text[at + 1 :])
    )


class BodyDoor:
    """Target that reads bodies as the HTTP service does."""

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        rng = episode.rng
        for _ in range(_BODIES):
            kind, valid = rng.choice(((ChatBody, _CHAT), (CompletionBody, _COMPLETION)))
            text = json.dumps(_spoil(valid, rng))
            text = episode.spoilt(_cut(text, rng) if rng.random() < 0.2 else text)
            refusal = self._refusal(kind, text)
            if refusal is not None:
                episode.refused += 1
                assert len(refusal) <= _MAX_SAID, refusal[:200]
            self._schema(text, rng)
            host = _cut(rng.choice(_HOSTS), rng)
            assert AllowedHosts(["*"]).allow(host)
            assert not AllowedHosts([]).allow("evil.example")
            AllowedHosts(["localhost", "*.inner.example"]).allow(host)

    def _refusal(self, kind: Any, text: str) -> str | None:
        """Return the error of a body; None if it becomes messages."""
        try:
            body = kind.model_validate(json.loads(text))
        except ValidationError as error:
            return str(invalid_body(error.errors()).content)
        except (ValueError, RecursionError):  # no JSON
            return ""
        chat = isinstance(body, ChatBody)
        make = partial(chat_requests, body, ChatForm()) if chat else partial(completion_requests, body)
        try:
            for message in make("id"):
                type(message).FromString(message.SerializeToString())
        except (ApiError, SpecInferError) as error:
            return str(error)
        except (UnicodeEncodeError, PydanticSerializationError):  # answered with 400 by the application
            return ""
        return None

    def _schema(self, text: str, rng: Random) -> None:
        """Check a text as a JSON schema or a choice."""
        with suppress(SpecInferError):
            check_json(Constraint(rng.choice((ConstraintKind.JSON_SCHEMA, ConstraintKind.CHOICE)), text))
