"""Encode and decode sampling parameters and constraints."""

import json
from functools import lru_cache
from typing import Any

from specinfer.request.sampling import Sampling
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.v1 import common_pb2


def encode_sampling(
    sampling: Sampling, with_seed: bool = True, with_adjustments: bool = True
) -> common_pb2.SamplingParams:
    """Return the message of sampling parameters.

    Args:
        with_seed: False if the receiver must not know the target's random numbers.
        with_adjustments: False if the receiver ignores biases and penalties.
    """
    message = common_pb2.SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        seed=sampling.seed if with_seed else None,
        typical_epsilon=sampling.typical_epsilon,
        typical_delta=sampling.typical_delta,
        min_p=sampling.min_p,
    )
    if with_adjustments and sampling.adjusts:
        message.logit_bias.update(sampling.logit_bias)
        message.presence_penalty = sampling.presence_penalty
        message.frequency_penalty = sampling.frequency_penalty
        message.repetition_penalty = sampling.repetition_penalty
    return message


def decode_sampling(message: common_pb2.SamplingParams, default_seed: int = 0) -> Sampling:
    """Decode sampling parameters; an unset temperature is 1.

    Results are cached, since every step of a request has the same message.
    """
    return _decoded(message.SerializeToString(), default_seed)


@lru_cache(maxsize=1024)
def _decoded(data: bytes, default_seed: int) -> Sampling:
    message = common_pb2.SamplingParams.FromString(data)
    return Sampling(
        temperature=message.temperature if message.HasField("temperature") else 1.0,
        top_k=message.top_k,
        top_p=message.top_p if message.HasField("top_p") else 1.0,
        seed=message.seed if message.HasField("seed") else default_seed,
        typical_epsilon=message.typical_epsilon,
        typical_delta=message.typical_delta,
        logit_bias=tuple(sorted(message.logit_bias.items())),
        presence_penalty=message.presence_penalty,
        frequency_penalty=message.frequency_penalty,
        min_p=message.min_p,
        repetition_penalty=message.repetition_penalty or 1.0,
    )


def encode_constraint(constraint: Constraint) -> common_pb2.Constraint:
    if constraint.kind is ConstraintKind.CHOICE:
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=json.loads(constraint.source)))
    fields: dict[str, Any] = {constraint.kind.value: constraint.source}
    return common_pb2.Constraint(**fields)


def decode_constraint(message: common_pb2.Constraint) -> Constraint | None:
    """Return the constraint of a message; None if no kind is set."""
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == ConstraintKind.CHOICE:
        return Constraint.choice(list(message.choice.texts))
    return Constraint(ConstraintKind(kind), getattr(message, kind))
