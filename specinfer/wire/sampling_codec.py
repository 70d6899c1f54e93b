"""Encode and decode sampling parameters and constraints."""

import json
from functools import lru_cache
from typing import Any

from specinfer.request.sampling import Sampling
from specinfer.text.constraints.constraint import Constraint, ConstraintKind
from specinfer.v1 import common_pb2

_NUMBERS = [f for f in common_pb2.SamplingParams.DESCRIPTOR.fields if f.name not in ("seed", "logit_bias")]
_PLAIN = {f.name for f in _NUMBERS} - {"presence_penalty", "frequency_penalty", "repetition_penalty"}
"""Fields that do not depend on earlier tokens."""


def encode_sampling(
    sampling: Sampling, with_seed: bool = True, with_adjustments: bool = True
) -> common_pb2.SamplingParams:
    """Return the message of sampling parameters.

    Args:
        with_seed: False if the receiver must not know the target's random numbers.
        with_adjustments: False if the receiver ignores biases and penalties.
    """
    adjusts = with_adjustments and sampling.adjusts
    names = {f.name for f in _NUMBERS} if adjusts else _PLAIN
    return common_pb2.SamplingParams(
        **{name: getattr(sampling, name) for name in names},
        seed=sampling.seed if with_seed else None,
        logit_bias=dict(sampling.logit_bias) if adjusts else None,
    )


def decode_sampling(message: common_pb2.SamplingParams, default_seed: int = 0) -> Sampling:
    """Decode sampling parameters; an unset temperature is 1.

    Results are cached, since every step of a request has the same message.
    """
    return _decoded(message.SerializeToString(), default_seed)


@lru_cache(maxsize=1024)
def _decoded(data: bytes, default_seed: int) -> Sampling:
    message = common_pb2.SamplingParams.FromString(data)
    set_fields = [f.name for f in _NUMBERS if not f.has_presence or message.HasField(f.name)]
    given = {name: getattr(message, name) for name in set_fields}
    if not message.repetition_penalty:  # 0 means "not set", too
        given.pop("repetition_penalty", None)
    seed = message.seed if message.HasField("seed") else default_seed
    return Sampling(**given, seed=seed, logit_bias=tuple(sorted(message.logit_bias.items())))


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
