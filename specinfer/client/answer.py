"""Read the log-probabilities and the summary in a gateway's replies."""

from specinfer.request.answer import SpeculationStats, SpeculatorStats, Summary, TokenLogprob, TokenLogprobs
from specinfer.request.statuses import FinishReason
from specinfer.v1 import generation_pb2

_REASONS = {
    number: FinishReason(name.removeprefix("FINISH_REASON_").lower())
    for name, number in generation_pb2.FinishReason.items()
}


def read_logprobs(reply: generation_pb2.GenerateReply) -> tuple[TokenLogprobs, ...]:
    """Return the log-probabilities in a reply; () if they were not requested."""
    if not reply.token_bytes:
        return ()
    chosen = map(TokenLogprob, reply.token_ids, reply.token_bytes, reply.logprobs)
    tops = [
        tuple(map(TokenLogprob, row.token_ids, row.token_bytes, row.logprobs)) for row in reply.top_logprobs
    ]
    if not tops:
        return tuple([TokenLogprobs(token) for token in chosen])
    return tuple(map(TokenLogprobs, chosen, tops))


def read_summary(message: generation_pb2.Summary) -> Summary:
    """Convert a summary; an unknown finish reason becomes `UNSPECIFIED`."""
    return Summary(
        finish_reason=_REASONS.get(message.finish_reason, FinishReason.UNSPECIFIED),
        prompt_tokens=message.prompt_tokens,
        cached_tokens=message.cached_tokens,
        new_tokens=message.new_tokens,
        stats=_read_stats(message.stats),
        ttft_seconds=message.ttft_seconds,
        total_seconds=message.total_seconds,
        queue_seconds=message.queue_seconds,
        seed=message.seed,
        stop_string=message.stop_string,
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
