"""Steps of requests as JSON, in the words of `WatchReply`. Pure."""

from typing import Any

from specinfer.v1 import generation_pb2, tree_pb2

_KIND, _FINISH = "PROPOSAL_KIND_", "FINISH_REASON_"


def step_event(reply: generation_pb2.WatchReply) -> dict[str, Any]:
    """One event; `step` is null in the first one, and where a request ended between steps."""
    return {
        "request_id": reply.request_id,
        "step": _step(reply.step) if reply.HasField("step") else None,
        "dropped": reply.dropped,
        "finish_reason": _finish(reply.finish_reason),
    }


def _finish(reason: generation_pb2.FinishReason) -> str | None:
    name = generation_pb2.FinishReason.Name(reason).removeprefix(_FINISH).lower()
    return name if reason else None


def _step(step: generation_pb2.WatchedStep) -> dict[str, Any]:
    return {
        "position": step.position,
        "nodes": [_node(node, step.planner.speculators) for node in step.nodes],
        "accepted": list(step.accepted),
        "tokens": [_token(token) for token in step.tokens],
        "bonus": _token(step.bonus),
        "planner": _planner(step.planner),
        "batch": step.batch,
        "seconds": step.seconds,
        "phases": {phase.name: phase.seconds for phase in step.phases},
    }


def _node(node: generation_pb2.WatchedNode, names: Any) -> dict[str, Any]:
    proposals = [
        {
            "speculator": names[proposal.speculator],
            "kind": tree_pb2.ProposalKind.Name(proposal.kind).removeprefix(_KIND).lower(),
            "chance": proposal.chance,
        }
        for proposal in node.proposals
    ]
    return {
        "id": node.token_id,
        "text": node.text,
        "parent": node.parent,
        "chance": node.chance,
        "proposals": proposals,
        "forced": node.forced,
    }


def _token(token: generation_pb2.WatchedToken) -> dict[str, Any]:
    logprob = token.logprob if token.HasField("logprob") else None
    return {"id": token.token_id, "text": token.text, "logprob": logprob}


def _planner(planner: generation_pb2.PlannerState) -> dict[str, Any]:
    return {
        "speculators": list(planner.speculators),
        "tree_nodes": planner.tree_nodes,
        "step_nodes": planner.step_nodes,
        "expected_tokens": planner.expected_tokens,
        "expected_seconds": planner.expected_seconds,
        "plain_tokens_per_second": planner.plain_tokens_per_second,
        "reason": planner.reason,
    }
