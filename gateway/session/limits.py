"""Combine the gateway's settings and the verifier's limits."""

from gateway.settings import GatewaySettings
from specinfer.planning.pass_curve import PassCurve, derive_budget
from specinfer.scheduling.limits import NodeBudget, SchedulerLimits
from specinfer.v1 import verifier_pb2


def scheduler_limits(
    settings: GatewaySettings, verifier: verifier_pb2.DescribeVerifierReply
) -> SchedulerLimits:
    """Return the gateway's limits, reduced to the verifier's limits."""
    return SchedulerLimits(
        max_batch=min(settings.max_batch, verifier.max_requests, verifier.max_step_tokens),
        max_waiting=settings.max_waiting,
        prefill_chunk=min(settings.prefill_chunk, verifier.max_step_tokens),
        tree_depth=verifier.max_nodes,
        max_step_tokens=verifier.max_step_tokens,
        max_context_len=verifier.max_context_len,
        kv_capacity_tokens=verifier.kv_capacity_tokens,
        kv_block_tokens=verifier.kv_block_tokens,
        kv_window_tokens=verifier.kv_window_tokens,
        max_tree_nodes=verifier.max_nodes - 1,
    )


def longest_request(verifier: verifier_pb2.DescribeVerifierReply) -> int:
    """Return the maximum tokens of a request, prompt included.

    It is the lower of the model's context and the KV cache's whole blocks.
    """
    if verifier.kv_window_tokens:
        return verifier.max_context_len
    whole_blocks = verifier.kv_capacity_tokens // verifier.kv_block_tokens * verifier.kv_block_tokens
    return min(verifier.max_context_len, whole_blocks)


def node_budget(
    settings: GatewaySettings, limits: SchedulerLimits, curve: PassCurve, context_s: float
) -> NodeBudget:
    """Return the configured node budget; missing limits follow from pass times.

    `context_s` is the time in seconds that a token of context adds to each row of a pass.
    """
    return derive_budget(
        curve,
        limits.max_batch,
        limits.max_tree_nodes,
        limits.max_step_tokens,
        settings.tree_nodes,
        settings.step_nodes,
        context_s,
    )
