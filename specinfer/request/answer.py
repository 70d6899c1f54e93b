"""Answers of requests: text, pieces, summary, statistics and log-probabilities."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from typing import Any, TypeAlias

from specinfer.request.statuses import FinishReason


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and its log-probability under the target model."""

    token_id: int
    token: bytes
    """The token's UTF-8 bytes, or a special token's name."""
    logprob: float

    @property
    def text(self) -> str:
        """Text of the token; `bytes:` and hex digits for incomplete characters."""
        try:
            return self.token.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join([f"\\x{byte:02x}" for byte in self.token])


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at the position of one generated token."""

    chosen: TokenLogprob
    """The generated token."""
    top: tuple[TokenLogprob, ...] = ()
    """The requested alternatives, most probable first."""


@dataclass(frozen=True, slots=True)
class SpeculatorStats:
    """Statistics of one speculator for a request."""

    name: str
    drafted: int = 0
    """Verified nodes that this speculator proposed."""
    accepted: int = 0
    """Accepted nodes that this speculator proposed."""
    wins: int = 0
    """Steps whose whole non-empty accepted path this speculator proposed."""


@dataclass(frozen=True, slots=True)
class SpeculationStats:
    """Statistics of speculation for a request."""

    steps: int = 0
    """Target passes that produced tokens for the request."""
    drafted: int = 0
    """Verified nodes, roots excluded."""
    accepted: int = 0
    """Drafted tokens that were accepted."""
    acceptance_histogram: tuple[int, ...] = ()
    """Entry i: number of steps that accepted i drafted tokens."""
    speculators: tuple[SpeculatorStats, ...] = ()
    lossy: bool = False
    """True if typical acceptance may have changed the target's distribution."""

    @property
    def acceptance_length(self) -> float:
        """Tokens per step, the bonus token included."""
        return acceptance_length(self.steps, self.accepted)


@dataclass(frozen=True, slots=True)
class Summary:
    """Finish reason, token counts and times of a finished request."""

    finish_reason: FinishReason = FinishReason.UNSPECIFIED
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Tokens of the prompt that were found in the verifier's cache."""
    new_tokens: int = 0
    stats: SpeculationStats = SpeculationStats()
    ttft_seconds: float = 0.0
    """Seconds from arrival at the gateway to the first token."""
    total_seconds: float = 0.0
    """Seconds from arrival to the last token."""
    queue_seconds: float = 0.0
    """Seconds from arrival to admission."""
    seed: int = 0
    """Seed of the request, given or drawn by the gateway."""
    stop_string: str = ""
    """The stop string that ended the text; empty if none did."""


def acceptance_length(steps: int, accepted: int) -> float:
    """Return tokens per step, the bonus token included."""
    return 1 + accepted / steps if steps else 0.0


def add_up(stats: Sequence[SpeculationStats]) -> SpeculationStats:
    """Return the sums over several requests; `lossy` if any request is lossy."""
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


@dataclass(slots=True)
class Answer:
    """The answer of one request; complete once `summary` has a finish reason."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Log-probabilities of the tokens, if requested."""
    token_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Log-probabilities by token, with the requested alternatives."""
    summary: Summary = field(default_factory=Summary)
    ttft_s: float = 0.0
    """Seconds from sending to the first token."""
    tpot_s: float = 0.0
    """Mean seconds per token after the first message."""
    request_id: str = ""
    begins_in_reasoning: bool = False
    """True if the prompt ends within reasoning, which the text continues."""

    @property
    def finish_reason(self) -> FinishReason:
        """Reason of the request's end; `UNSPECIFIED` until then."""
        return self.summary.finish_reason

    @property
    def stats(self) -> SpeculationStats:
        return self.summary.stats

    def to_json(self) -> dict[str, Any]:
        """Return the answer as the JSON object of `--json`."""
        s = self.summary
        return {
            "request_id": self.request_id,
            "text": self.text,
            "token_ids": self.token_ids,
            **({"logprobs": self.logprobs} if self.logprobs else {}),
            "finish_reason": s.finish_reason.value,
            "prompt_tokens": s.prompt_tokens,
            "cached_tokens": s.cached_tokens,
            "new_tokens": s.new_tokens,
            "seed": s.seed,
            "seconds": s.total_seconds,
            "ttft_ms": self.ttft_s * 1000,
            "tpot_ms": self.tpot_s * 1000,
            **stats_to_json(s.stats),
        }


def stats_to_json(stats: SpeculationStats) -> dict[str, Any]:
    """Return the statistics of speculation as a JSON object."""
    rows = [asdict(row) for row in stats.speculators]
    return {
        "steps": stats.steps,
        "drafted": stats.drafted,
        "accepted": stats.accepted,
        "acceptance_length": stats.acceptance_length,
        "acceptance_histogram": list(stats.acceptance_histogram),
        **({"lossy": True} if stats.lossy else {}),
        "speculators": {row.pop("name"): row for row in rows},
    }


@dataclass(frozen=True, slots=True)
class Piece:
    """Content of one reply."""

    position: int
    """Number of generated tokens before this piece."""
    token_ids: tuple[int, ...]
    text: str
    """New text; incomplete characters and possible stop strings come later."""
    logprobs: tuple[float, ...] = ()
    """Log-probabilities of the tokens, if requested."""
    token_logprobs: tuple[TokenLogprobs, ...] = ()
    """Log-probabilities by token, with the requested alternatives."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """A gateway has accepted the request."""

    prompt_tokens: int
    begins_in_reasoning: bool = False


Item: TypeAlias = Accepted | Piece | Summary
