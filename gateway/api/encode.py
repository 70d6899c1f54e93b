"""Encode parts of replies: log-probabilities, finish reasons, the planner's choice."""

from collections.abc import Sequence
from typing import Any

from gateway.session.token_stream import StreamChunk
from specinfer.planning.choice import Choice
from specinfer.request.statuses import FinishReason
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import common_pb2, generation_pb2


def encode_logprobs(piece: StreamChunk, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the fields of `GenerateReply` with log-probabilities."""
    return {
        "logprobs": [row.chosen for row in piece.logprobs],
        "token_bytes": [tokenizer.token_bytes(token) for token in piece.tokens],
        "top_logprobs": [
            common_pb2.TopLogprobs(
                token_ids=[token for token, _ in row.top],
                logprobs=[value for _, value in row.top],
                token_bytes=[tokenizer.token_bytes(token) for token, _ in row.top],
            )
            for row in piece.logprobs
            if row.top
        ],
    }


def encode_finish(reason: FinishReason) -> str:
    """Return a finish reason's name in `specinfer.v1.FinishReason`.

    Protobuf constructors accept the name in place of the number.
    """
    return f"FINISH_REASON_{reason.name}"


def planner_state(choice: Choice, names: Sequence[str]) -> generation_pb2.PlannerState:
    """Encode the planner's choice; `names[i]` is the name of speculator i."""
    return generation_pb2.PlannerState(
        speculators=[names[speculator] for speculator in sorted(choice.speculators)],
        tree_nodes=choice.nodes,
        step_nodes=choice.step_nodes,
        expected_tokens=choice.tokens,
        expected_seconds=choice.seconds,
        plain_tokens_per_second=choice.plain_speed,
        reason=choice.reason,
        batch=choice.batch,
    )
