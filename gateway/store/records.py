"""Encode and decode requests for the stores. Pure.

Content is JSON; tokens and log-probabilities are text in fields of fixed width.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from gateway.store.keys import LOGPROB_WIDTH, TOKEN_WIDTH
from specinfer.errors import FaultError, InvalidInputError
from specinfer.request.sampling import Sampling
from specinfer.request.statuses import LogprobRow
from specinfer.scheduling.ending import Ending
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, Speculation
from specinfer.text.constraints.constraint import Constraint, ConstraintKind


@dataclass(frozen=True, slots=True)
class Record:
    """A request as stored."""

    request: GenerationRequest
    idempotency_key: str
    """Hash of the content: a repeated request has the same hash."""
    tokens: list[int] = field(default_factory=list)
    """Generated tokens so far."""
    logprobs: list[LogprobRow] = field(default_factory=list)
    age_s: float = 0.0
    """Seconds since the request arrived."""
    model: str = ""
    """Fingerprint of the model that generated its tokens; empty without tokens."""
    drawn_for: bool | None = None
    """True if speculators sample its drafts; None before its first token."""
    adoption: int = 1
    """Number of owners so far; the owner's writes must contain this number."""
    ending: Ending | None = None
    """None while the request is unfinished."""


class Known(NamedTuple):
    """Position up to which another gateway's request was read."""

    tokens: int
    """Number of tokens read."""
    top_logprobs: int = 0
    """Number of alternatives in each token's log-probabilities."""


@dataclass(frozen=True, slots=True)
class Glimpse:
    """New tokens and ending of a request that another gateway runs."""

    tokens: list[int]
    logprobs: list[LogprobRow]
    ending: Ending | None


_CONTENT = [item.name for item in fields(GenerationRequest) if item.name not in ("request_id", "references")]
_SAMPLING = [item.name for item in fields(Sampling)]


def encode_content(request: GenerationRequest) -> str:
    """Encode the content of a request, without the id."""
    values = {name: getattr(request, name) for name in _CONTENT}  # faster than `asdict`, which copies
    if request.references:
        values["references"] = request.references
    values["sampling"] = {name: getattr(request.sampling, name) for name in _SAMPLING}
    values["constraint"] = request.constraint and asdict(request.constraint)
    values["stop_token_ids"] = sorted(request.stop_token_ids)
    values["speculation"] = request.speculation.name.lower()
    return json.dumps(values, sort_keys=True)


def decode_content(request_id: str, text: str) -> GenerationRequest:
    """Decode the output of `encode_content`."""
    values: dict[str, Any] = json.loads(text)
    values["prompt"] = tuple(values["prompt"])
    sampling = values["sampling"]
    biases = tuple((token, bias) for token, bias in sampling.pop("logit_bias"))
    values["sampling"] = Sampling(**sampling, logit_bias=biases)
    values["stop_strings"] = tuple(values["stop_strings"])
    values["references"] = tuple(tuple(text) for text in values.get("references", ()))
    values["stop_token_ids"] = frozenset(values["stop_token_ids"])
    values["speculation"] = Speculation[values["speculation"].upper()]
    if (constraint := values.get("constraint")) is not None:
        values["constraint"] = Constraint(ConstraintKind(constraint["kind"]), constraint["source"])
    return GenerationRequest(request_id=request_id, **values)


def encode_tokens(tokens: Sequence[int]) -> str:
    """Encode token ids: token i begins at character i * TOKEN_WIDTH."""
    return "".join([f"{token:<{TOKEN_WIDTH}}" for token in tokens])


def decode_tokens(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def logprobs_width(top: int) -> int:
    """Return characters per generated token with `top` alternatives."""
    return LOGPROB_WIDTH + top * (TOKEN_WIDTH + LOGPROB_WIDTH)


def encode_logprobs(logprobs: Sequence[LogprobRow]) -> str:
    """Encode log-probabilities: `logprobs_width` characters for each token."""
    return "".join(
        [
            _field(row.chosen)
            + "".join([f"{token:<{TOKEN_WIDTH}}{_field(value)}" for token, value in row.top])
            for row in logprobs
        ]
    )


def _field(value: float) -> str:
    """Return nine significant digits, which identify a float32."""
    return f"{value:<{LOGPROB_WIDTH}.9g}"


def decode_logprobs(text: str, top: int) -> list[LogprobRow]:
    """Decode the output of `encode_logprobs` with `top` alternatives per token."""
    words, width = text.split(), 1 + 2 * top
    return [_token_logprobs(words[at : at + width]) for at in range(0, len(words), width)]


def _token_logprobs(words: Sequence[str]) -> LogprobRow:
    pairs = zip(words[1::2], words[2::2], strict=True)
    return LogprobRow(float(words[0]), tuple((int(token), float(value)) for token, value in pairs))


def encode_progress(item: Progress, names: Sequence[str]) -> list[Any]:
    """Encode a request's new tokens and ending for `append.lua`.

    `names[i]` is the name of speculator i.
    """
    ending = Ending.of(item.state, names).to_json() if item.final and item.state.finish is not None else ""
    request = item.state.request
    logprobs = item.logprobs if request.logprobs else []
    return [
        item.request_id,
        item.state.adoption,
        item.start * TOKEN_WIDTH,
        encode_tokens(item.tokens),
        item.start * logprobs_width(request.top_logprobs),
        encode_logprobs(logprobs),
        len(item.tokens),
        str(int(item.state.drawn_for)),
        ending,
    ]


_DAMAGED = (ValueError, TypeError, LookupError, InvalidInputError)


def read_record(request_id: str, values: Mapping[str, Any], tokens: str, logprobs: str, now: float) -> Record:
    """Decode a record's fields; `now` is the store's clock in seconds."""
    try:
        request = decode_content(request_id, values["content"])
        return Record(
            request,
            values["idempotency_key"],
            decode_tokens(tokens),
            decode_logprobs(logprobs, request.top_logprobs),
            now - float(values["created"]),
            values["model"] or "",
            None if values["drawn"] is None else values["drawn"] == "1",
            int(values["adoption"]),
            None if values["end"] is None else Ending.from_json(values["end"]),
        )
    except _DAMAGED as error:
        raise _unreadable(request_id, error) from error


def read_glimpse(
    request_id: str, fields: Sequence[str | None], tokens: str, logprobs: str, top_logprobs: int
) -> Glimpse | FaultError | None:
    """Decode new tokens, log-probabilities and the end of a request.

    Each token has `top_logprobs` alternatives. Returns None for a missing request, and an error for a request that
    cannot be decoded.
    """
    state, end = fields
    if state is None:
        return None
    try:
        ending = Ending.from_json(end) if end is not None else None
        return Glimpse(decode_tokens(tokens), decode_logprobs(logprobs, top_logprobs), ending)
    except _DAMAGED as error:
        return _unreadable(request_id, error)


def _unreadable(request_id: str, error: Exception) -> FaultError:
    return FaultError(f"request {request_id}: its stored record cannot be read", error)
