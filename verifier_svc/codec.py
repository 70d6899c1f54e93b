"""Encodes the steps of a host as messages; `verifier_svc.requests` decodes messages."""

from collections.abc import Mapping

from specinfer.engine.host import HostStep
from specinfer.engine.local_pool import MemberCounts
from specinfer.request.statuses import LogprobRow
from specinfer.request.verdict import Verdict
from specinfer.tree import TokenTree
from specinfer.v1 import common_pb2, verifier_pb2
from specinfer.wire.tree_codec import encode_tree


def encode_verdict(request_id: str, verdict: Verdict, tree: TokenTree | None = None) -> verifier_pb2.Verdict:
    """Encode a verdict, with its merged `tree` if the gateway lacks it."""
    message = verifier_pb2.Verdict(
        request_id=request_id,
        status=int(verdict.status),  # type: ignore[arg-type]  # the enums share their numbers
        message=verdict.message,
        accepted_nodes=verdict.accepted,
        bonus_token_id=verdict.bonus,
        logprobs=[row.chosen for row in verdict.logprobs],
        top_logprobs=[_top(row) for row in verdict.logprobs if row.top],
        cached_len=verdict.cached_len,
        top_k_token_ids=[token for ids in verdict.top_k for token in ids],
        finished=verdict.finished,
        cached_tokens=verdict.cached_tokens,
        tree=encode_tree(tree) if tree is not None else None,
    )
    if verdict.features:
        message.features, message.features_start = verdict.features, verdict.features_start
    return message


def made_trees(step: HostStep) -> Mapping[str, TokenTree]:
    """Return merged trees that the gateway does not know, by request id."""
    verbatim = step.plan.verbatim
    return {name: tree for name, tree in step.trees.items() if name not in verbatim and len(tree) > 1}


def encode_drafts(step: HostStep, speculators: int) -> verifier_pb2.ResidentDrafts | None:
    """Encode statistics of a step's resident drafts; None if there were none."""
    if not step.draft_times:
        return None
    own_seconds = {number: seconds for times in step.draft_times for number, seconds in times.own_s.items()}
    return verifier_pb2.ResidentDrafts(
        microseconds=round(step.draft_s * 1e6),
        read_tokens=sum([times.read for times in step.draft_times]),
        speculators=[
            _encode_counts(own_seconds.get(number, 0.0), step.drafted.get(number))
            for number in range(speculators)
        ],
    )


def _encode_counts(seconds: float, counts: MemberCounts | None) -> verifier_pb2.ResidentDraft:
    counts = counts or MemberCounts()
    return verifier_pb2.ResidentDraft(
        microseconds=round(seconds * 1e6),
        nodes=counts.nodes,
        failed=counts.failed,
        malformed=counts.malformed,
    )


def _top(row: LogprobRow) -> common_pb2.TopLogprobs:
    return common_pb2.TopLogprobs(
        token_ids=[token for token, _ in row.top], logprobs=[value for _, value in row.top]
    )
