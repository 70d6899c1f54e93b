"""Bodies of callers: OpenAI's fields that we serve, those that we refuse by name, and ours.

Types only; the gateway checks all else of a value. `null` is the same as left out.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from http_svc.fields import FIRST, NotTrue, Strict, Text, Unsupported, at_most, only
from http_svc.tools import ChosenTool, Function, Tool, ToolCall

MOST_MESSAGES, MOST_PARTS, MOST_CALLS, MOST_TOOLS = 1024, 1024, 128, 128
"""Messages of a conversation, parts of a message, calls of a turn, tools."""
MOST_BIASES, MOST_REFERENCES, MOST_TEXTS = 1024, 64, 2**14
"""Entries of `logit_bias`, references, texts of a choice."""
MOST_TOKENS = 2**18
"""Token ids of a prompt, more than a context has."""


class JsonSchema(Strict):
    """A schema with a name."""

    name: Text
    content: dict[str, Any] = Field(alias="schema")
    description: Text | None = None
    strict: bool | None = None
    """The answer follows the schema in any case."""


class ResponseFormat(Strict):
    """Form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _check(self) -> "ResponseFormat":
        if (self.type == "json_schema") != (self.json_schema is not None):
            why = "{field}: needed with type json_schema, and only there"
            raise PydanticCustomError("mismatch", why, {"field": "response_format.json_schema"})
        return self


class StructuredOutputs(Strict):
    """Form of the text: one of these."""

    json_schema: dict[str, Any] | Text | None = Field(default=None, alias="json")
    regex: Text | None = None
    choice: Annotated[list[Text], FIRST, at_most(MOST_TEXTS)] | None = None
    grammar: Text | None = None
    json_object: bool | None = None

    @model_validator(mode="after")
    def _check(self) -> "StructuredOutputs":
        fields = (self.json_schema, self.regex, self.choice, self.grammar, self.json_object or None)
        if sum(value is not None for value in fields) != 1:
            why = "{field}: must have one of json, regex, choice, grammar and json_object"
            raise PydanticCustomError("not_one", why, {"field": "structured_outputs"})
        return self


MAX_CHOICES = 128
"""Most answers of one call, as in OpenAI's API."""
_POSITIVE = Field(default=None, ge=1, lt=2**31)


def _token_keys(biases: dict[str, float] | None) -> dict[str, float] | None:
    """Write token ids as text: JSON has no numbers as keys."""
    for key in biases or ():
        if not (key.isascii() and key.isdecimal() and len(key) < 10):
            raise PydanticCustomError("no_token", "keys must be token ids")
    return biases


class StreamOptions(Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    include_obfuscation: NotTrue = None


class Body(Strict):
    """Fields that both kinds of calls have."""

    model: Text
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = _POSITIVE
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    """A negative one stands for itself plus 2**64."""
    stop: Text | Annotated[list[Text], FIRST] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    top_k: int | None = Field(default=None, ge=-1, lt=2**32)
    """0 or -1: all tokens."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's; the text must have this form."""
    speculation: Literal["tree", "sequence", "off"] | None = None
    references: Annotated[list[Text], FIRST, at_most(MOST_REFERENCES)] | None = None
    """Texts from which the answer may copy."""
    resumable: bool | None = None
    """The events of the stream have ids, and a client that hangs up may come back with `Last-Event-ID`."""

    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, AfterValidator(_token_keys), at_most(MOST_BIASES)] = None
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

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], FIRST, at_most(MOST_PARTS)] | None = None
    tool_calls: Annotated[list[ToolCall], FIRST, at_most(MOST_CALLS)] | None = None
    tool_call_id: Text | None = None

    name: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None
    refusal: Unsupported = None

    @model_validator(mode="after")
    def _check_content(self) -> "Message":
        if self.tool_calls and self.role != "assistant":
            raise PydanticCustomError("misplaced", "tool_calls: only of the assistant")
        if (self.role == "tool") != (self.tool_call_id is not None):
            raise PydanticCustomError("misplaced", "tool_call_id: needed with role tool, and only there")
        if self.content is None and not self.tool_calls:
            raise PydanticCustomError("no_content", "content: needed without tool_calls")
        return self


class ChatBody(Body):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1), FIRST, at_most(MOST_MESSAGES)]
    max_completion_tokens: int | None = _POSITIVE
    response_format: ResponseFormat | None = None
    decomposition: Literal["none", "skeleton"] | None = None
    """`skeleton`: points of an answer are expanded at the same time (skeleton-of-thought); not lossless."""

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
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | None = None
    tools: Annotated[list[Tool], FIRST, at_most(MOST_TOOLS)] | None = None
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
        self._check_tools()
        if self.decomposition == "skeleton" and self.resumable:
            raise PydanticCustomError("excluded", "{field}: excludes resumable", {"field": "decomposition"})
        if self.top_logprobs and not self.logprobs:
            raise PydanticCustomError("alone", "{field}: only with logprobs", {"field": "top_logprobs"})
        return self

    @property
    def callable(self) -> list[Function]:
        """The functions of which one may be called."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, ChosenTool):
            return [one for one in functions if one.name == self.tool_choice.function.name]
        return [] if self.tool_choice == "none" else functions

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            why = "{field}: two functions have the same name"
            raise PydanticCustomError("twice", why, {"field": "tools"})
        if self.tool_choice not in (None, "none", "auto") and not self.callable:
            why = "{field}: needs a function of tools"
            raise PydanticCustomError("no_tool", why, {"field": "tool_choice"})
        if not self.callable:
            return
        form = self.response_format is not None and self.response_format.type != "text"
        for field, excluded in (
            ("response_format", form),
            ("structured_outputs", self.structured_outputs),
            ("resumable", self.resumable),
        ):
            if excluded:
                raise PydanticCustomError("excluded", "{field}: excludes tools", {"field": field})


class CompletionBody(Body):
    """`POST /v1/completions`."""

    prompt: Annotated[
        Text
        | Annotated[list[Text], FIRST]
        | Annotated[list[int], FIRST]
        | Annotated[list[Annotated[list[int], FIRST]], FIRST],
        at_most(MOST_TOKENS),
    ]

    best_of: Annotated[None, only(1)] = None
    echo: NotTrue = None
    logprobs: int | None = Field(default=None, ge=0, le=5)
    suffix: Annotated[None, only("")] = None
