"""How a request ended and what speculation did for it, as plain values.

The contract's messages (`proto/specinfer/v1/generation.proto`) are read here, once.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest

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
    """The text need not follow the target's distribution: typical acceptance, or an answer in points."""

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
    """Points that were generated in parallel (`AsyncClient.skeleton`); 0: the answer is one sequence of the
    model."""


def acceptance_length(steps: int, accepted: int) -> float:
    """Tokens per step, the bonus token included."""
    return 1 + accepted / steps if steps else 0.0


def add_up(stats: Sequence[SpeculationStats]) -> SpeculationStats:
    """The sums over several requests; lossy if one of them is."""
    rows: dict[str, Counter[str]] = {}
    for row in (row for one in stats for row in one.speculators):
        counts = {"drafted": row.drafted, "accepted": row.accepted, "wins": row.wins}
        rows.setdefault(row.name, Counter()).update(counts)
    histograms = zip_longest(*(one.acceptance_histogram for one in stats), fillvalue=0)
    return SpeculationStats(
        steps=sum(one.steps for one in stats),
        drafted=sum(one.drafted for one in stats),
        accepted=sum(one.accepted for one in stats),
        acceptance_histogram=tuple(map(sum, histograms)),
        speculators=tuple(SpeculatorStats(name, **row) for name, row in rows.items()),
        lossy=any(one.lossy for one in stats),
    )


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
