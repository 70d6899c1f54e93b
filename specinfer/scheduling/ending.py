"""Describe a request's end: the last message to clients, stored in Redis."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specinfer.errors import ConstraintError, SpecInferError, UnavailableError
from specinfer.request.statuses import FinishReason
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.statistics import SpeculationCounts

_NEVER_S = -1.0
"""Value of `retry_after_s` that means: do not retry this request id."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Reason and statistics of a request's end."""

    finish: FinishReason
    error: str = ""
    retryable: bool = True
    """True if the same request may succeed when sent again."""
    invalid: bool = False
    """True if the caller's input caused the error."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that were found in the verifier's cache."""
    new_tokens: int = 0
    ttft_s: float = 0.0
    total_s: float = 0.0
    queue_s: float = 0.0
    seed: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)
    speculators: dict[str, list[int]] = field(default_factory=dict)
    """[drafted, accepted, wins] of `SpeculatorCounts`, by the speculator's name."""
    lossy: bool = False
    """True if the text may deviate from the target's distribution."""

    @classmethod
    def of(cls, state: RequestState, names: Sequence[str]) -> "Ending":
        """Return a finished request's ending; `names` are the speculators' names by number."""
        assert state.finish is not None
        end, stats = state.finished_at or state.queued_at, state.stats
        return cls(
            state.finish,
            state.error,
            state.retryable,
            state.invalid,
            prompt_tokens=len(state.request.prompt),
            cached_tokens=state.cached_tokens,
            new_tokens=state.new_tokens,
            ttft_s=(state.first_token_at or end) - state.queued_at,
            total_s=end - state.queued_at,
            queue_s=(state.admitted_at or end) - state.queued_at,
            seed=state.request.sampling.seed,
            steps=stats.steps,
            drafted=stats.drafted,
            accepted=stats.accepted,
            histogram=list(stats.histogram),
            speculators=_by_name(stats, names),
            lossy=not state.request.sampling.lossless,
        )

    @property
    def failure(self) -> SpecInferError | None:
        """Error to raise for the request's clients; None after a success."""
        if self.finish is not FinishReason.ERROR:
            return None
        # the id is used up: a client must not retry it, only send the request again under another id
        if self.invalid:
            return ConstraintError(self.error)
        final = UnavailableError(self.error, retry_after_s=_NEVER_S)
        return final if self.retryable else SpecInferError(self.error)

    def to_json(self) -> str:
        """Return the JSON to store in Redis."""
        return json.dumps({**asdict(self), "finish": self.finish.name.lower()})

    @classmethod
    def from_json(cls, text: str) -> "Ending":
        """Parse the output of `to_json`; ignore fields of later versions."""
        values: dict[str, Any] = json.loads(text)
        values = {name: value for name, value in values.items() if name in cls.__dataclass_fields__}
        return cls(**{**values, "finish": FinishReason[values["finish"].upper()]})


def _by_name(stats: SpeculationCounts, names: Sequence[str]) -> dict[str, list[int]]:
    return {
        names[index]: [counts.drafted, counts.accepted, counts.wins]
        for index, counts in sorted(stats.speculators.items())
    }
