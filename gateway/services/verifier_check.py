"""Whether a gateway can work with what a verifier says of itself. Pure."""

from specinfer.errors import IncompatibleError
from specinfer.v1 import verifier_pb2

_LEAST_AND_MOST = {
    "vocab_size": (1, 2**24),
    "max_context_len": (1, 2**31),
    "max_requests": (1, 2**20),
    "max_nodes": (1, 2**16),
    "max_step_tokens": (2, 2**24),
    "kv_capacity_tokens": (1, 2**40),
    "kv_block_tokens": (1, 2**16),
    "kv_window_tokens": (0, 2**31),
}
"""Of limits; the most is far beyond any machine, and bounds what the planner computes with it."""
_MOST_COSTS = 1024


def check_description(found: verifier_pb2.DescribeVerifierReply) -> None:
    """Checks the limits from which a gateway plans.

    Raises:
        IncompatibleError: naming the field, if one is missing or makes no sense.
    """
    for name, (least, most) in _LEAST_AND_MOST.items():
        value = getattr(found, name)
        if not least <= value <= most:
            raise IncompatibleError(f"the verifier says {name} = {value}: must be from {least} to {most}")
    if not found.pass_costs:
        raise IncompatibleError("the verifier does not tell what its passes take (pass_costs is empty)")
    if len(found.pass_costs) > _MOST_COSTS or any(cost.tokens < 1 for cost in found.pass_costs):
        raise IncompatibleError(
            f"the verifier says {len(found.pass_costs)} pass_costs: must be at most {_MOST_COSTS}, each of a "
            "token or more"
        )
