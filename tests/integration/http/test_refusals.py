"""Refusals of bodies by the HTTP service: status, shape, name of the field.

Gateways are fake ones that follow a script.
"""

import json
from typing import Any

import grpc
import pytest
from pydantic import BaseModel

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.fields import Neutral
from http_svc.body.messages import Message
from tests.support.network.http_service import ASKED, CHAT, COMPLETIONS, JSON, error_of, served

Code = grpc.StatusCode
PROMPTED: dict[str, Any] = {"model": "tiny", "prompt": "hi"}


def turn(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi", **fields}]}


DEEP = "[" * 100_000


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(levels):
        schema = {"properties": schema}
    return schema


def called(arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}],
    }


BAD_CHAT: dict[str, tuple[dict[str, Any], str, str]] = {
    "model of another type": ({"model": 5}, "model", "model = 5: "),
    "no messages": ({"messages": []}, "messages", "messages = []: "),
    "unknown role": (turn(role="function"), "messages[0].role", "messages[0].role = 'function': "),
    "no content": (turn(content=None), "messages[0]", "content: required with role user"),
    "a reference as number": ({"references": ["a", 1]}, "references[1]", "references[1] = 1: "),
    "lone surrogate": (turn(content="\ud800"), "messages[0].content", "without lone surrogates"),
    "an image": (
        turn(content=[{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]),
        "messages[0].content[1].type",
        "messages[0].content[1].type = 'image_url': ",
    ),
    "unknown field of a message": (turn(weight=1), "messages[0].weight", "unknown field"),
    "unknown field": ({"best": 1}, "best", "best = 1: unknown field"),
    "n zero": ({"n": 0}, "n", "n = 0: "),
    "n too large": ({"n": 129}, "n", "n = 129: "),
    "n as bool": ({"n": True}, "n", "n = True: "),
    "max_tokens": ({"max_tokens": 0}, "max_tokens", "max_tokens = 0: "),
    "max_completion_tokens": ({"max_completion_tokens": 2**31}, "max_completion_tokens", "= 2147483648: "),
    "both limits": (
        {"max_tokens": 1, "max_completion_tokens": 2},
        "max_tokens",
        "means the same and differs",
    ),
    "temperature above OpenAI's": ({"temperature": 5}, "temperature", "temperature = 5: "),
    "top_k": ({"top_k": -2}, "top_k", "top_k = -2: "),
    "seed": ({"seed": 2**64}, "seed", "seed = 18446744073709551616: "),
    "stop": (
        {"stop": 5},
        "stop",
        "stop = 5: Input should be a valid string; or Input should be a valid list",
    ),
    "stops": ({"stop": ["a", 5]}, "stop[1]", "stop[1] = 5: "),
    "stream_options": ({"stream_options": {"include_usage": True}}, "stream_options", "only with stream"),
    "usage": (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage",
        "include_usage = 1: ",
    ),
    "logit_bias of a word": ({"logit_bias": {"5": 1, "the": 1}}, "logit_bias", "keys must be token ids"),
    "logit_bias as text": ({"logit_bias": {"5": "1"}}, "logit_bias.5", "logit_bias.5 = '1': "),
    "top_logprobs alone": ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: only with logprobs"),
    "top_logprobs": ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "top_logprobs = 21: "),
    "speculation": ({"speculation": "trees"}, "speculation", "speculation = 'trees': "),
    "resumable without a stream": ({"resumable": True}, "resumable", "only with stream"),
    "resumable choices": ({"resumable": True, "stream": True, "n": 2}, "resumable", "only with n = 1"),
    "two schemas": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}, "schema": {}}},
        "response_format.json_schema",
        "or response_format.schema, not both",
    ),
    "a schema of text": (
        {"response_format": {"type": "text", "schema": {}}},
        "response_format.schema",
        "only with response_format.type = json_object or json_schema, not text",
    ),
    "a deep schema": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(300)}}]},
        "tools[0].function.parameters",
        "at most 64 levels",
    ),
    "a schema with a lone surrogate": (
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": "\udfff"}}}]},
        "tools[0].function.parameters",
        "without lone surrogates",
    ),
    "a schema with what is no JSON": (
        {"response_format": {"type": "json_object", "schema": {"maximum": float("inf")}}},
        "response_format.schema",
        "numbers must be finite",
    ),
    "deep arguments of an earlier call": (
        {"messages": [*ASKED["messages"], called(nested(300))]},
        "messages[1].tool_calls[0].function.arguments",
        "at most 64 levels",
    ),
    "arguments with a lone surrogate": (
        {"messages": [*ASKED["messages"], called({"a": "\ud800"})]},
        "messages[1].tool_calls[0].function.arguments",
        "without lone surrogates",
    ),
    "no repetition penalty": ({"repetition_penalty": 0}, "repetition_penalty", "= 0.0: must be above 0"),
    "vLLM's structural tags": (
        {"response_format": {"type": "structural_tag"}},
        "response_format.type",
        "'structural_tag': ",
    ),
}
BAD_COMPLETION: dict[str, tuple[dict[str, Any], str, str]] = {
    "prompt": ({"prompt": 5}, "prompt", "prompt = 5: "),
    "no prompt": ({"prompt": []}, "prompt", "prompt = []: must not be empty"),
    "negative token": ({"prompt": [5, -1]}, "prompt[1]", "prompt[1] = -1: "),
    "mixed": ({"prompt": ["a", 1]}, "prompt[1]", "prompt[1] = 1: "),
    "too many choices": (
        {"prompt": ["a", "b"], "n": 65},
        "n",
        "n = 130 choices: at most 128, counting all prompts",
    ),
    "messages": (ASKED, "messages", "unknown field"),
    "logprobs of completions": ({"logprobs": 6}, "logprobs", "logprobs = 6: "),
    "top_logprobs of completions": ({"top_logprobs": 2}, "top_logprobs", "unknown field"),
}


async def test_bad_fields_are_named() -> None:
    async with served() as (gateway, http):
        for path, good, table in ((CHAT, ASKED, BAD_CHAT), (COMPLETIONS, PROMPTED, BAD_COMPLETION)):
            for name, (fields, param, words) in table.items():
                content = json.dumps({**good, **fields})
                reply = await http.plain.post(path, content=content, headers=JSON)
                error = error_of(reply)
                assert (reply.status_code, error["param"]) == (400, param), (name, error)
                assert error["type"] == "invalid_request_error"
                assert words in error["message"], (name, error)
        for missing in ("model", "messages"):
            reply = await http.plain.post(CHAT, json={k: v for k, v in ASKED.items() if k != missing})
            error = error_of(reply)
            assert (error["message"], error["code"]) == (
                f"{missing}: required field is missing",
                "missing_required_parameter",
            )
        assert gateway.calls == []


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "5", DEEP, '{"a": NaN}', b'{"a": "\xff"}', '{"a": 1' + "0" * 5000 + "}"]
)
async def test_a_body_that_is_no_json_object(content: Any) -> None:
    async with served() as (_, http):
        reply = await http.plain.post(CHAT, content=content, headers=JSON)
        assert reply.status_code == 400
        assert error_of(reply)["message"].startswith(("body: ", "a = nan: unknown", "model: required field"))


def unsupported(model: type[BaseModel]) -> list[str]:
    """Return the fields that accept only values without effect."""
    fields = model.model_fields.items()
    return [name for name, field in fields if any(isinstance(part, Neutral) for part in field.metadata)]


async def test_errors_name_fields_that_are_not_supported() -> None:
    async with served() as (gateway, http):
        requested = [(CHAT, ASKED, "", name) for name in unsupported(ChatBody)]
        requested += [(COMPLETIONS, PROMPTED, "", name) for name in unsupported(CompletionBody)]
        requested += [(CHAT, ASKED, "messages[0].", name) for name in unsupported(Message)]
        assert {"min_tokens", "best_of", "audio"} <= {name for *_, name in requested}
        for path, good, before, name in requested:
            body = {**good, **(turn(**{name: "x"}) if before else {name: "x"})}
            reply = await http.plain.post(path, json=body)
            error = error_of(reply)
            assert reply.status_code == 400
            assert (error["param"], error["code"]) == (before + name, "unsupported_parameter")
            assert error["message"].startswith(f"{before}{name} = 'x': not supported, only null")
        assert gateway.calls == []


async def test_values_without_effect_are_accepted() -> None:
    """Clients send defaults of fields."""
    defaults: dict[str, Any] = {
        "n": 1,
        "stop": None,
        "seed": None,
        "presence_penalty": 0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "logprobs": False,
        "top_logprobs": None,
        "tools": [],
        "tool_choice": "none",
        "response_format": {"type": "text"},
        "stream_options": None,
        "user": None,
        "parallel_tool_calls": True,
        "modalities": ["text"],
        "skip_special_tokens": True,
        "function_call": "none",
    }
    async with served() as (gateway, http):
        reply = await http.plain.post(CHAT, json={**ASKED, **defaults})
        assert reply.status_code == 200
        assert (await http.plain.post(CHAT, json=ASKED)).status_code == 200
        with_defaults, plain = gateway.calls
        with_defaults.request_id = plain.request_id = ""
        assert with_defaults == plain
        assert not plain.sampling.HasField("temperature"), "the model may have a default"
        done = await http.plain.post(
            COMPLETIONS, json={**PROMPTED, "best_of": 1, "echo": False, "suffix": ""}
        )
        assert done.status_code == 200
