"""How a request ended: what its clients are told last, and what Redis keeps of it. Pure data."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from specinfer.errors import SpecInferError, UnavailableError
from specinfer.outcomes import FinishReason
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.statistics import RequestSpeculation

_NEVER_S = -1.0
"""As a hint when to try again: not at all."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a request ended, and what it took."""

    finish: FinishReason
    error: str = ""
    retryable: bool = True
    """Whether the same request may succeed later, if it ended with an error."""
    prompt_tokens: int = 0
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
    """Nodes drafted, nodes accepted and steps won, by the speculator's name."""
    lossy: bool = False
    """Whether its text need not follow the target's distribution."""

    @classmethod
    def of(cls, state: RequestState, names: Sequence[str]) -> "Ending":
        """That of a finished request; `names` are those of the speculators by number."""
        assert state.finish is not None
        end, stats = state.finished_at or state.queued_at, state.stats
        return cls(
            state.finish,
            state.error,
            state.retryable,
            prompt_tokens=len(state.request.prompt),
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
        """The error that its clients get; None if it ended with an answer."""
        if self.finish is not FinishReason.ERROR:
            return None
        # it has ended: whoever repeats it needs another id, so a client must not come back for this one
        final = UnavailableError(self.error, retry_after_s=_NEVER_S)
        return final if self.retryable else SpecInferError(self.error)

    def to_json(self) -> str:
        """What Redis keeps."""
        return json.dumps({**asdict(self), "finish": self.finish.name.lower()})

    @classmethod
    def from_json(cls, text: str) -> "Ending":
        """What `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        return cls(**{**values, "finish": FinishReason[values["finish"].upper()]})


def _by_name(stats: RequestSpeculation, names: Sequence[str]) -> dict[str, list[int]]:
    return {
        names[index]: [counts.drafted, counts.accepted, counts.wins]
        for index, counts in sorted(stats.speculators.items())
    }
