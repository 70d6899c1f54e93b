"""Cache requests' contexts for a service's drafters: tokens and hidden states.

Invariant: a context only grows; a request that starts over is released first.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from specinfer.drafters import Features
from specinfer.drafters.search import References
from specinfer.request.hidden_states import States

MAX_BYTES = 2**24
"""Maximum bytes of hidden states per request.

A drafter that does not read its states in time loses the oldest.
"""


class FeatureBuffer:
    """Hidden states of consecutive positions, and each drafter's progress."""

    def __init__(self) -> None:
        self._kept: States | None = None
        self._given: dict[int, int] = {}
        """End position of the states that each drafter has received."""

    def add(self, start: int, data: bytes, shape: tuple[int, int]) -> None:
        """Append states from a context position. After a gap, drop earlier states.

        `data` is bfloat16 [positions, layers, hidden], `shape` is (layers, hidden).
        """
        kept, states = self._kept, np.frombuffer(data, np.int16).reshape(-1, *shape)
        if kept is not None and kept.stop == start:
            kept.append(states)
        else:
            self._kept = kept = States(start, states)
        max_rows = max(1, MAX_BYTES // max(states[0].nbytes, 1))
        kept.drop(kept.stop - max_rows)

    def take(self, drafter: int, layer_indices: Sequence[int]) -> Features | None:
        """Return the states of these layers that a drafter has not received."""
        kept = self._kept
        if kept is None:
            return None
        start = max(kept.start, self._given.get(drafter, 0))
        self._given[drafter] = kept.stop
        return Features(start, kept.read(start)[:, layer_indices])

    def drop(self, drafters: Sequence[int]) -> None:
        """Drop the states that all these drafters have received."""
        kept = self._kept
        if kept is None:
            return
        given = min((self._given.get(drafter, 0) for drafter in drafters), default=kept.stop)
        kept.drop(given)


@dataclass(slots=True)
class _Context:
    tokens: list[int] = field(default_factory=list)
    features: FeatureBuffer = field(default_factory=FeatureBuffer)
    references: References | None = None
    cache_scope: str = ""
    last_used: float = 0.0


class Contexts:
    """Contexts by request id, with a time-to-live."""

    def __init__(self, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._contexts: dict[str, _Context] = {}
        self._idle_seconds, self._clock = idle_seconds, clock

    def __len__(self) -> int:
        return len(self._contexts)

    def cached_len(self, request_id: str) -> int:
        context = self._contexts.get(request_id)
        return len(context.tokens) if context else 0

    def append(self, request_id: str, delta: Sequence[int], cache_scope: str = "") -> list[int]:
        """Append committed tokens; return the context. The first call sets the scope."""
        context = self._contexts.setdefault(request_id, _Context(cache_scope=cache_scope))
        context.tokens.extend(delta)
        context.last_used = self._clock()
        return context.tokens

    def features(self, request_id: str) -> FeatureBuffer:
        return self._contexts[request_id].features

    def refer(self, request_id: str, texts: Sequence[Sequence[int]]) -> None:
        """Store the references of a known request until its release."""
        self._contexts[request_id].references = References(texts)

    def references(self, request_id: str) -> References | None:
        """Return the references of a known request, if any."""
        return self._contexts[request_id].references

    def cache_scope(self, request_id: str) -> str:
        return self._contexts[request_id].cache_scope

    def release(self, request_id: str) -> bool:
        """Drop a request's context; return whether it existed."""
        return self._contexts.pop(request_id, None) is not None

    def idle(self) -> list[str]:
        """Return the ids of requests idle for longer than the time-to-live."""
        limit = self._clock() - self._idle_seconds
        return [request_id for request_id, context in self._contexts.items() if context.last_used < limit]
