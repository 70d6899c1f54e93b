"""Encode and decode entries and outcomes of draft steps."""

import logging
from collections.abc import Mapping, Sequence

from specinfer.drafters import TargetTopK
from specinfer.drafters.entries import Draft, DraftEntry, DraftOutcome
from specinfer.drafters.refusals import is_momentary
from specinfer.errors import ExhaustedError, FaultError, MalformedTreeError, SpecInferError
from specinfer.request.statuses import EntryStatus
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.wire.codec import decode_limits, decode_sampling, decode_tree, encode_sampling, encode_tree

log = logging.getLogger(__name__)
_FAILED = {int(EntryStatus.ERROR): SpecInferError, int(EntryStatus.EXHAUSTED): ExhaustedError}
_STATUSES = frozenset(int(status) for status in EntryStatus)
_MAX_REFERENCE_TOKENS = 2**20
"""Maximum reference tokens of a message.

References take up to 3 MiB, features up to 8 MiB; a message has at most 16 MiB.
"""


def encode_entry(entry: DraftEntry, chain: bool) -> speculator_pb2.DraftEntry:
    """Encode an entry, without its references; `chain`: the tree must be a sequence."""
    return speculator_pb2.DraftEntry(
        request_id=entry.request_id,
        base_len=entry.base_len,
        delta_token_ids=entry.delta,
        node_budget=entry.limits.nodes,
        max_depth=entry.limits.depth,
        shape=speculator_pb2.TREE_SHAPE_SEQUENCE if chain else speculator_pb2.TREE_SHAPE_TREE,
        sampling=encode_sampling(entry.sampling, entry.sees_noise, with_adjustments=False),
        speculators=entry.speculators,
        min_path_probability=entry.limits.min_path_probability,
        tokens_per_second=entry.limits.tokens_per_second,
        draw_seed=entry.draw_seed,
        target_features=entry.features,
        features_start=entry.features_start,
        target_top_k=None if entry.target_top_k is None else _encode_top_k(entry.target_top_k),
        cache_scope=entry.cache_scope,
    )


def decode_entry(request_id: str, message: speculator_pb2.DraftEntry) -> DraftEntry:
    """Decode an entry of the engine's request `request_id`."""
    return DraftEntry(
        request_id,
        message.base_len,
        list(message.delta_token_ids),
        decode_limits(message),
        decode_sampling(message.sampling),
        list(message.speculators),
        message.draw_seed,
        message.sampling.HasField("seed"),
        message.target_features,
        message.features_start,
        _decode_top_k(message),
        [list(reference.token_ids) for reference in message.references],
        message.cache_scope,
    )


def encode_outcome(request_id: str, outcome: DraftOutcome) -> speculator_pb2.DraftResult:
    """Encode an outcome of the client's request `request_id`."""
    return speculator_pb2.DraftResult(
        request_id=request_id,
        status=int(outcome.status),  # type: ignore[arg-type]  # both enums have the same numbers
        message=outcome.message,
        drafts=[_encode_draft(speculator, draft) for speculator, draft in outcome.drafts],
        cached_len=outcome.cached_len,
    )


def decode_outcome(message: speculator_pb2.DraftResult, members: Sequence[int]) -> DraftOutcome:
    """Decode an outcome; proposals get their speculators' numbers from `members`.

    An unknown status counts as ERROR.
    """
    status = EntryStatus(message.status) if message.status in _STATUSES else EntryStatus.ERROR
    drafts = tuple([_decode_draft(draft, members) for draft in message.drafts])
    return DraftOutcome(message.request_id, status, message.message, drafts, message.cached_len)


def _encode_draft(speculator: int, draft: TokenTree | SpecInferError) -> speculator_pb2.Draft:
    """Encode a speculator's tree, or the reason for none."""
    if not isinstance(draft, SpecInferError):
        try:
            tree = encode_tree(draft)
        except Exception as error:  # drafters are extensions: their faults must only cost their own draft
            log.exception("speculator %d: its draft cannot be encoded and is dropped", speculator)
            draft = FaultError("the draft cannot be encoded as a tree", error)
        else:
            status = common_pb2.ENTRY_STATUS_OK
            return speculator_pb2.Draft(speculator=speculator, status=status, tree=tree)
    status = common_pb2.ENTRY_STATUS_EXHAUSTED if is_momentary(draft) else common_pb2.ENTRY_STATUS_ERROR
    return speculator_pb2.Draft(speculator=speculator, status=status, message=draft.for_logs)


def _decode_draft(draft: speculator_pb2.Draft, members: Sequence[int]) -> Draft:
    if (failed := _FAILED.get(int(draft.status))) is not None:
        return draft.speculator, failed(draft.message)
    number = members[draft.speculator] if draft.speculator < len(members) else draft.speculator
    try:
        return draft.speculator, decode_tree(draft.tree, number)
    except MalformedTreeError as error:
        return draft.speculator, error


def _encode_top_k(predicted: TargetTopK) -> speculator_pb2.TargetTopK:
    return speculator_pb2.TargetTopK(
        token_ids=predicted.token_ids.tolist(),
        parents=predicted.parents.tolist(),
        top_k_token_ids=predicted.top_k.ravel().tolist(),
    )


def _decode_top_k(entry: speculator_pb2.DraftEntry) -> TargetTopK | None:
    if not entry.HasField("target_top_k"):
        return None
    message = entry.target_top_k
    return TargetTopK.of(message.token_ids, message.parents, message.top_k_token_ids)


def add_references(
    entries: Sequence[speculator_pb2.DraftEntry] | Sequence[verifier_pb2.VerifyEntry],
    references: Mapping[str, Sequence[Sequence[int]]],
) -> None:
    """Add the request's references to each entry with base_len 0.

    References are hints: tokens beyond an entry's share of the message are left out.
    """
    starting = [entry for entry in entries if entry.base_len == 0]
    for entry in starting:
        left = _MAX_REFERENCE_TOKENS // len(starting)
        for text in references[entry.request_id]:
            if left:
                entry.references.add(token_ids=text[:left])
            left -= min(left, len(text))
