"""Answers of `LLM` like vLLM's, with counts of speculation."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from specinfer.errors import ConstraintError, SpecInferError
from specinfer.request.answer import SpeculationStats, SpeculatorStats, Summary
from specinfer.request.statuses import FinishReason, LogprobRow
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import RequestState
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.scheduling.text import TextStream
from specinfer.text.tokenizer import Tokenizer

_REASONS = {
    FinishReason.LENGTH: "length",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.CONSTRAINT: "stop",
    FinishReason.CANCELLED: "abort",
    FinishReason.DEADLINE: "abort",
    FinishReason.ERROR: "error",
}


@dataclass(frozen=True, slots=True)
class Logprob:
    """A token's log-probability, before temperature, top-k and top-p."""

    logprob: float
    decoded_token: str


@dataclass(slots=True)
class CompletionOutput:
    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """Log-probabilities per generated token by token id; None unless requested."""
    finish_reason: str | None = None
    """"stop", "length" or "abort"; None while the answer grows."""

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times and counts of a request, summed over its answers."""

    queue_seconds: float
    first_token_seconds: float
    """Seconds from arrival to the first token."""
    total_seconds: float
    seed: int
    """Seed of the first answer."""
    speculative_decoding: SpeculationCounts
    """Steps, drafted and accepted nodes, accepted nodes per step and per speculator."""


@dataclass(slots=True)
class RequestOutput:
    request_id: str
    prompt: str | None
    """Text of the prompt; None if token ids were given."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    metrics: RequestMetrics | None = None
    """None until all answers are complete."""
    num_cached_tokens: int = 0
    """Number of the prompt's tokens found in the cache."""

    @property
    def finished(self) -> bool:
        return all(output.finished for output in self.outputs)


class CompletionBuilder:
    """Build one answer from new tokens: text, log-probabilities, finish reason."""

    def __init__(self, state: RequestState, tokenizer: Tokenizer, index: int) -> None:
        self.state, self._tokenizer = state, tokenizer
        asked = state.request
        self._text = TextStream(tokenizer, asked.stop_strings, asked.prompt, asked.stop_token_ids)
        self.output = CompletionOutput(index, logprobs=[] if state.request.logprobs else None)

    def add(self, progress: Progress) -> None:
        """Append new tokens up to a stop string."""
        piece = self._text.push(progress.tokens, progress.final)
        self.output.text += piece.text
        tokens = progress.tokens[: piece.used]
        self.output.token_ids += tokens
        if self.output.logprobs is not None:
            rows = progress.logprobs[: piece.used]
            self.output.logprobs += [self._row(t, row) for t, row in zip(tokens, rows, strict=True)]

    def end(self) -> SpecInferError | None:
        """Set the finish reason; return the fault of a failed request."""
        assert self.state.finish is not None
        self.output.finish_reason = _REASONS[self.state.finish]
        failed = self.state.finish is FinishReason.ERROR
        kind = ConstraintError if self.state.invalid else SpecInferError
        return kind(self.state.error) if failed else None

    def _row(self, token: int, row: LogprobRow) -> dict[int, Logprob]:
        text = self._tokenizer.text_of_token
        logprobs = {token: Logprob(row.chosen, text(token))}
        return logprobs | {other: Logprob(value, text(other)) for other, value in row.top}


def metrics_of(states: Sequence[RequestState]) -> RequestMetrics:
    """Return a finished request's metrics, from its answers' states."""
    first = states[0]
    end = max((state.finished_at or state.queued_at) for state in states)
    speculation = SpeculationCounts()
    for state in states:
        speculation += state.stats
    return RequestMetrics(
        (first.admitted_at or end) - first.queued_at,
        (first.first_token_at or end) - first.queued_at,
        end - first.queued_at,
        first.request.sampling.seed,
        speculation,
    )


def summary_of(output: RequestOutput, state: RequestState, names: Sequence[str]) -> Summary:
    """Return the summary of a finished request with one answer.

    Args:
        names: names of the speculators, by number.
    """
    metrics, counts = output.metrics, state.stats
    assert metrics is not None, "a request that has ended has metrics"
    assert state.finish is not None
    return Summary(
        state.finish,
        prompt_tokens=len(output.prompt_token_ids),
        cached_tokens=output.num_cached_tokens,
        new_tokens=len(output.outputs[0].token_ids),
        stats=SpeculationStats(
            counts.steps,
            counts.drafted,
            counts.accepted,
            tuple(counts.histogram),
            tuple(
                SpeculatorStats(names[number], row.drafted, row.accepted, row.wins)
                for number, row in sorted(counts.speculators.items())
            ),
        ),
        ttft_seconds=metrics.first_token_seconds,
        total_seconds=metrics.total_seconds,
        queue_seconds=metrics.queue_seconds,
        seed=metrics.seed,
    )
