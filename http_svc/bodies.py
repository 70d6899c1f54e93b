"""What callers may send: OpenAI's fields that we serve, those that we refuse by name, and ours.

Types only; what a value may be beyond that says the gateway. `null` is the same as left out.
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.fields import NotTrue, Strict, Text, Unsupported, only
from http_svc.forms import ResponseFormat, StructuredOutputs

MAX_CHOICES = 128
"""Most answers of one call, as in OpenAI's API."""
_POSITIVE = Field(default=None, ge=1, lt=2**31)


def _token_keys(biases: dict[str, float] | None) -> dict[str, float] | None:
    """JSON has no numbers as keys: token ids are written as text."""
    for key in biases or ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise PydanticCustomError("no_token", "keys must be token ids")
    return biases


class StreamOptions(Strict):
    """How a stream is sent."""

    include_usage: bool | None = None
    include_obfuscation: NotTrue = None


class Body(Strict):
    """What both kinds of calls have."""

    model: Text
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = _POSITIVE
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    """A negative one stands for itself plus 2**64."""
    stop: Text | list[Text] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = Field(default=None, ge=-1, lt=2**32)
    """0 or -1: all tokens."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's; the text must have this form."""
    speculation: Literal["tree", "sequence", "off"] | None = None
    resumable: bool | None = None
    """The events of the stream have ids, and a client that hangs up may come back with `Last-Event-ID`."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_token_keys)] = None
    user: Unsupported = None

    @model_validator(mode="after")
    def _check_stream(self) -> "Body":
        for name in ("stream_options", "resumable"):
            if getattr(self, name) and not self.stream:
                raise PydanticCustomError("needs_stream", "{field}: only with stream", {"field": name})
        if self.resumable and (self.n or 1) > 1:
            raise PydanticCustomError("not_resumable", "{field}: only with n = 1", {"field": "resumable"})
        return self


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(Strict):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    name: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Unsupported = None
    tool_calls: Annotated[None, only([])] = None


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = _POSITIVE
    response_format: ResponseFormat | None = None

    audio: Unsupported = None
    function_call: Annotated[None, only("none")] = None
    functions: Annotated[None, only([])] = None
    logprobs: bool | None = None
    metadata: Annotated[None, only({})] = None
    modalities: Annotated[None, only(["text"])] = None
    parallel_tool_calls: Annotated[None, only(True, False)] = None
    prediction: Unsupported = None
    prompt_cache_key: Unsupported = None
    prompt_cache_retention: Unsupported = None
    reasoning_effort: Unsupported = None
    safety_identifier: Unsupported = None
    service_tier: Annotated[None, only("auto", "default")] = None
    store: NotTrue = None
    tool_choice: Annotated[None, only("none", "auto")] = None
    tools: Annotated[None, only([])] = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _check_limits(self) -> "ChatBody":
        if None not in (self.max_tokens, self.max_completion_tokens):
            why = "{field}: max_completion_tokens is the same; give one"
            raise PydanticCustomError("twice", why, {"field": "max_tokens"})
        if self.structured_outputs and self.response_format and self.response_format.type != "text":
            why = "{field}: response_format asks for a form, too; give one"
            raise PydanticCustomError("twice", why, {"field": "structured_outputs"})
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("alone", "{field}: only with logprobs", {"field": "top_logprobs"})
        return self


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: Text | list[Text] | list[int] | list[list[int]]

    best_of: Annotated[None, only(1)] = None
    echo: NotTrue = None
    logprobs: int | None = Field(default=None, ge=0, le=5)
    suffix: Annotated[None, only("")] = None
