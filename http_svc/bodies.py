"""What callers may send: OpenAI's fields that we serve, those that we refuse by name, and ours.

Types only; what a value may be beyond that says the gateway. `null` is the same as left out.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_CHOICES = 128
"""Most answers of one call, as in OpenAI's API."""
_POSITIVE = Field(default=None, ge=1, lt=2**31)


def _only(*neutral: Any) -> BeforeValidator:
    """Takes values that ask for nothing, as if they were left out, and refuses all others."""

    def check(value: Any) -> None:
        if value is not None and value not in neutral:
            raise PydanticCustomError("unsupported", "not supported")

    return BeforeValidator(check)


def _encodable(text: str) -> str:
    """JSON can write halves of characters (surrogates), which no UTF-8 has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("not_text", "must be Unicode text, without lone surrogates") from None
    return text


def _token_keys(biases: dict[str, float] | None) -> dict[str, float] | None:
    """JSON has no numbers as keys: token ids are written as text."""
    for key in biases or ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise PydanticCustomError("no_token", "keys must be token ids")
    return biases


Text = Annotated[str, AfterValidator(_encodable)]
Unsupported = Annotated[None, _only()]
NotTrue = Annotated[None, _only(False)]
NotNonzero = Annotated[None, _only(0)]


class _Strict(BaseModel):
    """Unknown fields and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """How a stream is sent."""

    include_usage: bool | None = None
    include_obfuscation: NotTrue = None


class ResponseFormat(_Strict):
    """Which form the answer has."""

    type: Literal["text"]


class Body(_Strict):
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


class TextPart(_Strict):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class Message(_Strict):
    """A turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Text | list[TextPart]

    name: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Unsupported = None
    tool_calls: Annotated[None, _only([])] = None


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = _POSITIVE
    response_format: ResponseFormat | None = None

    audio: Unsupported = None
    function_call: Annotated[None, _only("none")] = None
    functions: Annotated[None, _only([])] = None
    logprobs: NotTrue = None
    metadata: Annotated[None, _only({})] = None
    modalities: Annotated[None, _only(["text"])] = None
    parallel_tool_calls: Annotated[None, _only(True, False)] = None
    prediction: Unsupported = None
    prompt_cache_key: Unsupported = None
    prompt_cache_retention: Unsupported = None
    reasoning_effort: Unsupported = None
    safety_identifier: Unsupported = None
    service_tier: Annotated[None, _only("auto", "default")] = None
    store: NotTrue = None
    tool_choice: Annotated[None, _only("none", "auto")] = None
    tools: Annotated[None, _only([])] = None
    top_logprobs: NotNonzero = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _check_limits(self) -> "ChatBody":
        if None not in (self.max_tokens, self.max_completion_tokens):
            why = "{field}: max_completion_tokens is the same; give one"
            raise PydanticCustomError("twice", why, {"field": "max_tokens"})
        return self


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: Text | list[Text] | list[int] | list[list[int]]

    best_of: Annotated[None, _only(1)] = None
    echo: NotTrue = None
    logprobs: Unsupported = None
    suffix: Annotated[None, _only("")] = None
