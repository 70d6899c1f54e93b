"""Request bodies: OpenAI's fields, vLLM's and our own.

These types check a value's type and bounds; the gateway checks the rest. `null` means that a field is left out.
"""

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, Field, create_model, model_validator
from pydantic_core import PydanticCustomError

from http_svc.body.conversation import Conversation, Turns
from http_svc.body.fields import (
    FIRST,
    MAX_TOKENS,
    Ignored,
    Salt,
    Speculation,
    Strict,
    Text,
    TokenId,
    Unsupported,
    Whole,
    at_most,
    only,
)
from http_svc.body.forms import ResponseFormat, StructuredOutputs
from http_svc.body.neutral import NeutralFields
from specinfer.request.fields import SamplingFields

MAX_BIASES, MAX_REFERENCES = 1024, 64
"""Maximum entries of `logit_bias` and of `references`."""
MAX_STOP_IDS = 256
"""Maximum entries of `stop_token_ids`."""
NO_LIMIT = -1
"""Value of `max_tokens` that allows answers up to the context's end."""


MAX_CHOICES = 128
"""Maximum answers of a call, as in OpenAI's API."""


def _limits(limit: int) -> int:
    if limit != NO_LIMIT and not 1 <= limit < 2**31:
        raise PydanticCustomError("no_limit", "must be in [1, 2**31), or -1 for no limit")
    return limit


Limit = Annotated[Whole, AfterValidator(_limits)] | None


def _token_keys(biases: dict[str, float] | None) -> dict[str, float] | None:
    """Check that all keys are token ids in decimal digits."""
    for key in biases or ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise PydanticCustomError("no_token", "keys must be token ids, written as decimal digits")
    return biases


class StreamOptions(Strict):
    """Field `stream_options`."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    """vLLM's field: every event has the token counts so far."""
    include_obfuscation: Ignored = None


_NUMBERS: dict[str, Any] = {
    field.name: (float | None, None)
    for field in fields(SamplingFields)
    if field.name != "typical_epsilon"  # lossy, so not in this API
}
if TYPE_CHECKING:
    SamplingBody = NeutralFields
else:
    SamplingBody = create_model("SamplingBody", __base__=NeutralFields, **_NUMBERS)


class Body(SamplingBody):
    """Fields of both chat completions and completions."""

    model: Text
    n: Whole | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: Limit = None
    temperature: float | None = Field(None, ge=0, le=2)
    seed: Whole | None = Field(default=None, ge=-(2**63), lt=2**64)
    """A negative seed s stands for s + 2**64."""
    stop: Text | Annotated[list[Text], FIRST] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: Whole | None = Field(default=None, ge=-1, lt=2**32)
    """Sample from this number of likeliest tokens; 0 or -1: from all."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's field: JSON schema, regex, choice or grammar of the text."""
    speculation: Speculation | None = None
    references: Annotated[list[Text], FIRST, at_most(MAX_REFERENCES)] | None = None
    """Texts from which the answer may copy."""
    cache_salt: Salt | None = None
    """vLLM's field: only calls with the same text share cached prompts."""
    no_training: bool | None = None
    """Speculators must not train on this call, as with the header `X-No-Training`."""
    resumable: bool | None = None
    """Events get ids, and clients may reconnect with `Last-Event-ID`."""

    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_token_keys), at_most(MAX_BIASES)] = None
    stop_token_ids: Annotated[list[TokenId], FIRST, at_most(MAX_STOP_IDS)] | None = None
    """vLLM's field: the answer ends after one of these tokens."""
    ignore_eos: bool | None = None
    """vLLM's field: the answer continues after the model's end-of-sequence token."""

    @property
    def wants_usage(self) -> bool:
        """True if a stream ends with its token counts."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def wants_usage_always(self) -> bool:
        """True if every event has the token counts so far."""
        options = self.stream_options
        return self.wants_usage and options is not None and bool(options.continuous_usage_stats)

    @model_validator(mode="after")
    def _check_stream(self) -> "Body":
        for name in ("stream_options", "resumable"):
            if getattr(self, name) and not self.stream:
                raise PydanticCustomError("needs_stream", "{field}: only with stream = true", {"field": name})
        if self.resumable and (self.n or 1) > 1:
            raise PydanticCustomError(
                "not_resumable",
                "{field}: only with n = 1",
                {"field": "resumable"},
            )
        return self


class ChatBody(Conversation, Body):
    """`POST /v1/chat/completions`."""

    messages: Turns
    max_completion_tokens: Limit = None
    response_format: ResponseFormat | None = None

    audio: Unsupported = None
    function_call: Annotated[None, only("none")] = None
    functions: Annotated[None, only([])] = None
    logprobs: bool | None = None
    modalities: Annotated[None, only(["text"])] = None
    prediction: Unsupported = None
    reasoning: Ignored = None
    include_reasoning: Ignored = None
    top_logprobs: Whole | None = Field(default=None, ge=0, le=20)
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _check_limits(self) -> "ChatBody":
        if None not in (limits := (self.max_tokens, self.max_completion_tokens)) and len(set(limits)) > 1:
            reason = "{field}: max_completion_tokens means the same and differs; give one of them"
            raise PydanticCustomError("twice", reason, {"field": "max_tokens"})
        if self.structured_outputs and self.response_format and self.response_format.type != "text":
            reason = "{field}: response_format constrains the text, too; give one of them"
            raise PydanticCustomError("twice", reason, {"field": "structured_outputs"})
        self._check_form()
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError(
                "alone", "{field}: only with logprobs = true", {"field": "top_logprobs"}
            )
        return self

    def _check_form(self) -> None:
        if not self.callable:
            return
        wanted = self.structured_outputs
        for field, excluded in (
            ("structured_outputs.grammar", wanted is not None and wanted.grammar is not None),
            ("resumable", self.resumable),
        ):
            if excluded:
                raise PydanticCustomError("excluded", "{field}: not supported with tools", {"field": field})


class InfillFile(Strict):
    """A file, or a part of one, next to a text with a gap."""

    filename: Text = "file"
    text: Text
    time: Ignored = None


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: Annotated[
        Text
        | Annotated[list[Text], FIRST]
        | Annotated[list[int], FIRST]
        | Annotated[list[Annotated[list[int], FIRST]], FIRST],
        at_most(MAX_TOKENS),
    ]

    best_of: Annotated[None, only(1)] = None
    echo: bool | None = None
    """True: the text begins with the prompt."""
    logprobs: Whole | None = Field(default=None, ge=0, le=5)
    suffix: Text | None = None
    """Text after the gap that the answer fills; the prompt is the text before it."""
    input_extra: Annotated[list[InfillFile], FIRST, at_most(MAX_REFERENCES)] | None = None
    """llama-server's field: other files, which the model reads before the text with the gap."""

    @property
    def fills(self) -> bool:
        """True if the answer fills a gap: an empty suffix alone is no gap."""
        return bool(self.suffix) or self.input_extra is not None

    @model_validator(mode="after")
    def _check_texts(self) -> "CompletionBody":
        prompts = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        if self.fills and not all(isinstance(prompt, str) for prompt in prompts):
            field = "suffix" if self.suffix else "input_extra"
            raise PydanticCustomError("no_text", "{field}: only with a prompt of text", {"field": field})
        if self.echo and self.logprobs is not None:
            raise PydanticCustomError("excluded", "{field}: not supported with logprobs", {"field": "echo"})
        return self
