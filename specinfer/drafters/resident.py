"""Drafters in the verifier's process: they draft for the next step as soon as a verdict stands.

They see the tokens of each request as the verifier does, so a draft needs no message of its own: what to draft
comes with the request for the verdict, the tree leaves with the verdict. No gRPC here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from specinfer.drafters import TargetTopK
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.sampling import Sampling
from specinfer.tree import TreeLimits, most_depth

_MOST_READ, _LEAST_READ = 1024, 16
"""Most context tokens that drafters read in one step, as the batch waits for them; least of each request."""
_NO_TREE = TreeLimits(0, 0)


@dataclass(frozen=True, slots=True)
class NextDraft:
    """Draft wanted behind a verdict."""

    request_id: str
    limits: TreeLimits
    max_positions: int
    """Context positions that the tree may reach."""
    sampling: Sampling
    speculators: Sequence[int]
    draw_seed: int = 0
    sees_noise: bool = True
    features: bytes = b""
    """[positions, layers, hidden] bfloat16 from a context position on."""
    features_start: int = 0
    target_top_k: TargetTopK | None = None


class ResidentDrafters:
    """The drafters, and the context of every request that the verifier holds. Used by one thread at a time."""

    def __init__(self, engine: SpeculatorEngine) -> None:
        """Host the drafters of an engine, whose contexts must not end by themselves."""
        self.engine = engine
        self._tokens: dict[str, list[int]] = {}
        self._references: dict[str, Sequence[Sequence[int]]] = {}
        self._features_until: dict[str, int] = {}
        """Context positions up to which the drafters have received hidden states, by request."""
        self.tokens_read = 0
        """Context tokens that the last drafts read, if one read more than drafts usually do; else 0."""

    def follow(self, request_id: str, base_len: int, tokens: Sequence[int]) -> bool:
        """Note the tokens that a request has from a context position on, those of its verdict included.

        Return whether its whole context is known.
        """
        known = self._tokens.setdefault(request_id, [])
        overlap = known[base_len:]
        if len(known) < base_len or overlap != list(tokens[: len(overlap)]):
            self.release([request_id])  # not the context that was followed
            if base_len:
                return False
            known = self._tokens.setdefault(request_id, [])
        known[base_len:] = tokens
        return True

    def refer(self, request_id: str, texts: Sequence[Sequence[int]]) -> None:
        """Keep the texts that a request may copy from."""
        self._references[request_id] = texts

    def features_from(self, request_id: str) -> int:
        """Return the context position from which the drafters lack hidden states."""
        held = self.engine.held_len(request_id)
        return self._features_until.get(request_id, 0) if held else 0

    def draft(self, orders: Sequence[NextDraft]) -> list[DraftOutcome]:
        """Draft for all orders at once; return one outcome per order, in order."""
        most = max(_LEAST_READ, _MOST_READ // max(len(orders), 1))
        entries = [self._entry(order, most) for order in orders]
        lengths = [len(entry.delta) for entry in entries]
        self.tokens_read = sum(lengths) if max(lengths, default=0) > _LEAST_READ else 0
        return self.engine.draft(entries) if entries else []

    def release(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self._tokens.pop(request_id, None)
            self._references.pop(request_id, None)
            self._features_until.pop(request_id, None)
        self.engine.release(request_ids)

    def begin_again(self, request_ids: Sequence[str]) -> None:
        """Drop what the drafters hold of requests after a fault; they read the contexts, which stay, again."""
        self.engine.release(request_ids)

    def _entry(self, order: NextDraft, most: int) -> DraftEntry:
        """Return the engine's entry: the tokens that it lacks, and no deeper a tree than there are positions."""
        name = order.request_id
        tokens, held = self._tokens.get(name, []), self.engine.held_len(name)
        delta = tokens[held : held + most]
        depth = min(order.limits.depth, most_depth(0, len(tokens), order.max_positions))
        whole = held + len(delta) == len(tokens) and depth > 0
        if held == 0:
            self._features_until.pop(name, None)
        if order.features:
            layers, size = self.engine.description.feature_layers, self.engine.description.feature_size
            positions = len(order.features) // (2 * size * len(layers))
            self._features_until[name] = order.features_start + positions
        return DraftEntry(
            name,
            held,
            delta,
            replace(order.limits, depth=depth) if whole else _NO_TREE,
            order.sampling,
            order.speculators,
            order.draw_seed,
            order.sees_noise,
            order.features,
            order.features_start,
            order.target_top_k,
            self._references.get(name, ()) if held == 0 else (),
        )
