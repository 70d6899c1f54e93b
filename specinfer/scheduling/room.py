"""How much of the verifier's cache and of its positions requests need. Pure arithmetic."""

from dataclasses import dataclass

from specinfer.scheduling.budget import NodeBudget
from specinfer.scheduling.limits import SchedulerLimits
from specinfer.scheduling.request import GenerationRequest, RequestState, Speculation
from specinfer.tree import most_depth


@dataclass(frozen=True, slots=True)
class CacheRoom:
    """The room of requests under these limits."""

    limits: SchedulerLimits
    budget: NodeBudget

    def most_nodes(self, request: GenerationRequest) -> int:
        """Most nodes that a tree of the request may have, root excluded."""
        if request.speculation is Speculation.OFF:
            return 0
        most = min(self.budget.per_request, self.limits.max_tree_nodes)
        if request.speculation is Speculation.SEQUENCE:
            return min(self.limits.sequence_length, most)
        return most

    def most_depth(self, state: RequestState) -> int:
        """Most depth of a tree of the request: its nodes need positions, and a drafted token is only of use
        if it and the bonus token may still be generated."""
        positions = most_depth(state.verifier_len, state.pending, self.limits.max_context_len)
        return min(positions, max(0, state.remaining - 1))

    def of(self, state: RequestState) -> int:
        """Cache tokens that a request needs in its next step."""
        return self.at(state.request, len(state.tokens))

    def to_admit(self, request: GenerationRequest, tokens: int) -> int:
        """Cache tokens that must be free for a request of so many tokens: a block more than its next step
        needs, so that who is admitted is not preempted at once."""
        return self.at(request, tokens) + self.limits.kv_block_tokens

    def at(self, request: GenerationRequest, tokens: int) -> int:
        """Cache tokens that a request needs once it has so many tokens: context, tree, whole blocks."""
        block, window = self.limits.kv_block_tokens, self.limits.kv_window_tokens
        if window:  # it may hold a block and the chunk it is reading beyond its window
            tokens = min(tokens, window + block + self.limits.prefill_chunk)
        return -(-(tokens + self.most_nodes(request)) // block) * block

    def could_hold(self, request: GenerationRequest) -> bool:
        """Whether positions and the whole cache are enough for the request at its longest."""
        longest = len(request.prompt) + request.max_new_tokens
        fits = self.at(request, longest) <= self.limits.kv_capacity_tokens
        return fits and longest <= self.limits.max_context_len
