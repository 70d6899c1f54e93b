"""One request's answer: what has come of it so far, and how it ended."""

from dataclasses import asdict, dataclass, field
from typing import Any

from specinfer.client.logprobs import TokenLogprobs
from specinfer.client.summary import FinishReason, SpeculationStats, Summary


@dataclass(slots=True)
class Answer:
    """The answer of one request; whole once it has a summary."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of the tokens, if asked for."""
    token_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """The same with the tokens themselves, and the most probable ones beside each, if asked for."""
    summary: Summary = field(default_factory=Summary)
    ttft_s: float = 0.0
    """From sending to the first token."""
    tpot_s: float = 0.0
    """Mean time per token after the first message."""
    request_id: str = ""

    @property
    def finish_reason(self) -> FinishReason:
        """Why it ended; `UNSPECIFIED` until then."""
        return self.summary.finish_reason

    @property
    def stats(self) -> SpeculationStats:
        """What speculation did for it."""
        return self.summary.stats

    def to_json(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        s = self.summary
        return {
            "request_id": self.request_id,
            "text": self.text,
            "token_ids": self.token_ids,
            **({"logprobs": self.logprobs} if self.logprobs else {}),
            "finish_reason": s.finish_reason.value,
            "prompt_tokens": s.prompt_tokens,
            "new_tokens": s.new_tokens,
            "seed": s.seed,
            "seconds": s.total_seconds,
            "ttft_ms": self.ttft_s * 1000,
            "tpot_ms": self.tpot_s * 1000,
            **stats_to_json(s.stats),
        }


def stats_to_json(stats: SpeculationStats) -> dict[str, Any]:
    """What speculation did, with the tokens per step."""
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
