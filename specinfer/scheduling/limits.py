"""Compute limits of requests, tokens, tree nodes and cache space. Pure.

A node budget bounds messages, drafts and the cache space that the scheduler reserves. The planner chooses
nodes within the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from specinfer.options.door_options import GatewayOptions
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.tree import depth_limit


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """Limits of concurrent work."""

    max_batch: int = GatewayOptions.max_batch
    max_waiting: int = GatewayOptions.max_waiting
    prefill_chunk: int = 512
    """Maximum prompt tokens in a step, over all requests."""
    tree_depth: int = 8
    sequence_length: int = 5
    """Nodes of a chain in sequence speculation."""
    max_step_tokens: int = 2048
    max_context_len: int = 8192
    """Maximum tokens of a request, prompt included."""
    kv_capacity_tokens: int = 32768
    kv_block_tokens: int = 16
    kv_window_tokens: int = 0
    """Context tokens that the verifier keeps per request; 0 for all."""
    max_tree_nodes: int = 127
    """Maximum nodes of a tree for the verifier, root excluded."""


@dataclass(frozen=True, slots=True)
class NodeBudget:
    """Maximum tree nodes per request and per step."""

    per_request: int
    """Maximum nodes of a tree, root excluded."""
    per_step: int
    """Maximum nodes of all trees together."""
    room: int | None = None
    """Maximum tokens of a step, roots included; None for no limit."""
    pass_seconds: tuple[float, ...] = ()
    """Seconds of passes over 1, 2, ... tokens; empty: not measured.

    These seconds limit the prompt tokens of a step.
    """
    context_s: float = 0.0
    """Seconds that a context token adds to each row of a pass."""

    def of_step(self, batch: int, requests: int) -> int:
        """Return a step's maximum nodes if `requests` of `batch` have trees."""
        room = self.per_step if self.room is None else max(0, self.room - batch)
        return min(self.per_step, requests * self.per_request, room)


def split_budget(budget: NodeBudget, wanted: Sequence[int]) -> list[int]:
    """Return nodes per request: fair shares of `budget.per_step`.

    No share exceeds the wanted number or `budget.per_request`.
    """
    return fair_shares(budget.per_step, [min(nodes, budget.per_request) for nodes in wanted])


def fair_shares(total: int, wanted: Sequence[int]) -> list[int]:
    """Return equal shares of a total, with leftovers redistributed (max-min fairness).

    An indivisible rest goes to the first requests, one each.
    """
    shares = [0] * len(wanted)
    left = total
    # smallest requests first, so that their leftovers go to the others
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for done, index in enumerate(order):
        fair = left // (len(order) - done)
        if wanted[index] > fair:  # so do all later ones in `order`
            for place, further in enumerate(sorted(order[done:])):
                shares[further] = fair + (place < left % (len(order) - done))
            break
        shares[index] = max(0, wanted[index])
        left -= shares[index]
    return shares


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """Space in the cache for requests under these limits."""

    limits: SchedulerLimits
    budget: NodeBudget

    def max_nodes(self, request: GenerationRequest, tokens: int) -> int:
        """Return the maximum nodes of a tree after `tokens` tokens, root excluded.

        Trees use only free cache: a request that fits without trees also fits with trees.
        """
        if request.speculation is Speculation.OFF:
            return 0
        room = max(0, self._whole_blocks - self._cached(tokens))
        limit = min(self.budget.per_request, self.limits.max_tree_nodes, room)
        if request.speculation is Speculation.SEQUENCE:
            return min(self.limits.sequence_length, limit)
        return limit

    def depth_limit(self, state: RequestState) -> int:
        """Return the maximum depth of the request's tree.

        Nodes need free context positions, and a drafted token is useful only if the request may still
        generate the token and a bonus token.
        """
        positions = depth_limit(state.verifier_len, state.pending, self.limits.max_context_len)
        return min(positions, max(0, state.remaining - 1))

    def of(self, state: RequestState) -> int:
        """Return the cache tokens that a request needs in its next step."""
        return self.at(state.request, len(state.tokens))

    def to_admit(self, request: GenerationRequest, tokens: int) -> int:
        """Return the free cache tokens needed to admit a request.

        This is one block more than the next step needs, so that the request is not preempted at once.
        """
        return self.at(request, tokens) + self.limits.kv_block_tokens

    def at(self, request: GenerationRequest, tokens: int) -> int:
        """Return a request's cache tokens: context and tree, in whole blocks."""
        block = self.limits.kv_block_tokens
        return -(-(self._cached(tokens) + self.max_nodes(request, tokens)) // block) * block

    @property
    def _whole_blocks(self) -> int:
        """Capacity of the cache in tokens, rounded down to whole blocks."""
        return self.limits.kv_capacity_tokens // self.limits.kv_block_tokens * self.limits.kv_block_tokens

    def _cached(self, tokens: int) -> int:
        """Return how many of a request's `tokens` tokens the verifier keeps cached."""
        block, window = self.limits.kv_block_tokens, self.limits.kv_window_tokens
        if window:  # the verifier may store a block and the current chunk in addition
            return min(tokens, window + block + self.limits.prefill_chunk)
        return tokens

    def could_hold(self, request: GenerationRequest) -> bool:
        """Return whether context and cache suffice for the request's maximum length."""
        return self.bound_met(request) is None

    def bound_met(self, request: GenerationRequest) -> str | None:
        """Name the limit that the request's maximum length exceeds, if any."""
        longest, capacity = len(request.prompt) + request.max_new_tokens, self.limits.kv_capacity_tokens
        if longest > self.limits.max_context_len:
            return f"the context of {self.limits.max_context_len} tokens"
        return f"the cache of {capacity} tokens" if self._cached(longest) > self._whole_blocks else None
