"""Bodies and connections that are cheap for clients, and must be cheap for the HTTP service."""

import asyncio
import json
from typing import Any

import grpc
import pytest
from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers

from http_svc.body.bodies import MAX_TOKENS, ChatBody, CompletionBody
from http_svc.entry.callers import CallerKeys
from http_svc.errors import invalid_body
from http_svc.models import Models
from http_svc.to_gateway import MAX_BYTES, chat_requests, completion_requests
from specinfer.client import AsyncClient
from specinfer.errors import InvalidInputError
from specinfer.text.chat.forms import ChatForm
from tests.support.network.fake_gateway import Turn, fake_gateways
from tests.support.network.http_service import ASKED, CHAT, MODEL, http_service
from tests.support.system import until

MANY = 20_000
"""More items than any list may have, except a prompt's tokens."""


def chat(**fields: Any) -> dict[str, Any]:
    return {**ASKED, **fields}


def completion(prompt: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, **fields}


def user_message(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


BOMBS: dict[str, tuple[type[ChatBody | CompletionBody], dict[str, Any], str]] = {
    "fractions": (CompletionBody, completion([1.5] * MANY), "prompt[0]"),
    "empty objects": (CompletionBody, completion([{}] * MANY), "prompt[0]"),
    "lists of lists": (CompletionBody, completion([[[]]] * MANY), "prompt[0][0]"),
    "late in a list": (CompletionBody, completion(["a"] * MANY + [1.5] * MANY), f"prompt[{MANY}]"),
    "tokens": (CompletionBody, completion([1] * (MAX_TOKENS + 1)), "prompt"),
    "messages": (ChatBody, chat(messages=[0] * MANY), "messages"),
    "few messages": (ChatBody, chat(messages=[{}] * 1000), "messages[0].role"),
    "parts": (ChatBody, chat(messages=user_message([0] * MANY)), "messages[0].content"),
    "few parts": (ChatBody, chat(messages=user_message([0] * 1000)), "messages[0].content[0]"),
    "tools": (ChatBody, chat(tools=[{}] * MANY), "tools"),
    "stops": (ChatBody, chat(stop=[0] * MANY), "stop[0]"),
    "biases": (ChatBody, chat(logit_bias={str(i): "x" for i in range(MANY)}), "logit_bias"),
    "references": (ChatBody, chat(references=[0] * MANY), "references"),
    "texts of a choice": (
        ChatBody,
        chat(structured_outputs={"choice": [0] * MANY}),
        "structured_outputs.choice",
    ),
    "unknown fields": (ChatBody, chat(**{f"x{i}": 0 for i in range(MANY)}), "x0"),
    "unknown fields of a message": (
        ChatBody,
        chat(messages=[{"role": "user", "content": "a", **{f"x{i}": 0 for i in range(MANY)}}]),
        "messages[0].x0",
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_the_check_of_a_body_stops_at_its_first_fault(name: str) -> None:
    """Otherwise a long body would give a long list of errors."""
    kind, body, param = BOMBS[name]
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(body)
    errors = [{**error, "loc": ("body", *error["loc"])} for error in caught.value.errors()]
    assert len(errors) <= 8
    answer = invalid_body(errors)
    assert answer.content["error"]["param"] == param
    assert len(json.dumps(answer.content)) < 1000


def test_choices_of_a_long_prompt_are_refused_before_they_are_built() -> None:
    text = "x" * (MAX_BYTES // 100)
    many = ChatBody.model_validate({"model": "m", "messages": user_message(text), "n": 128})
    with pytest.raises(InvalidInputError, match=f"choices: have .* bytes together, at most {MAX_BYTES}"):
        chat_requests(many, ChatForm(), "r")
    for make, body in (
        (completion_requests, CompletionBody(model="m", prompt=text, n=128)),
        (completion_requests, CompletionBody(model="m", prompt=[300] * (MAX_BYTES // 200), n=128)),
    ):
        with pytest.raises(InvalidInputError, match=f"choices: have .* bytes together, at most {MAX_BYTES}"):
            make(body, "r")
    (alone,) = completion_requests(CompletionBody(model="m", prompt=text), "r")
    assert alone.text == text


async def test_no_byte_of_a_body_is_read_without_a_key() -> None:
    """The service answers although the body is never sent."""
    refusing = Turn(code=grpc.StatusCode.UNAUTHENTICATED, details="authorization: no such key")
    async with fake_gateways([]) as (gateway,):
        gateway.refused = refusing
        async with http_service(gateway.address, patience_seconds=0.0) as http:
            host, port = http.url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(
                f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000000\r\n\r\n{{".encode()
            )
            assert (await reader.readline()).startswith(b"HTTP/1.1 401 ")
            writer.close()
            assert (await http.plain.post(CHAT, content=b"no JSON")).status_code == 401
            assert http.metric("calls_running") == 0
        assert gateway.calls == []


async def test_the_answer_about_a_key_is_cached_for_seconds() -> None:
    now = 100.0
    async with fake_gateways([]) as (gateway,):
        gateway.states.append(MODEL)
        async with AsyncClient(gateway.address) as client:
            callers = CallerKeys(client, Models(lambda: now), lambda: now)
            requested = []
            for key, later in (("a", 0.0), ("a", 4.0), ("b", 0.0), ("a", 2.0), (None, 0.0)):
                now += later
                await callers.admit(Headers({} if key is None else {"authorization": f"Bearer {key}"}))
                requested.append(len(gateway.metadata))
            assert requested == [1, 1, 2, 3, 4]
            for foreign in ("Basic abc", "Bearer", "Bearer ", "Bearer \xe9", ""):
                await callers.admit(Headers({"authorization": foreign}))
            assert len(gateway.metadata) == 4, "each of them counts as no key"


async def test_calls_that_wait_for_their_key_are_counted() -> None:
    async with fake_gateways([]) as (gateway,):
        gateway.silent = asyncio.Event()
        gateway.states.append(MODEL)
        async with http_service(gateway.address, max_calls=1) as http:
            waiting = asyncio.create_task(http.plain.post(CHAT, json=ASKED))
            await until(lambda: http.metric("calls_running") == 1)
            assert (await http.plain.post(CHAT, json=ASKED)).status_code == 503
            gateway.silent.set()
            assert (await waiting).status_code == 200


async def test_bodies_that_no_gateway_can_be_sent_are_invalid() -> None:
    """A lone surrogate is valid JSON, but no text; a tool of 300 levels is nested too deeply."""
    deep: dict[str, Any] = {}
    for _ in range(300):
        deep = {"properties": deep}

    def tool(parameters: Any) -> dict[str, Any]:
        return {"type": "function", "function": {"name": "f", "parameters": parameters}}

    bodies = [
        chat(tools=[tool({"x": "\udfff"})]),
        chat(tools=[tool(deep)]),
        chat(messages=user_message("\ud800")),
        chat(stop="\ud800"),
        chat(structured_outputs={"regex": "\ud800"}),
    ]
    async with fake_gateways([]) as (gateway,):
        gateway.states.append(MODEL)
        async with http_service(gateway.address) as http:
            for body in bodies:
                headers = {"Content-Type": "application/json"}
                reply = await http.plain.post(CHAT, content=json.dumps(body), headers=headers)
                assert (reply.status_code, reply.json()["error"]["type"]) == (400, "invalid_request_error"), (
                    body
                )
