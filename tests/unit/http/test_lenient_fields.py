"""Values that clients send and that change no answer are accepted; what they mean is followed."""

import logging
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from http_svc.body.bodies import ChatBody, CompletionBody
from http_svc.body.fields import Speculation
from http_svc.body.neutral import RoutingFields
from http_svc.body.tokens import DetokenizeBody, TokenizeBody
from http_svc.items.answer import response_object
from http_svc.items.body import ResponsesBody, conversation_of
from http_svc.messages.body import MessagesBody
from http_svc.to_gateway import chat_requests
from specinfer.request.fields import SPECULATIONS
from specinfer.text.chat.forms import ChatForm

HI = [{"role": "user", "content": "hi"}]
BODIES: list[tuple[type[BaseModel], dict[str, Any]]] = [
    (ChatBody, {"model": "m", "messages": HI}),
    (CompletionBody, {"model": "m", "prompt": "hi"}),
    (ResponsesBody, {"model": "m", "input": "hi"}),
    (TokenizeBody, {"messages": HI}),
    (DetokenizeBody, {"tokens": [1]}),
]
FUNCTIONS = [{"type": "function", "function": {"name": name}} for name in "fg"]


def test_every_door_knows_all_kinds_of_speculation() -> None:
    assert get_args(Speculation) == SPECULATIONS
    assert {
        str(kind.model_fields["speculation"].annotation) for kind in (ChatBody, ResponsesBody, MessagesBody)
    } == {str(Speculation | None)}


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_null_means_left_out_at_every_door(kind: Any, body: dict[str, Any]) -> None:
    names = [name for name, field in kind.model_fields.items() if not field.is_required()]
    nulls = dict.fromkeys([*names, "documents", "kv_transfer_params", "nobody_knows_this"])
    assert kind.model_validate(nulls | body) == kind.model_validate(body)
    with pytest.raises(ValidationError):
        kind.model_validate(body | {"nobody_knows_this": 1})
    for name in body:
        with pytest.raises(ValidationError):
            kind.model_validate(body | {name: None})


def test_null_is_taken_within_objects() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": None, "audio": None, "reasoning": None}
    tool = {"type": "function", "function": {"name": "f", "parameters": None, "x": None}, "y": None}
    fields = {"stream": True, "stream_options": {"include_usage": None, "z": None}}
    ChatBody.model_validate({"model": "m", "messages": [*HI, message], "tools": [tool], **fields})


@pytest.mark.parametrize(("kind", "body"), BODIES)
def test_fields_about_caches_and_routing_are_taken_with_one_log_line_a_name(
    kind: Any, body: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    fields = {name: {"secret": 1} for name in RoutingFields.model_fields}
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            kind.model_validate(body | fields)
    assert not any("secret" in line for line in caplog.messages)
    assert len(set(caplog.messages)) == len(caplog.messages)


def test_a_salt_must_be_a_text() -> None:
    for salt in ("", 5, "x" * 257):
        with pytest.raises(ValidationError):
            ChatBody.model_validate({"model": "m", "messages": HI, "cache_salt": salt})
    salted = ResponsesBody.model_validate({"model": "m", "input": "hi", "cache_salt": "a"})
    (request,) = chat_requests(conversation_of(salted), ChatForm(), "id")
    assert request.cache_salt == "a"


def nested(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def flat(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "name": name} for name in names]


CHOICES: list[tuple[Any, list[str], bool]] = [
    (None, ["f", "g"], False),
    ("auto", ["f", "g"], False),
    ("none", [], False),
    ("any", ["f", "g"], True),
    ("required", ["f", "g"], True),
    (nested("g")[0], ["g"], True),
    (flat("g")[0], ["g"], True),
    *[
        ({"type": "allowed_tools", **fields}, ["g"], mode == "required")
        for mode in ("auto", "required")
        for tools in (nested("g"), flat("g"))
        for fields in ({"allowed_tools": {"mode": mode, "tools": tools}}, {"mode": mode, "tools": tools})
    ],
]


@pytest.mark.parametrize(("choice", "names", "must_call"), CHOICES)
def test_every_form_of_a_choice_is_followed_at_both_doors(
    choice: Any, names: list[str], must_call: bool
) -> None:
    chat = ChatBody.model_validate({"model": "m", "messages": HI, "tools": FUNCTIONS, "tool_choice": choice})
    body = ResponsesBody.model_validate(
        {"model": "m", "input": "hi", "tools": flat("f", "g"), "tool_choice": choice}
    )
    for one in (chat, conversation_of(body)):
        assert ([function.name for function in one.callable], one.must_call) == (names, must_call)
    shown = response_object(body, "id", "m", 1)["tool_choice"]
    again = ResponsesBody.model_validate(body.model_dump(by_alias=True) | {"tool_choice": shown})
    assert conversation_of(again).callable == conversation_of(body).callable


@pytest.mark.parametrize("nest", [True, False])
def test_tools_that_are_not_functions_are_left_out_of_a_choice_that_requires_none(nest: bool) -> None:
    others = [{"type": "mcp", "server_label": "x"}, {"type": "image_generation"}]
    for mode in ("auto", "required"):
        allowed = {"mode": mode, "tools": [*others, *flat("g")]}
        choice = {"type": "allowed_tools", **({"allowed_tools": allowed} if nest else allowed)}
        for kind, functions in ((ChatBody, FUNCTIONS), (ResponsesBody, flat("f", "g"))):
            body = {"model": "m", "tools": [*others, *functions], "tool_choice": choice}
            body |= {"messages": HI} if kind is ChatBody else {"input": "hi"}
            if mode == "required":
                with pytest.raises(ValidationError):
                    kind.model_validate(body)
                continue
            checked = kind.model_validate(body)
            chat = conversation_of(checked) if isinstance(checked, ResponsesBody) else checked
            assert ([one.name for one in chat.callable], chat.must_call) == (["g"], False)


def test_items_without_call_ids_belong_together_by_their_order() -> None:
    call, result = {"type": "function_call", "call_id": None, "name": "f"}, {"type": "function_call_output"}
    body = ResponsesBody.model_validate({"model": "m", "input": [call, {**result, "output": "r"}]})
    asked, answered = conversation_of(body).messages
    assert asked.tool_calls
    assert asked.tool_calls[0].id == answered.tool_call_id


BAD_CHOICES = [
    *nested("h"),
    *flat("h"),
    {"type": "web_search"},
    {"type": "allowed_tools"},
    "some",
    {"type": "allowed_tools", "mode": "auto", "tools": flat("g", "h")},
    {"type": "allowed_tools", "mode": "sometimes", "tools": flat("g")},
]


@pytest.mark.parametrize("choice", BAD_CHOICES)
def test_other_choices_are_refused(choice: Any) -> None:
    with pytest.raises(ValidationError, match="tool_choice"):
        ChatBody.model_validate({"model": "m", "messages": HI, "tools": FUNCTIONS, "tool_choice": choice})


def test_calls_and_results_without_ids_belong_together_by_their_order() -> None:
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": None}}
    turns = [
        *HI,
        {"role": "assistant", "content": None, "tool_calls": [call, {**call, "id": "given"}, call]},
        *[{"role": "tool", "tool_call_id": name, "content": "1"} for name in (None, None, "given")],
    ]
    (request,) = chat_requests(ChatBody.model_validate({"model": "m", "messages": turns}), ChatForm(), "id")
    _, asked, *results = request.chat.messages
    first, given, last = [call.id for call in asked.tool_calls]
    assert len({first, given, last}) == 3
    assert [result.tool_call_id for result in results] == [first, last, given]
    with pytest.raises(ValidationError, match="tool_call_id"):
        ChatBody.model_validate({"model": "m", "messages": [*HI, turns[2]]})


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_reasoning_of_earlier_answers_has_either_name(field: str) -> None:
    turns = [*HI, {"role": "assistant", "content": "a", field: "Hm.", "reasoning_details": [{}]}, *HI]
    (request,) = chat_requests(ChatBody.model_validate({"model": "m", "messages": turns}), ChatForm(), "id")
    assert request.chat.messages[1].reasoning == "Hm."


def test_reasoning_items_reach_the_assistants_message() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}

    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "C"}]}
    call = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": "1"}
    answer = {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "..."}
    items = [*HI, thought("A"), thought("B"), call, result, summary, answer, *HI, hidden, answer]
    chat = conversation_of(ResponsesBody.model_validate({"model": "m", "input": items}))
    told = [(message.role, message.reasoning_text, message.content) for message in chat.messages]
    assert told == [
        ("user", "", "hi"),
        ("assistant", "A\nB", None),
        ("tool", "", "1"),
        ("assistant", "C", "x"),
        ("user", "", "hi"),
        ("assistant", "", "x"),
    ]
