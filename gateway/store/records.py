"""Requests as Redis keeps them: their content as JSON, their tokens as text in fields of fixed width.
Pure."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gateway.requests.ending import Ending
from gateway.requests.request import GenerationRequest, Speculation
from gateway.store.keys import LOGPROB_WIDTH, TOKEN_WIDTH
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
    values["sampling"] = SamplingParams(**values["sampling"])
    values["stop_strings"] = tuple(values["stop_strings"])
    values["stop_token_ids"] = frozenset(values["stop_token_ids"])
    values["speculation"] = Speculation[values["speculation"].upper()]
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
