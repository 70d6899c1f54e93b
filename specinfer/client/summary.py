"""How a request ended and what speculation did for it, as plain values.

The contract's messages (`proto/specinfer/v1/generation.proto`) are read here, once.
"""

from dataclasses import dataclass
from enum import StrEnum

from specinfer.v1 import generation_pb2


class FinishReason(StrEnum):
    """Why generation ended, in the words of the contract."""

    UNSPECIFIED = "unspecified"
    LENGTH = "length"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CANCELLED = "cancelled"
    ERROR = "error"
    DEADLINE = "deadline"
    CONSTRAINT = "constraint"


_REASONS = {
    number: FinishReason(name.removeprefix("FINISH_REASON_").lower())
    for name, number in generation_pb2.FinishReason.items()
}


@dataclass(frozen=True, slots=True)
class SpeculatorStats:
    """What one speculator did for a request."""

    name: str
    drafted: int = 0
    """Nodes it proposed that were verified."""
    accepted: int = 0
    """Nodes it proposed that were accepted."""
    wins: int = 0
    """Steps in which it proposed the whole accepted path (of at least one token)."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """What speculation did for a request."""

    steps: int = 0
    """Target passes that produced tokens for it."""
    drafted: int = 0
    """Nodes verified, roots excluded."""
    accepted: int = 0
    """Drafted tokens that were accepted."""
    acceptance_histogram: tuple[int, ...] = ()
    """At index i: steps that accepted i drafted tokens."""
    speculators: tuple[SpeculatorStats, ...] = ()
    lossy: bool = False
    """Typical acceptance was asked for: the text need not follow the target's distribution."""

    @property
    def acceptance_length(self) -> float:
        """Tokens per step, the bonus token included."""
        return acceptance_length(self.steps, self.accepted)


@dataclass(frozen=True, slots=True)
class Summary:
    """How a request ended."""

    finish_reason: FinishReason = FinishReason.UNSPECIFIED
    prompt_tokens: int = 0
    new_tokens: int = 0
    stats: SpeculationStats = SpeculationStats()
    ttft_seconds: float = 0.0
    """From arrival at the gateway to the first token."""
    total_seconds: float = 0.0
    """From arrival to the last token."""
    queue_seconds: float = 0.0
    """Waiting for admission."""
    seed: int = 0
    """The seed that was used."""
    points: int = 0
    """Points that were expanded in parallel (`decomposition`); 0: the answer is one sequence of the model."""


def acceptance_length(steps: int, accepted: int) -> float:
    """Tokens per step, the bonus token included."""
    return 1 + accepted / steps if steps else 0.0


def read_summary(message: generation_pb2.Summary) -> Summary:
    """The values of a summary; a reason that this version does not know is unspecified."""
    return Summary(
        finish_reason=_REASONS.get(message.finish_reason, FinishReason.UNSPECIFIED),
        prompt_tokens=message.prompt_tokens,
        new_tokens=message.new_tokens,
        stats=_read_stats(message.stats),
        ttft_seconds=message.ttft_seconds,
        total_seconds=message.total_seconds,
        queue_seconds=message.queue_seconds,
        seed=message.seed,
        points=message.points,
    )


def _read_stats(message: generation_pb2.SpeculationStats) -> SpeculationStats:
    return SpeculationStats(
        steps=message.steps,
        drafted=message.drafted,
        accepted=message.accepted,
        acceptance_histogram=tuple(message.acceptance_histogram),
        speculators=tuple(
            SpeculatorStats(row.name, row.drafted, row.accepted, row.wins) for row in message.speculators
        ),
        lossy=message.lossy,
    )
