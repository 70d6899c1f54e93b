"""Convert a body to gateway requests, one for each choice (answer)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

from http_svc.body.bodies import NO_LIMIT, Body, ChatBody, CompletionBody
from http_svc.body.conversation import Conversation
from http_svc.body.forms import ANY_OBJECT
from http_svc.body.messages import Message
from http_svc.body.tokens import TokenizeBody
from http_svc.calls.answer_form import AnswerForm
from http_svc.calls.any_object import form_rule
from http_svc.calls.elements import kinds_of
from http_svc.calls.grammar import Wanted, call_grammar, form_named
from specinfer.client import make_request
from specinfer.client.options import RequestOptions, known_options
from specinfer.client.request import Prompt
from specinfer.errors import InvalidInputError
from specinfer.request.fields import SamplingFields
from specinfer.text.chat.forms import HARMONY, ChatForm
from specinfer.v1 import generation_pb2

MAX_REQUESTS = 128
"""Maximum choices of a call: prompts times `n`."""
MAX_BYTES = 2**24
"""Maximum bytes of a call's requests; each choice repeats the prompt."""
COMPLETION_TOKENS = 16
"""Default `max_tokens` of completions, as in OpenAI's API."""
_FILL_CONTEXT = 0
"""Value of `max_new_tokens` that allows answers up to the context's end."""
_UNSET: dict[str, Any] = {field.name: None for field in fields(SamplingFields)}
"""Options that have the model's default if they are None."""
_SAME = (known_options().keys() & Body.model_fields.keys()) - {
    *("seed", "top_k", "logit_bias", "request_id", "priority")
}
"""Options that are the body's fields of the same name."""


def chat_requests(body: ChatBody, form: ChatForm, request_id: str) -> list[generation_pb2.GenerateRequest]:
    """Return the requests of a chat body.

    Args:
        body: the checked body.
        form: the model's format of calls and reasoning.
        request_id: id of the request; with several choices, the prefix of their ids.
    """
    turns = [_turn(message) for message in body.messages]
    limit = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    options = _options(body, NO_LIMIT if limit is None else limit)
    if body.callable:
        options = _with_calls(options, body, form)
    request = make_request(turns, **options)
    _set_chat_fields(body, body.messages, request.chat)
    return _choices(body, [request], request_id)


def tokenize_request(body: TokenizeBody | ChatBody) -> generation_pb2.TokenizeRequest:
    if isinstance(body, TokenizeBody) and body.messages is None:
        plain = body.add_special_tokens is False
        return generation_pb2.TokenizeRequest(text=body.prompt, no_special_tokens=plain)
    messages = body.messages or []
    chat = make_request([_turn(message) for message in messages]).chat
    _set_chat_fields(body, messages, chat)
    return generation_pb2.TokenizeRequest(chat=chat)


def completion_requests(body: CompletionBody, request_id: str) -> list[generation_pb2.GenerateRequest]:
    """Return the requests of a completion body, `n` for each prompt."""
    options = _options(body, COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens)
    prompts = _prompts(body.prompt)
    _check_count(len(prompts) * (body.n or 1))
    requests = [make_request(prompt, **options) for prompt in prompts]
    if body.fills:
        files = [{"name": file.filename, "text": file.text} for file in body.input_extra or ()]
        for request in requests:
            prefix, suffix = request.text, body.suffix or ""
            request.infill.CopyFrom(generation_pb2.Infill(prefix=prefix, suffix=suffix, files=files))
    return _choices(body, requests, request_id)


def wants_logprobs(body: Body) -> bool:
    """Return whether log-probabilities are requested (completions: also by 0)."""
    if isinstance(body, CompletionBody):
        return body.logprobs is not None
    return isinstance(body, ChatBody) and bool(body.logprobs)


def _top_logprobs(body: Body) -> int:
    if isinstance(body, CompletionBody):
        return body.logprobs or 0
    return (body.top_logprobs or 0) if isinstance(body, ChatBody) else 0


def _set_chat_fields(
    body: Conversation, messages: Sequence[Message], chat: generation_pb2.ChatMessages
) -> None:
    """Set functions, earlier calls, template variables and ending in `chat`."""
    if body.continue_final_message:
        chat.end = generation_pb2.CHAT_END_CONTINUED
    elif body.add_generation_prompt is False:
        chat.end = generation_pb2.CHAT_END_CLOSED
    if body.variables:
        chat.variables = json.dumps(body.variables, ensure_ascii=False)
    offered = body.callable
    chat.tools.extend(
        [tool.model_dump_json(exclude_none=True) for tool in body.tools or () if tool.function in offered]
    )
    for message, turn in zip(messages, chat.messages, strict=True):
        turn.tool_call_id = message.tool_call_id or ""
        turn.reasoning = message.reasoning_text
        for call in message.tool_calls or ():
            turn.tool_calls.add(id=call.id, name=call.function.name, arguments=call.function.arguments)


def _turn(message: Message) -> Mapping[str, str]:
    content = message.content or ""
    text = content if isinstance(content, str) else "\n".join(part.text for part in content)
    return {"role": "system" if message.role == "developer" else message.role, "content": text}


def _prompts(given: str | list[str] | list[int] | list[list[int]]) -> Sequence[Prompt]:
    if isinstance(given, str):
        return [given]
    if not given:
        raise InvalidInputError("prompt", given, "must not be empty")
    tokens = [token for token in given if isinstance(token, int)]
    return [tokens] if tokens else [prompt for prompt in given if not isinstance(prompt, int)]


def _check_count(count: int) -> None:
    if count > MAX_REQUESTS:
        raise InvalidInputError("n", count, f"at most {MAX_REQUESTS}, counting all prompts", "choices")


def _choices(
    body: Body, prompted: Sequence[generation_pb2.GenerateRequest], request_id: str
) -> list[generation_pb2.GenerateRequest]:
    """Return `n` requests for each prompt, with different ids and seeds."""
    choices = body.n or 1
    count = choices * len(prompted)
    size = choices * sum(request.ByteSize() for request in prompted)
    if size > MAX_BYTES and count > 1:
        raise InvalidInputError(
            "n", count, f"have {size} bytes together, at most {MAX_BYTES} are allowed", "choices"
        )
    requests = []
    for number in range(count):
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(prompted[number // choices])
        request.stop_token_ids.extend(body.stop_token_ids or ())
        request.cut_to_context = True
        # choices of one seed would be equal
        if body.seed is not None:
            request.sampling.seed = (body.seed + number % choices) % 2**64
        request.request_id = request_id if count == 1 else f"{request_id}-{number}"
        requests.append(request)
    return requests


def _options(body: Body, limit: int) -> RequestOptions:
    options = _UNSET | {name: value for name in _SAME if (value := getattr(body, name)) is not None}
    options |= {
        "max_new_tokens": _FILL_CONTEXT if limit == NO_LIMIT else limit,
        "top_k": None if body.top_k is None else max(0, body.top_k),
        "logit_bias": {int(token): bias for token, bias in (body.logit_bias or {}).items()},
        "chat": isinstance(body, ChatBody),
        "logprobs": wants_logprobs(body),
        "top_logprobs": _top_logprobs(body),
    }
    return cast(RequestOptions, options | _form(body))


def _form(body: Body) -> RequestOptions:
    wanted = body.structured_outputs
    if wanted is None:
        form = body.response_format if isinstance(body, ChatBody) else None
        schema = form.schema_of_text if form else None
        return {} if schema is None else {"json_schema": schema}
    if wanted.json_schema is not None:
        return {"json_schema": wanted.json_schema}
    if wanted.regex is not None:
        return {"regex": wanted.regex}
    if wanted.choice is not None:
        return {"choice": wanted.choice}
    return {"json_schema": ANY_OBJECT} if wanted.grammar is None else {"grammar": wanted.grammar}


def _with_calls(options: RequestOptions, body: ChatBody, form: ChatForm) -> RequestOptions:
    """Replace the options' constraint by a grammar that allows calls, too."""
    wanted = Wanted(
        body.callable,
        form_named(form.calls),
        must_call=body.must_call,
        several=body.several_calls,
        other=form_rule(options),
        any_object=options.get("json_schema") == ANY_OBJECT,
        harmony=form.calls == HARMONY,
        mark_tokens=form.mark_tokens,
        reasoning=answer_form(body, form).reasoning,
    )
    kept = {name: value for name, value in options.items() if name not in ("json_schema", "regex", "choice")}
    return cast("RequestOptions", kept | {"grammar": call_grammar(wanted)})


def answer_form(body: Body, form: ChatForm) -> AnswerForm:
    """Return the parts (reasoning, calls) that answers may have.

    An answer with a constraint and without functions has no reasoning. A resumable stream is not parsed.
    """
    if not isinstance(body, ChatBody):
        return AnswerForm()
    functions = [function.name for function in body.callable] or None
    thinks = not body.resumable and (functions is not None or not _form(body))
    return AnswerForm(
        functions,
        form.reasoning if thinks else ("", ""),
        form.mark_tokens.get(form.reasoning[1]),
        kinds={function.name: kinds_of(function.parameters) for function in body.callable},
        calls=form_named(form.calls),
        harmony=form.calls == HARMONY,
        beginnings=_beginnings(body, form),
    )


def _beginnings(body: ChatBody, form: ChatForm) -> tuple[str, ...]:
    """Return the texts with which calls begin, if other answers are constrained."""
    asked = _form(body)
    if not body.callable or body.must_call or not asked:
        return ()
    mark = form_named(form.calls).mark
    return tuple({mark, ""} if asked.get("json_schema") == ANY_OBJECT else {mark})
