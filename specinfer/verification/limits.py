"""What one pass and one tree may be at most, and the defaults of that. Pure data; loads no torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What one pass and one tree may be at most."""

    max_requests: int = 64
    max_nodes: int = 128
    max_step_tokens: int = 2048
    max_context_len: int = 8192
    idle_seconds: float = 300.0
    """A request not heard of for this long is forgotten."""
