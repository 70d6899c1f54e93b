"""Options of clients: the table of a request's fields, and checks of their types.

Signatures, documentation and checks of all functions that take options are generated from the table.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from numbers import Real
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypedDict, TypeVar, cast, get_args, get_origin, get_type_hints

from specinfer.errors import InvalidInputError
from specinfer.options.model_options import Option
from specinfer.options.option_names import meant
from specinfer.request.fields import UINT32, RequestFields, SamplingFields
from specinfer.v1 import generation_pb2

SPECULATION = {
    "tree": generation_pb2.SPECULATION_TREE,
    "sequence": generation_pb2.SPECULATION_SEQUENCE,
    "off": generation_pb2.SPECULATION_OFF,
    "always": generation_pb2.SPECULATION_ALWAYS,
}
Function = TypeVar("Function", bound=Callable[..., Any])
_MIN_FLOAT = 2.0**-126
"""Minimum positive value of a normal 32-bit float."""


class ConstraintOptions(TypedDict, total=False):
    """Options that constrain the text; at most one may be given."""

    json_schema: str | Mapping[str, Any] | None
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None


class RequestOptions(ConstraintOptions, total=False):
    """Types of a request's options (`RequestFields`); `option_docs` describes them.

    The gateway checks the values' ranges. A sampling parameter that is None has the model's default.
    """

    chat: bool
    max_new_tokens: int
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    typical_epsilon: float | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    stop: str | Sequence[str]
    ignore_eos: bool
    speculation: str
    references: str | Sequence[str]
    logprobs: bool
    top_logprobs: int
    no_training: bool
    cache_salt: str
    request_id: str
    priority: int
    deadline_seconds: float | None


class RequestOption(NamedTuple):
    """An option's help, accepted words, default value, types, and integers that can be sent."""

    about: str
    choices: tuple[str, ...]
    default: Any
    annotation: Any
    kinds: tuple[Any, ...]
    whole: range


@cache
def known_options() -> dict[str, RequestOption]:
    """Return all options by name."""
    hints, known = get_type_hints(RequestFields, include_extras=True), {}
    sampling = {field.name for field in fields(SamplingFields)}
    for field in fields(RequestFields):
        kind, *metadata = get_args(hints[field.name])
        option = next(data for data in metadata if isinstance(data, Option))
        whole = next((data for data in metadata if isinstance(data, range)), range(0))
        kind = kind | None if field.name in sampling else kind  # None: the model's default
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        origins = tuple(get_origin(one) or one for one in kinds)
        known[field.name] = RequestOption(option.help, option.choices, field.default, kind, origins, whole)
    return known


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options, completed with defaults.

    Raises:
        TypeError: for an unknown option.
        InvalidInputError: naming an option and its invalid value.
    """
    known = known_options()
    check_names(options)
    for name, value in options.items():
        _check(name, value, known[name])
    return {name: option.default for name, option in known.items()} | dict(options)


_FITS: Mapping[Any, tuple[Callable[[Any, range], bool], str]] = {
    NoneType: (lambda value, _: value is None, "None"),
    bool: (lambda value, _: isinstance(value, bool), "True or False"),
    int: (lambda value, whole: type(value) is not bool and isinstance(value, int) and value in whole, "{}"),
    float: (lambda value, _: type(value) is not bool and isinstance(value, Real), "a number"),
    str: (lambda value, _: isinstance(value, str), "a string"),
    Sequence: (lambda value, _: _is_texts(value), "a sequence of strings"),
    Mapping: (lambda value, _: isinstance(value, Mapping), "a mapping"),
}
"""By type: whether a value has it, and words for errors."""


def _is_texts(value: Any) -> bool:
    texts = isinstance(value, Sequence) and not isinstance(value, str)
    return texts and all(isinstance(text, str) for text in value)


def _check(name: str, value: Any, option: RequestOption) -> None:
    """Check a value's type."""
    whole, kinds = option.whole, option.kinds
    if not any(_FITS[kind][0](value, whole) for kind in kinds):
        integer = f"an integer in [{whole.start}, {whole.stop})"
        words = " or ".join(_FITS[kind][1].format(integer) for kind in kinds if kind is not NoneType)
        raise InvalidInputError(name, value, f"must be {words}")
    if option.choices and value not in option.choices:
        raise InvalidInputError(name, value, f"must be one of {', '.join(option.choices)}")
    if name == "repetition_penalty" and value is not None and abs(value) < _MIN_FLOAT:
        raise InvalidInputError(name, value, "must be above 0")  # 0 means "not set" in the message
    if name == "logit_bias" and value is not None:
        _check_biases(name, value)


def _check_biases(name: str, biases: Mapping[Any, Any]) -> None:
    for token, bias in biases.items():
        if isinstance(token, bool) or not isinstance(token, int) or token not in UINT32:
            raise InvalidInputError(name, token, f"must have token ids in [0, {UINT32.stop}) as keys")
        if isinstance(bias, bool) or not isinstance(bias, Real):
            raise InvalidInputError(f"{name}[{token}]", bias, "must be a number")


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
    shown = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=option.default, annotation=option.annotation
        )
        for name, option in known_options().items()
    ]
    documented = cast(Any, function)
    documented.__signature__ = signature.replace(parameters=[*parameters, *shown])
    documented.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nOptions:\n{option_docs()}"
    return function


def option_docs() -> str:
    """Return a line for each option."""
    return "\n".join(f"    {name}: {option.about}" for name, option in known_options().items())
