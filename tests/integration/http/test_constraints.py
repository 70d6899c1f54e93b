"""Constrained answers over HTTP: OpenAI's `response_format` and vLLM's `structured_outputs`."""

import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from tests.support.network.http_service import http_service
from tests.support.system import running_system

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
MESSAGES: Any = [{"role": "user", "content": "hi"}]
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 120, "temperature": 0.8, "seed": 3}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
FORMS: list[tuple[dict[str, Any], str]] = [
    ({"json": SCHEMA}, r'\{\s*"ok"\s*:\s*(true|false)\s*,\s*"n"\s*:\s*\d\s*\}'),
    ({"json": json.dumps(SCHEMA)}, r'\{\s*"ok"\s*:\s*(true|false)\s*,\s*"n"\s*:\s*\d\s*\}'),
    ({"regex": "[ab]{3}c"}, "[ab]{3}c"),
    ({"choice": ["yes", "no"]}, "yes|no"),
    ({"grammar": 'start: "x" d\nd: /[0-9]{2}/'}, "x[0-9]{2}"),
]


@asynccontextmanager
async def served(redis_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Yield OpenAI's client of a system without speculators."""
    async with (
        running_system(redis_url, eos=0) as system,
        http_service(system.address) as http,
        http.openai() as client,
    ):
        yield client


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "foo"}}}},
        "response_format.json_schema.schema",
        "Invalid type: foo",
    ),
    (
        {"response_format": {"type": "json_schema"}},
        "response_format.json_schema",
        "needed with response_format.type",
    ),
    ({"response_format": {"type": "grammar"}}, "response_format.type", "json_object"),
    ({"structured_outputs": {"regex": "a(b"}}, "structured_outputs.regex", "at character 2: unclosed group"),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "must have one of"),
    ({"structured_outputs": {}}, "structured_outputs", "must have one of"),
    ({"structured_outputs": {"choice": ["b", ""]}}, "structured_outputs.choice[1]", "must not be empty"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "line 1, column 2"),
    ({"structured_outputs": {"json": 5}}, "structured_outputs.json", "valid"),
    (
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "structured_outputs",
        "give one",
    ),
]


async def test_answers_have_the_requested_form(redis_url: str) -> None:
    async with served(redis_url) as client:
        whole = await client.chat.completions.create(**ASKED, messages=MESSAGES, response_format=FORMAT)
        answer = json.loads(whole.choices[0].message.content or "")
        assert (set(answer), whole.choices[0].finish_reason) == ({"ok", "n"}, "stop")
        chunks = await client.chat.completions.create(
            **ASKED, messages=MESSAGES, response_format=FORMAT, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
        assert text == whole.choices[0].message.content
        for form, pattern in FORMS:
            body: Any = {"extra_body": {"structured_outputs": form}}
            chat = await client.chat.completions.create(**ASKED, messages=MESSAGES, **body)
            assert re.fullmatch(pattern, chat.choices[0].message.content or ""), form
            completion = await client.completions.create(**ASKED, prompt="ab", **body)
            assert re.fullmatch(pattern, completion.choices[0].text), form
        some = await client.chat.completions.create(
            **ASKED | {"max_tokens": 5}, messages=MESSAGES, response_format={"type": "json_object"}
        )
        assert (some.choices[0].message.content or "").startswith("{")


async def test_errors_name_field_and_position_of_bad_forms(redis_url: str) -> None:
    async with served(redis_url) as client:
        for fields, param, reason in REFUSED:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(**ASKED, messages=MESSAGES, extra_body=fields)
            assert caught.value.param == param, fields
            assert reason in caught.value.message, fields
