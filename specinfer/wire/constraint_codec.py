"""Constraint <-> `specinfer.v1.Constraint`."""

import json
from typing import Any

from specinfer.constraints.constraint import Constraint, ConstraintKind
from specinfer.v1 import common_pb2


def encode_constraint(constraint: Constraint) -> common_pb2.Constraint:
    """Return the message of a constraint."""
    if constraint.kind is ConstraintKind.CHOICE:
        return common_pb2.Constraint(choice=common_pb2.Choice(texts=json.loads(constraint.source)))
    fields: dict[str, Any] = {constraint.kind.value: constraint.source}
    return common_pb2.Constraint(**fields)


def decode_constraint(message: common_pb2.Constraint) -> Constraint | None:
    """Return the constraint of a message; None if it names none.

    Raises:
        InvalidInputError: if it is empty or too large.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == ConstraintKind.CHOICE:
        return Constraint.choice(list(message.choice.texts))
    return Constraint(ConstraintKind(kind), getattr(message, kind))
