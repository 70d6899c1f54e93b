"""One finished request, as whoever asked sees it."""

import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

from specinfer.client.resume import Item, Piece
from specinfer.v1 import generation_pb2


@dataclass(slots=True)
class Answer:
    """One finished request."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    summary: generation_pb2.Summary = field(default_factory=generation_pb2.Summary)
    ttft_s: float = 0.0
    """From sending to the first token."""
    tpot_s: float = 0.0
    """Mean time per token after the first message."""
    request_id: str = ""

    def to_json(self) -> dict[str, Any]:
        """Everything, for `--json`."""
        s = self.summary
        return {
            "request_id": self.request_id,
            "text": self.text,
            "token_ids": self.token_ids,
            **({"logprobs": self.logprobs} if self.logprobs else {}),
            "finish_reason": self.finish_reason,
            "prompt_tokens": s.prompt_tokens,
            "new_tokens": s.new_tokens,
            "seed": s.seed,
            "seconds": s.total_seconds,
            "ttft_ms": self.ttft_s * 1000,
            "tpot_ms": self.tpot_s * 1000,
            "steps": s.stats.steps,
            "drafted": s.stats.drafted,
            "accepted": s.stats.accepted,
            "acceptance_length": acceptance_length(s.stats.steps, s.stats.accepted),
            "acceptance_histogram": list(s.stats.acceptance_histogram),
            **({"lossy": True} if s.stats.lossy else {}),
            "speculators": {
                x.name: {"drafted": x.drafted, "accepted": x.accepted, "wins": x.wins}
                for x in s.stats.speculators
            },
        }

    @property
    def finish_reason(self) -> str:
        """Why it ended, in the words of `FinishReason`: "length", "stop_token", ..."""
        name = generation_pb2.FinishReason.Name(self.summary.finish_reason)
        return name.removeprefix("FINISH_REASON_").lower()


def acceptance_length(steps: int, accepted: int) -> float:
    """Tokens per step, the bonus token included."""
    return 1 + accepted / steps if steps else 0.0


async def read_answer(
    request_id: str, items: AsyncIterator[Item], on_text: Callable[[str], None] = lambda _: None
) -> Answer:
    """An answer made of its pieces, with the times at which they came by the performance counter."""
    answer, first_count = Answer(request_id=request_id), 0
    started = last = time.perf_counter()
    async for item in items:
        if not isinstance(item, Piece):
            answer.summary = item
            continue
        if item.token_ids:
            last = time.perf_counter()
            if not answer.token_ids:
                answer.ttft_s, first_count = last - started, len(item.token_ids)
        answer.token_ids.extend(item.token_ids)
        answer.logprobs.extend(item.logprobs)
        answer.text += item.text
        if item.text:
            on_text(item.text)
    later = len(answer.token_ids) - first_count
    answer.tpot_s = (last - started - answer.ttft_s) / later if later else 0.0
    return answer
