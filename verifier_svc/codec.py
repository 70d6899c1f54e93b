"""Messages of the verifier to jobs, and outcomes to messages."""

import logging
from collections.abc import Iterable, Sequence

from specinfer.errors import FaultError, InvalidInputError, SpecInferError
from specinfer.statuses import EntryStatus, LogprobRow
from specinfer.system.log_lines import about
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.verification.jobs import VerifyJob, VerifyOutcome
from specinfer.wire.constraint_codec import decode_constraint
from specinfer.wire.sampling_codec import decode_sampling
from specinfer.wire.tree_codec import decode_tree

log = logging.getLogger(__name__)


def decode_entries(
    entries: Iterable[verifier_pb2.VerifyEntry], no_features: SpecInferError | None, resident_top_k: int = 0
) -> list[VerifyJob | VerifyOutcome]:
    """Return a job or an outcome per entry; of entries with the same id only the first is served.

    `resident_top_k` are the predictions per node that resident speculators read.
    """
    found: list[VerifyJob | VerifyOutcome] = []
    seen: set[str] = set()
    for entry in entries:
        twice = entry.request_id in seen
        found.append(_twice(entry.request_id) if twice else _decode(entry, no_features, resident_top_k))
        seen.add(entry.request_id)
    return found


def _twice(request_id: str) -> VerifyOutcome:
    error = InvalidInputError("request_id", request_id, "is in the message twice")
    return VerifyOutcome(request_id, EntryStatus.ERROR, str(error))


def _decode(
    entry: verifier_pb2.VerifyEntry, no_features: SpecInferError | None, resident_top_k: int
) -> VerifyJob | VerifyOutcome:
    """Return the job of an entry, or the outcome with its error."""
    try:
        if entry.HasField("features_from") and no_features is not None:
            raise no_features
        return VerifyJob(
            entry.request_id,
            entry.base_len,
            list(entry.delta_token_ids),
            decode_tree(entry.tree) if entry.HasField("tree") else None,
            decode_sampling(entry.sampling),
            entry.logprobs,
            entry.top_logprobs,
            max(entry.return_top_k, resident_top_k) if entry.HasField("tree") else entry.return_top_k,
            entry.features_from if entry.HasField("features_from") else None,
            entry.prompt_len,
            decode_constraint(entry.constraint),
        )
    except SpecInferError as error:
        return VerifyOutcome(entry.request_id, EntryStatus.ERROR, error.for_logs)
    except Exception as error:
        log.exception("an entry could not be read", extra=about(entry.request_id))
        why = FaultError("internal error", error).for_logs
        return VerifyOutcome(entry.request_id, EntryStatus.ERROR, why)


def encode_outcome(
    outcome: VerifyOutcome, drafts: Sequence[speculator_pb2.Draft] = ()
) -> verifier_pb2.Verdict:
    """Return the verdict of an outcome, with the drafts for the next step."""
    message = verifier_pb2.Verdict(
        request_id=outcome.request_id,
        status=int(outcome.status),  # type: ignore[arg-type]  # the enums share their numbers
        message=outcome.message,
        logprobs=[row.chosen for row in outcome.logprobs],
        top_logprobs=[_top(row) for row in outcome.logprobs if row.top],
        held_len=outcome.held_len,
        top_k_token_ids=[token for ids in outcome.top_k for token in ids],
        finished=outcome.finished,
        next_drafts=drafts,
    )
    if outcome.features.data:
        message.features, message.features_start = outcome.features.data, outcome.features.start
    if outcome.verdict is not None:
        message.accepted_nodes.extend(outcome.verdict.accepted)
        message.bonus_token_id = outcome.verdict.bonus
    return message


def _top(row: LogprobRow) -> common_pb2.TopLogprobs:
    return common_pb2.TopLogprobs(
        token_ids=[token for token, _ in row.top], logprobs=[value for _, value in row.top]
    )
