"""Convert entries to the verifier's jobs, and outcomes to verdicts. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.target_outputs import WantedOutputs
from specinfer.tree import TokenTree
from specinfer.verification.features import FeatureSpan, with_layers
from specinfer.verification.jobs import VerifyJob, VerifyOutcome


def job_of(
    entry: StepEntry, tree: TokenTree | None, asked: WantedOutputs, local_wanted: WantedOutputs
) -> VerifyJob:
    """Return the verifier's job for one request of a step.

    Args:
        asked: outputs of the target that the caller wants.
        local_wanted: outputs that the drafters of this process read.
    """
    state, request, starts_over = entry.state, entry.state.request, entry.base_len == 0
    request_id = request.request_id
    return VerifyJob(
        request_id,
        entry.base_len,
        list(entry.delta),
        tree,
        state.sampling,
        request.logprobs,
        request.top_logprobs,
        max(asked.top_k.get(request_id, 0), local_wanted.top_k.get(request_id, 0)),
        asked.features.since.get(request_id),
        len(request.prompt) if starts_over else 0,
        request.constraint if starts_over else None,
        request.caller if starts_over else "",
        entry.read_limit,
    )


def as_asked(outcome: VerifyOutcome, asked: WantedOutputs, kept: Sequence[int]) -> VerifyOutcome:
    """Return an outcome with only the target's outputs that `asked` names.

    Args:
        kept: layers of the outcome's hidden states.
    """
    k = asked.top_k.get(outcome.request_id, 0)
    top_k = tuple([row[:k] for row in outcome.top_k]) if k else ()
    return replace(outcome, top_k=top_k, features=with_layers(outcome.features, kept, asked.features.layers))


def verdict_of(outcome: VerifyOutcome, features: FeatureSpan | None = None) -> VerdictEntry:
    """Return the scheduler's form of an outcome; `features` replace its hidden states."""
    verdict, span = outcome.verdict, features or outcome.features
    return VerdictEntry(
        outcome.status,
        outcome.message,
        tuple(verdict.accepted) if verdict is not None else (),
        verdict.bonus if verdict is not None else 0,
        tuple(outcome.logprobs),
        outcome.cached_len,
        span.start,
        span.data,
        tuple(token for ids in outcome.top_k for token in ids),
        outcome.finished,
        outcome.cached_tokens,
    )
