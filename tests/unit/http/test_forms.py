"""OpenAI's formats: conversion of bodies, answers and errors, without network."""

import math
from typing import Any

import grpc
import pytest
from pydantic import ValidationError

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.names import chat_names, completion_names
from http_svc.body.neutral import NeutralFields
from http_svc.body.tokens import TokenizeBody
from http_svc.errors import ApiError, api_error, invalid_body
from http_svc.items.body import ResponsesBody, conversation_of
from http_svc.responses import (
    CHAT,
    COMPLETION,
    ResponseShape,
    TextOffsets,
    chat_logprobs,
    completion_logprobs,
    usage_of,
)
from http_svc.streaming import encode, event_id, read_event_id
from http_svc.to_gateway import (
    chat_requests,
    completion_requests,
    tokenize_request,
)
from specinfer.client import (
    Answer,
    FinishReason,
    Piece,
    RequestFailedError,
    SpeculationStats,
    SpeculatorStats,
    Summary,
    TokenLogprob,
    TokenLogprobs,
    make_request,
)
from specinfer.client.errors import Failure
from specinfer.errors import InvalidInputError
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import generation_pb2

PLAIN = ChatForm()
HI = [{"role": "user", "content": "hi"}]
UNSET: Any = dict.fromkeys(("temperature", "top_k", "top_p", "min_p", "repetition_penalty"))
"""Parameters for which the model has defaults."""


def chat(**fields: Any) -> ChatBody:
    return ChatBody(**{"model": "m", "messages": HI, **fields})


def test_a_conversation_becomes_one_request_for_each_choice() -> None:
    def expected(**options: Any) -> generation_pb2.GenerateRequest:
        message = make_request(HI, max_new_tokens=7, request_id="id", **(UNSET | options))
        message.cut_to_context = True
        return message

    (one,) = chat_requests(
        chat(max_tokens=7, temperature=0.5, stop="x", top_k=-1, speculation="off"), PLAIN, "id"
    )
    assert one == expected(temperature=0.5, top_k=0, stop=["x"], speculation="off")
    (two,) = chat_requests(chat(max_tokens=7, temperature=0, references=["a", "b"]), PLAIN, "id")
    assert two == expected(temperature=0, references=["a", "b"])
    three = chat_requests(chat(n=3, seed=-1), PLAIN, "id")
    assert [request.request_id for request in three] == ["id-0", "id-1", "id-2"]
    assert [request.sampling.seed for request in three] == [2**64 - 1, 0, 1]
    assert {request.max_new_tokens for request in three} == {0}
    assert not any(request.sampling.HasField(name) for request in three for name in UNSET)
    (unseeded,) = chat_requests(chat(), PLAIN, "id")
    assert not unseeded.sampling.HasField("seed")


def test_prompts_of_completions() -> None:
    def prompts(prompt: Any, **fields: Any) -> list[Any]:
        body = CompletionBody(model="m", prompt=prompt, **fields)
        requests = completion_requests(body, "id")
        assert all(request.max_new_tokens == 16 for request in requests)
        return [request.text or list(request.tokens.ids) for request in requests]

    assert prompts("a") == ["a"]
    assert prompts(["a", "b"], n=2) == ["a", "a", "b", "b"]
    assert prompts([0, 5]) == [[0, 5]]
    assert prompts([[5], [6, 7]]) == [[5], [6, 7]]
    for empty in ([], [[]] * 129):
        with pytest.raises(InvalidInputError):
            prompts(empty)


ANSWERS = [
    Answer(
        text="ab",
        summary=Summary(
            FinishReason.STOP_TOKEN,
            prompt_tokens=5,
            new_tokens=count,
            stats=SpeculationStats(count, 9, 2, histogram, (SpeculatorStats("a", 9, 2, 1),)),
        ),
    )
    for count, histogram in ((3, (1, 2)), (4, (2, 1, 1)))
]


def test_usage_counts_a_prompt_once_and_its_choices_together() -> None:
    usage = usage_of(ANSWERS, prompts=1)
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 7, 12)
    assert usage["speculation"] == {
        "steps": 7,
        "drafted": 18,
        "accepted": 4,
        "acceptance_length": 1 + 4 / 7,
        "acceptance_histogram": [3, 3, 1],
        "speculators": {"a": {"drafted": 18, "accepted": 4, "wins": 2}},
    }
    assert usage_of(ANSWERS, prompts=2)["prompt_tokens"] == 10


def test_the_two_forms() -> None:
    whole = ResponseShape(CHAT, "id", "m", 1).whole(ANSWERS[:1], 1, [None])
    assert (whole["id"], whole["object"], whole["created"], whole["model"]) == (
        *("chatcmpl-id", "chat.completion", 1, "m"),
    )
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": "ab", "refusal": None}
    shape = ResponseShape(COMPLETION, "id", "m", 1, usage_comes=True)
    assert shape.whole(ANSWERS[:1], 1, [None])["choices"][0] == {
        "index": 0,
        "text": "ab",
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert shape.opening(0) is None
    part = shape.part(1, Piece(0, (5,), "x"), TextOffsets())
    assert (part["object"], part["usage"]) == ("text_completion", None)
    assert part["choices"] == [{"index": 1, "text": "x", "logprobs": None, "finish_reason": None}]
    end = shape.end(1, FinishReason.LENGTH)
    assert end["choices"] == [{"index": 1, "text": "", "logprobs": None, "finish_reason": "length"}]


def logprob_of(token: int, text: bytes, logprob: float) -> TokenLogprob:
    return TokenLogprob(token, text, logprob)


ROWS = (
    TokenLogprobs(
        logprob_of(7, b"\xe2\x82", -1.0), (logprob_of(8, b"a", -0.5), logprob_of(7, b"\xe2\x82", -1.0))
    ),
    TokenLogprobs(
        logprob_of(9, b"\xac!", -math.inf), (logprob_of(8, b"a", -0.25), logprob_of(4, b"b", -2.0))
    ),
    TokenLogprobs(logprob_of(8, b"a", -0.125), (logprob_of(8, b"a", -0.125), logprob_of(4, b"b", -3.0))),
)
"""The euro sign in two tokens."""


def test_log_probabilities_of_a_completion() -> None:
    assert completion_logprobs(ROWS, TextOffsets()) == {
        "tokens": [r"bytes:\xe2\x82", r"bytes:\xac\x21", "a"],
        "token_logprobs": [-1.0, -9999.0, -0.125],
        "top_logprobs": [
            {"a": -0.5, r"bytes:\xe2\x82": -1.0},
            {"a": -0.25, "b": -2.0, r"bytes:\xac\x21": -9999.0},
            {"a": -0.125, "b": -3.0},
        ],
        "text_offset": [0, 0, 2],
    }


def test_log_probabilities_of_a_conversation() -> None:
    offsets = TextOffsets()
    content = chat_logprobs(ROWS[1:2], offsets)["content"]
    assert content == [
        {
            "token": r"bytes:\xac\x21",
            "logprob": -9999.0,
            "bytes": [0xAC, 0x21],
            "top_logprobs": [
                {"token": "a", "logprob": -0.25, "bytes": [97]},
                {"token": "b", "logprob": -2.0, "bytes": [98]},
            ],
        }
    ]
    assert chat_logprobs((), offsets)["content"] == []


def test_events_and_their_ids() -> None:
    assert encode({"a": "\n\u2028ü"}, "r:5") == 'id: r:5\ndata: {"a":"\\n\\u2028ü"}\n\n'.encode()
    assert read_event_id(event_id("a:b", 7)) == ("a:b", 7)


def test_errors_of_gateways_name_the_callers_fields() -> None:
    def param(details: str, names: dict[str, str]) -> Any:
        error = api_error(RequestFailedError(Failure(grpc.StatusCode.INVALID_ARGUMENT, details)), names)
        return error.content["error"]["param"]

    old, new = chat_names(chat(max_tokens=5)), chat_names(chat())
    assert param("max_new_tokens = 9: too many", old) == "max_tokens"
    assert param("max_new_tokens = 9: too many", new) == "max_completion_tokens"
    assert param("chat = ['user']: the template refuses", new) == "messages"
    assert param("tokens.ids = 900 entries: at most 512", completion_names()) == "prompt"
    assert param("text = 99999: bytes", completion_names()) == "prompt"
    assert param("something went wrong", new) is None


@pytest.mark.parametrize(("seconds", "header"), [(None, None), (0.0, "1"), (1.2, "2"), (60.0, "60")])
def test_retry_after_is_a_whole_number_of_seconds(seconds: float | None, header: str | None) -> None:
    reply = ApiError(429, "full", "code", retry_after_s=seconds).response({"path": "/"})
    assert reply.headers.get("retry-after") == header


STREAMED: dict[Any, dict[str, Any]] = {ChatBody: {"stream": True}, CompletionBody: {"stream": True}}
VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**32, 2**63, 2**64, -(2**63), 10**400),
    *(0.0, 1.5, 1e308, float("nan"), float("inf"), "", "a", "\ud800", "\x00", "x" * 300, "none", "tree"),
    *([], [1], ["a"], [[1]], [[]], [None], ["\ud800"], [0] * 20, ["s"] * 20, [2**32], [-1], [True], [1.0]),
    *({}, {"type": "text"}, {"type": "text", "text": "x"}, {"include_usage": True}, {"a": {"b": [1]}}),
    *([{"role": "user", "content": "\udfff"}], [{"role": "user", "content": []}], [{"role": "user"}]),
]


def field_in_error(make: Any, model: Any, fields: dict[str, Any]) -> str | None:
    """Return the field that the error of a body names; None if the body becomes a request that can be sent."""
    try:
        for request in make(model.model_validate(fields), "id"):
            request.SerializeToString()
    except ValidationError as error:
        rows = [{**row, "loc": ("body", *row["loc"])} for row in error.errors()]
        error_body = invalid_body(rows).content["error"]
        error_body["message"].encode()
        return str(error_body["param"])
    except InvalidInputError as error:
        return error.field
    return None


def item_requests(body: ResponsesBody, request_id: str) -> list[Any]:
    return list(chat_requests(conversation_of(body), PLAIN, request_id))


@pytest.mark.parametrize(
    ("model", "make", "good"),
    [
        (
            ChatBody,
            lambda body, identity: chat_requests(body, PLAIN, identity),
            {"model": "m", "messages": HI},
        ),
        (CompletionBody, completion_requests, {"model": "m", "prompt": "x"}),
        (ResponsesBody, item_requests, {"model": "m", "input": "x"}),
        (TokenizeBody, lambda body, _: [tokenize_request(body)], {"model": "m", "messages": HI}),
    ],
)
def test_any_value_of_a_field_gives_a_request_or_an_error_that_names_it(
    model: Any, make: Any, good: dict[str, Any]
) -> None:
    outcomes = {
        (name, index): field_in_error(make, model, {**good, **STREAMED.get(model, {}), name: value})
        for name in [*(set(model.model_fields) - set(NeutralFields.model_fields)), "unknown"]
        for index, value in enumerate(VALUES)
    }
    wrong = {
        key: field for key, field in outcomes.items() if field is not None and not field.startswith(key[0])
    }
    # without messages a prompt is needed
    assert set(wrong.items()) <= ({(("messages", 0), "prompt")} if model is TokenizeBody else set())
    assert len(outcomes) / 20 < list(outcomes.values()).count(None) < len(outcomes) / 2
