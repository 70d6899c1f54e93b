"""Serve llama-server's `/infill`: its body becomes a completion's, its answer has `content`."""

from collections.abc import Sequence
from typing import Annotated, Any

from http_svc.body.bodies import MAX_REFERENCES, CompletionBody, InfillFile
from http_svc.body.fields import FIRST, Ignored, Text, Whole, at_most, known_only
from http_svc.body.neutral import NeutralFields
from http_svc.calls.answer import AnswerReader
from http_svc.calls.reader import Delta
from http_svc.errors import ApiError
from http_svc.responses import is_whole
from http_svc.to_gateway import completion_requests
from specinfer.client import Answer, stats_to_json
from specinfer.text.chat.forms import ChatForm
from specinfer.v1 import generation_pb2


class InfillBody(NeutralFields):
    """`POST /infill`."""

    model: Text | None = None
    input_prefix: Text
    input_suffix: Text
    input_extra: Annotated[list[InfillFile], FIRST, at_most(MAX_REFERENCES)] | None = None
    prompt: Text | None = None
    """Beginning of the text that fills the gap."""
    n_predict: Whole | None = None
    """Maximum tokens; editors warm the cache with 0, which makes one token here."""
    stream: bool | None = None
    seed: Whole | None = None
    stop: Text | Annotated[list[Text], FIRST] | None = None
    temperature: float | None = None
    top_k: Whole | None = None
    top_p: float | None = None
    min_p: float | None = None
    n_indent: Ignored = None
    samplers: Ignored = None
    t_max_predict_ms: Ignored = None
    t_max_prompt_ms: Ignored = None
    response_fields: Ignored = None


RENAMED = {"prompt": "input_prefix", "suffix": "input_suffix", "max_tokens": "n_predict"}
"""Field names of this body by those of a completion body, where they differ."""


def completion_of(body: InfillBody) -> CompletionBody:
    """Convert a checked body to a completion body."""
    fields = {name: getattr(body, name) for name in InfillBody.model_fields}
    fields |= {
        "model": body.model or "",
        "prompt": body.input_prefix,
        "suffix": body.input_suffix,
        "input_extra": [file.model_dump() for file in body.input_extra or ()],
        "max_tokens": -1 if body.n_predict is None else body.n_predict or 1,
    }
    return CompletionBody.model_validate(known_only(CompletionBody, fields))


def infill_requests(
    body: InfillBody, completion: CompletionBody, form: ChatForm, identity: str
) -> list[generation_pb2.GenerateRequest]:
    """Return the request of a body and its completion body."""
    requests = completion_requests(completion, identity)
    for request in requests:
        request.infill.begun = body.prompt or ""
    return requests


class InfillAnswer:
    """One answer of `/infill`."""

    def __init__(self, body: InfillBody, identity: str, model: str) -> None:
        self._model = model

    def whole(self, answer: Answer, reader: AnswerReader | None) -> dict[str, Any]:
        return self._last(answer.text, answer)

    def begin(self, answer: Answer) -> list[dict[str, Any]]:
        return []

    def push(self, text: str, deltas: Sequence[Delta] | None) -> list[dict[str, Any]]:
        return [{"content": text, "stop": False}] if text else []

    def end(self, answer: Answer, reader: AnswerReader | None) -> list[dict[str, Any]]:
        return [self._last("", answer)]

    def failure(self, error: ApiError) -> dict[str, Any]:
        return error.content

    def _last(self, text: str, answer: Answer) -> dict[str, Any]:
        summary = answer.summary
        ended = ("word" if summary.stop_string else "eos") if is_whole(answer) else "limit"
        return {
            "content": text,
            "stop": True,
            "model": self._model,
            "stop_type": ended,
            "stopping_word": summary.stop_string,
            "tokens_predicted": summary.new_tokens,
            "tokens_evaluated": summary.prompt_tokens,
            "tokens_cached": summary.cached_tokens,
            "truncated": False,
            "speculation": stats_to_json(summary.stats),
        }
