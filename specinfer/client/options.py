"""Define a request's options: names, types, defaults and bounds.

Signatures, documentation and checks of all functions that take options are generated from these definitions.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Annotated, Any, TypedDict, TypeVar, cast, get_type_hints

from specinfer.errors import InvalidInputError
from specinfer.options.option_names import meant
from specinfer.v1 import generation_pb2

SPECULATION = {
    "tree": generation_pb2.SPECULATION_TREE,
    "sequence": generation_pb2.SPECULATION_SEQUENCE,
    "off": generation_pb2.SPECULATION_OFF,
}
Check = Callable[[str, Any], None]
"""Takes an option's name and value; raises InvalidInputError for an invalid value."""
Function = TypeVar("Function", bound=Callable[..., Any])


def whole(lowest: int, end: int) -> Check:
    """Return a check for integers in [lowest, end)."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value < end:
            raise InvalidInputError(name, value, f"must be an integer in [{lowest}, {end})")

    return check


def one_of(words: Iterable[str]) -> Check:
    """Return a check for one of these words."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, str) or value not in words:
            raise InvalidInputError(name, value, f"must be one of {', '.join(words)}")

    return check


def optional(check: Check) -> Check:
    """Return a check that accepts None, too."""
    return lambda name, value: None if value is None else check(name, value)


def flag(name: str, value: Any) -> None:
    """Check for a bool."""
    if not isinstance(value, bool):
        raise InvalidInputError(name, value, "must be True or False")


def number(name: str, value: Any) -> None:
    """Check for any number."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidInputError(name, value, "must be a number")


_MIN_FLOAT = 2.0**-126
"""Minimum positive value of a normal 32-bit float."""


def positive(name: str, value: Any) -> None:
    """Refuse 0, which would mean "not set" in the message."""
    number(name, value)
    if abs(value) < _MIN_FLOAT:
        raise InvalidInputError(name, value, "must be above 0")


def text(name: str, value: Any) -> None:
    """Check for a string."""
    if not isinstance(value, str):
        raise InvalidInputError(name, value, "must be a string")


def texts(name: str, value: Any) -> None:
    """Check for a sequence of strings."""
    if (
        isinstance(value, str)
        or not isinstance(value, Sequence)
        or not all(isinstance(t, str) for t in value)
    ):
        raise InvalidInputError(name, value, "must be a sequence of strings")


def text_or_texts(name: str, value: Any) -> None:
    """Check for a string or a sequence of strings."""
    if not isinstance(value, str):
        texts(name, value)


def biases(name: str, value: Any) -> None:
    """Check for a mapping from token ids to numbers."""
    if not isinstance(value, Mapping):
        raise InvalidInputError(name, value, "must be a mapping from token ids to numbers")
    for token, bias in value.items():
        whole(0, 2**32)(name, token)
        number(f"{name}[{token}]", bias)


def anything(name: str, value: Any) -> None:
    """Accept any value; another function checks it."""


@dataclass(frozen=True, slots=True)
class RequestOption:
    """Description, check and default of one option."""

    about: str
    check: Check
    default: Any = None
    """Default value; None: the option is not sent."""


class ConstraintOptions(TypedDict, total=False):
    """Options that constrain the text; at most one may be given."""

    json_schema: Annotated[str | Mapping[str, Any] | None, RequestOption("JSON schema of the text", anything)]
    regex: Annotated[
        str | None,
        RequestOption("regular expression of the text (Rust's notation)", optional(text)),
    ]
    grammar: Annotated[
        str | None,
        RequestOption("grammar of the text (Lark's notation, rule `start`)", optional(text)),
    ]
    choice: Annotated[Sequence[str] | None, RequestOption("the text is one of these", optional(texts))]


class RequestOptions(ConstraintOptions, total=False):
    """Options of a request; `option_docs` describes them.

    The gateway checks the values' ranges. A sampling parameter that is None has the model's default.
    """

    chat: Annotated[bool, RequestOption("True: answer a text as a chat; False: continue it", flag, True)]
    max_new_tokens: Annotated[
        int, RequestOption("maximum number of generated tokens", whole(-(2**31), 2**31), 128)
    ]
    temperature: Annotated[float | None, RequestOption("0 is greedy", optional(number), 0.0)]
    top_k: Annotated[
        int | None,
        RequestOption("keep the k most probable tokens; 0 keeps all", optional(whole(0, 2**32)), 0),
    ]
    top_p: Annotated[
        float | None, RequestOption("keep the most probable tokens up to this mass", optional(number), 1.0)
    ]
    seed: Annotated[
        int | None, RequestOption("None: drawn at random by the gateway", optional(whole(0, 2**64)))
    ]
    speculation: Annotated[str, RequestOption("tree, sequence or off", one_of(SPECULATION), "tree")]
    stop: Annotated[
        str | Sequence[str], RequestOption("generation ends before this, or any of these", text_or_texts, ())
    ]
    ignore_eos: Annotated[
        bool, RequestOption("continue after the model's end-of-sequence token", flag, False)
    ]
    logprobs: Annotated[bool, RequestOption("return the log-probability of every token", flag, False)]
    top_logprobs: Annotated[
        int,
        RequestOption("with logprobs: number of alternatives to return per token", whole(0, 2**32), 0),
    ]
    priority: Annotated[int, RequestOption("higher runs first", whole(-(2**31), 2**31), 0)]
    request_id: Annotated[str, RequestOption("empty: chosen by the client", text, "")]
    deadline_seconds: Annotated[
        float | None,
        RequestOption("seconds after which the answer ends unfinished; None: never", optional(number)),
    ]
    logit_bias: Annotated[
        Mapping[int, float] | None,
        RequestOption("added to logits, by token id, -100 to 100; None: nothing", optional(biases)),
    ]
    presence_penalty: Annotated[
        float, RequestOption("subtracted from the logits of generated tokens, -2 to 2", number, 0.0)
    ]
    frequency_penalty: Annotated[
        float, RequestOption("subtracted per earlier occurrence, -2 to 2", number, 0.0)
    ]
    min_p: Annotated[
        float | None,
        RequestOption("minimum share of the highest probability; 0 keeps all", optional(number), 0.0),
    ]
    repetition_penalty: Annotated[
        float | None,
        RequestOption("divides logits of tokens in prompt and answer; 1: no effect", optional(positive), 1.0),
    ]
    cache_salt: Annotated[
        str, RequestOption("only requests with the same text share cached prompts; empty: with all", text, "")
    ]
    references: Annotated[
        str | Sequence[str],
        RequestOption(
            "texts that the answer may copy from: drafters search them, the model does not read them",
            text_or_texts,
            (),
        ),
    ]
    no_training: Annotated[bool, RequestOption("speculators must not learn from the request", flag, False)]
    typical_epsilon: Annotated[
        float, RequestOption("threshold of typical acceptance, not lossless; 0: lossless", number, 0.0)
    ]


@cache
def known_options() -> dict[str, RequestOption]:
    """Return all options by name."""
    hints = get_type_hints(RequestOptions, include_extras=True)
    return {
        name: next(m for m in hint.__metadata__ if isinstance(m, RequestOption))
        for name, hint in hints.items()
    }


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, completed with defaults.

    Raises:
        TypeError: for an unknown option.
        InvalidInputError: naming an option and its invalid value.
    """
    known = known_options()
    check_names(options)
    for name, value in options.items():
        known[name].check(name, value)
    return {name: option.default for name, option in known.items()} | dict(options)


def check_names(options: Mapping[str, Any]) -> None:
    """Check that all options are known.

    Raises:
        TypeError: naming the unknown option, and a similar known one.
    """
    known = known_options()
    for name in options:
        if name not in known:
            close = meant(name, known)
            hint = f"did you mean {close}?" if close else f"must be one of {', '.join(known)}"
            raise TypeError(f"no option {name!r} of a request: {hint}")


def shows_options(function: Function) -> Function:
    """Add each option to a function's docstring and signature."""
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    hints, kind = get_type_hints(RequestOptions), inspect.Parameter.KEYWORD_ONLY
    shown = [
        inspect.Parameter(name, kind, default=option.default, annotation=hints[name])
        for name, option in known_options().items()
    ]
    documented = cast(Any, function)
    documented.__signature__ = signature.replace(parameters=[*parameters, *shown])
    documented.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{option_docs()}"
    return function


def option_docs() -> str:
    """Return a line for each option."""
    return "\n".join(f"    {name}: {option.about}" for name, option in known_options().items())
