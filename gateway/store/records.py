"""Requests as Redis keeps them: their content as JSON, their tokens as text in fields of fixed width.
Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.requests.ending import Ending
from gateway.requests.request import GenerationRequest, Speculation
from gateway.requests.step import Progress
from gateway.store.keys import LOGPROB_WIDTH, TOKEN_WIDTH
from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.errors import FaultError, InvalidInputError
from specinfer.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Record:
    """A request as it was found in Redis."""

    request: GenerationRequest
    digest: str
    """Tells whether another request with this id asks for the same."""
    tokens: list[int] = field(default_factory=list)
    """Generated so far."""
    logprobs: list[float] = field(default_factory=list)
    age_s: float = 0.0
    """Seconds since it came."""
    model: str = ""
    """Fingerprint of the model that it began with; empty if it has not begun."""
    drawn_for: bool | None = None
    """Whether speculators may draw for it; None if it has not begun."""
    adoption: int = 1
    """Number of its owner's adoption, which its writes name."""
    ending: Ending | None = None
    """None while it is unfinished."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """What is new of a request that another gateway runs."""

    tokens: list[int]
    logprobs: list[float]
    ending: Ending | None


def encode_content(request: GenerationRequest) -> str:
    """Everything that was asked, without the id."""
    values = asdict(request)
    del values["request_id"]
    values["stop_token_ids"] = sorted(request.stop_token_ids)
    values["speculation"] = request.speculation.name.lower()
    return json.dumps(values, sort_keys=True)


def decode_content(request_id: str, text: str) -> GenerationRequest:
    """What `encode_content` wrote."""
    values: dict[str, Any] = json.loads(text)
    values["prompt"] = tuple(values["prompt"])
    sampling = values["sampling"]
    biases = tuple((token, bias) for token, bias in sampling.pop("logit_bias"))
    values["sampling"] = SamplingParams(**sampling, logit_bias=biases)
    values["stop_strings"] = tuple(values["stop_strings"])
    values["stop_token_ids"] = frozenset(values["stop_token_ids"])
    values["speculation"] = Speculation[values["speculation"].upper()]
    if (constraint := values.get("constraint")) is not None:
        values["constraint"] = Constraint(ConstraintKind(constraint["kind"]), constraint["source"])
    return GenerationRequest(request_id=request_id, **values)


def encode_tokens(tokens: Sequence[int]) -> str:
    """Fields of fixed width: the text of token i begins at i * TOKEN_WIDTH."""
    return "".join([f"{token:<{TOKEN_WIDTH}}" for token in tokens])


def decode_tokens(text: str) -> list[int]:
    """What `encode_tokens` wrote."""
    return [int(word) for word in text.split()]


def encode_logprobs(logprobs: Sequence[float]) -> str:
    """Fields of fixed width; nine digits tell every float32 from its neighbours."""
    return "".join([f"{value:<{LOGPROB_WIDTH}.9g}" for value in logprobs])


def decode_logprobs(text: str) -> list[float]:
    """What `encode_logprobs` wrote."""
    return [float(word) for word in text.split()]


def encode_progress(item: Progress, names: Sequence[str], adoption: int) -> list[object]:
    """One request's part of a write, as `append.lua` reads it; `names` are speculators, by number."""
    ending = Ending.of(item.state, names).to_json() if item.final and item.state.finish is not None else ""
    logprobs = item.logprobs if item.state.request.logprobs else []
    return [
        item.request_id,
        adoption,
        item.start * TOKEN_WIDTH,
        encode_tokens(item.tokens),
        item.start * LOGPROB_WIDTH,
        encode_logprobs(logprobs),
        len(item.tokens),
        str(int(item.state.drawn_for)),
        ending,
    ]


_DAMAGED = (ValueError, TypeError, LookupError, InvalidInputError)


def read_record(request_id: str, values: Mapping[str, Any], tokens: str, logprobs: str, now: float) -> Record:
    """A record from its fields in Redis; `now` is Redis's clock.

    Raises:
        FaultError: if they are not what this version writes.
    """
    try:
        return Record(
            decode_content(request_id, values["content"]),
            values["digest"],
            decode_tokens(tokens),
            decode_logprobs(logprobs),
            now - float(values["created"]),
            values["model"] or "",
            None if values["drawn"] is None else values["drawn"] == "1",
            int(values["adoption"]),
            None if values["end"] is None else Ending.from_json(values["end"]),
        )
    except _DAMAGED as error:
        raise _unreadable(request_id, error) from error


def read_glimpse(
    request_id: str, fields: Sequence[str | None], tokens: str, logprobs: str
) -> Glimpse | FaultError | None:
    """What is new of a request, from its state and end, tokens and logprobs; None if it is not there, an
    error if that cannot be read."""
    state, end = fields
    if state is None:
        return None
    try:
        ending = Ending.from_json(end) if end is not None else None
        return Glimpse(decode_tokens(tokens), decode_logprobs(logprobs), ending)
    except _DAMAGED as error:
        return _unreadable(request_id, error)


def _unreadable(request_id: str, error: Exception) -> FaultError:
    return FaultError(f"request {request_id} cannot be read from Redis", error)
