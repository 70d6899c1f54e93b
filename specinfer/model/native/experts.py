"""Lists names and shapes of a layer's experts, for packing and offloading."""

from collections.abc import Iterator
from typing import NamedTuple

from specinfer.model.families.experts import Experts
from specinfer.model.native.bindings import ExpertShape, MatrixSlot, VectorSlot

_PROJECTIONS = ("gate_proj", "up_proj", "down_proj")


EXPERT_BIASES = (
    (VectorSlot.EXPERT_GATE_BIAS, "gate_proj"),
    (VectorSlot.EXPERT_UP_BIAS, "up_proj"),
    (VectorSlot.EXPERT_DOWN_BIAS, "down_proj"),
)


class ExpertMatrix(NamedTuple):
    slot: int
    name: str
    """Name without the layer's prefix and ".weight"."""
    shape: tuple[int, int]


def expert_matrices(experts: Experts, hidden: int) -> Iterator[ExpertMatrix]:
    inner = experts.intermediate_size
    for expert in range(experts.count):
        for place, name in enumerate(_PROJECTIONS):
            shape = (hidden, inner) if name == "down_proj" else (inner, hidden)
            slot = MatrixSlot.EXPERTS + len(_PROJECTIONS) * expert + place
            yield ExpertMatrix(slot, f"mlp.experts.{expert}.{name}", shape)


def expert_shape(experts: Experts) -> ExpertShape:
    """Return a mixture's sizes and options as the kernels read them."""
    return ExpertShape(
        count=experts.count,
        used=experts.used,
        inter=experts.intermediate_size,
        shared=experts.shared_size,
        gated_shared=experts.gated_shared,
        renormalised=experts.renormalised,
        limit=experts.limit,
        alpha=experts.alpha,
    )
