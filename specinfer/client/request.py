"""Messages of requests, made of plain values."""

import secrets
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypeVar, Unpack

from specinfer.client.constraint import ConstraintOptions, make_constraint
from specinfer.errors import InvalidInputError
from specinfer.v1 import common_pb2, generation_pb2

DECOMPOSITION = {
    "none": generation_pb2.DECOMPOSITION_UNSPECIFIED,
    "skeleton": generation_pb2.DECOMPOSITION_SKELETON,
}
SPECULATION = {
    "tree": generation_pb2.SPECULATION_TREE,
    "sequence": generation_pb2.SPECULATION_SEQUENCE,
    "off": generation_pb2.SPECULATION_OFF,
}
T = TypeVar("T")
Prompt: TypeAlias = str | Sequence[Mapping[str, str]] | Sequence[int]
"""A text; a conversation, as mappings with `role` and `content`; or token ids."""
_WIRE_RANGES = {
    "max_new_tokens": (-(2**31), 2**31),
    "priority": (-(2**31), 2**31),
    "top_k": (0, 2**32),
    "top_logprobs": (0, 2**32),
}
"""Lowest value and first one above the highest that the message can carry."""


class RequestOptions(ConstraintOptions, total=False):
    """What may be said about a request beside its prompt. The gateway checks the values."""

    chat: bool
    """Whether a text is a user's turn, which is the default; else it is continued as it is."""
    max_new_tokens: int
    """Most tokens to generate; default 128."""
    temperature: float
    """0, the default, is greedy."""
    top_k: int
    """Keep the k most probable tokens; 0, the default, keeps all."""
    top_p: float
    """Keep the most probable tokens up to this mass; default 1."""
    seed: int | None
    """None, the default: drawn at random by the gateway."""
    speculation: str
    """"tree" (the default), "sequence" or "off"."""
    decomposition: str
    """"none" (the default) or "skeleton": points of the answer in parallel, which is not lossless."""
    stop: str | Sequence[str]
    """Generation ends before this, or any of these."""
    ignore_eos: bool
    """Go on after the model's own end-of-sequence token."""
    logprobs: bool
    """Return the log-probability of every token."""
    top_logprobs: int
    """With logprobs: return so many of the most probable tokens beside each, too; at most 20, default 0."""
    priority: int
    """Higher runs first; default 0."""
    request_id: str
    """Empty, the default: chosen by the client."""
    deadline_seconds: float | None
    """After which the request ends with the tokens it has; None, the default: never."""
    logit_bias: Mapping[int, float]
    """By token id what is added to its logit, -100 to 100; default none."""
    presence_penalty: float
    """Taken off the logits of tokens that were generated already, -2 to 2; default 0."""
    frequency_penalty: float
    """The same, for each time that they were; default 0."""
    references: str | Sequence[str]
    """Texts from which the answer may copy: drafters look in them, the model does not; at most 64, of 131,072
    bytes together. Default none."""
    typical_epsilon: float
    """Threshold of typical acceptance, which is not lossless; 0, the default: lossless."""


def new_request_id() -> str:
    """An id that nobody else chooses or guesses: whoever knows it may attach, where there are no keys."""
    return secrets.token_hex(12)


def make_request(prompt: Prompt, **options: Unpack[RequestOptions]) -> generation_pb2.GenerateRequest:
    """The message of a request.

    Raises:
        InvalidInputError: naming an option whose value the message cannot carry.
    """
    for name, (lowest, end) in _WIRE_RANGES.items():
        _check_range(name, options.get(name, 0), lowest, end)
    for token in options.get("logit_bias", {}):
        _check_range("logit_bias", token, 0, 2**32)
    stop, references = options.get("stop", ()), options.get("references", ())
    request = generation_pb2.GenerateRequest(
        request_id=options.get("request_id", ""),
        max_new_tokens=options.get("max_new_tokens", 128),
        sampling=common_pb2.SamplingParams(
            temperature=options.get("temperature", 0.0),
            top_k=options.get("top_k", 0),
            top_p=options.get("top_p", 1.0),
            typical_epsilon=options.get("typical_epsilon", 0.0),
            logit_bias=options.get("logit_bias", {}),
            presence_penalty=options.get("presence_penalty", 0.0),
            frequency_penalty=options.get("frequency_penalty", 0.0),
        ),
        stop_strings=[stop] if isinstance(stop, str) else stop,
        ignore_eos=options.get("ignore_eos", False),
        priority=options.get("priority", 0),
        speculation=_word("speculation", options.get("speculation", "tree"), SPECULATION),
        decomposition=_word("decomposition", options.get("decomposition", "none"), DECOMPOSITION),
        logprobs=options.get("logprobs", False),
        top_logprobs=options.get("top_logprobs", 0),
        deadline_seconds=options.get("deadline_seconds"),
        constraint=make_constraint(options),
        references=[references] if isinstance(references, str) else references,
    )
    seed = options.get("seed")
    if seed is not None:
        _check_range("seed", seed, 0, 2**64)
        request.sampling.seed = seed
    _set_prompt(request, prompt, options.get("chat", True))
    return request


def as_request(
    prompt: Prompt | generation_pb2.GenerateRequest, options: RequestOptions
) -> generation_pb2.GenerateRequest:
    """The message of a request, or a copy of the one given; with an id, without which nobody could attach.

    Raises:
        InvalidInputError: naming an option that the message cannot carry, or given beside a message.
    """
    if isinstance(prompt, generation_pb2.GenerateRequest):
        for name, value in options.items():
            raise InvalidInputError(name, value, "excludes a ready message: set it there")
        request = generation_pb2.GenerateRequest()
        request.CopyFrom(prompt)
    else:
        request = make_request(prompt, **options)
    request.request_id = request.request_id or new_request_id()
    return request


def _set_prompt(request: generation_pb2.GenerateRequest, prompt: Prompt, chat: bool) -> None:
    if isinstance(prompt, str):
        if chat:
            request.chat.messages.add(role="user", content=prompt)
        else:
            request.text = prompt
        return
    kinds = {isinstance(item, Mapping) for item in prompt}
    if len(kinds) > 1:
        raise InvalidInputError("prompt", prompt, "must be messages or token ids, not both")
    for index, item in enumerate(prompt):
        if isinstance(item, Mapping) and set(item) == {"role", "content"}:
            request.chat.messages.add(role=item["role"], content=item["content"])
        elif isinstance(item, int) and 0 <= item < 2**32:
            request.tokens.ids.append(item)
        else:
            raise InvalidInputError(f"prompt[{index}]", item, "must be a token id, or a role and a content")


def _word(name: str, word: str, known: Mapping[str, T]) -> T:
    if word not in known:
        raise InvalidInputError(name, word, f"must be one of {', '.join(known)}")
    return known[word]


def _check_range(name: str, value: object, lowest: int, end: int) -> None:
    if not isinstance(value, int) or not lowest <= value < end:
        raise InvalidInputError(name, value, f"must be an integer in [{lowest}, {end})")
