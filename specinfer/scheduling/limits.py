"""What a scheduler may run and hold at once. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """What may run at once."""

    max_batch: int = 16
    max_waiting: int = 1024
    prefill_chunk: int = 512
    """Most prompt tokens in one step, over all requests."""
    tree_depth: int = 8
    sequence_length: int = 5
    """Nodes of a chain in sequence speculation."""
    max_step_tokens: int = 2048
    max_context_len: int = 8192
    """Positions of a request, prompt included."""
    kv_capacity_tokens: int = 32768
    kv_block_tokens: int = 16
    kv_window_tokens: int = 0
    """Context tokens the verifier keeps per request; 0 for all."""
    max_tree_nodes: int = 127
    """Most nodes the verifier accepts in one tree, root excluded."""
