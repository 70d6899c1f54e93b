"""The committed tokens of every request a speculator serves: a cache of what the gateway owns.

Knows no model. Invariant: a context is a prefix of the gateway's committed sequence, or absent.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from specinfer.drafters.feature_buffer import FeatureBuffer
from specinfer.drafters.references import References


@dataclass(slots=True)
class _Context:
    tokens: list[int] = field(default_factory=list)
    features: FeatureBuffer = field(default_factory=FeatureBuffer)
    references: References | None = None
    last_used: float = 0.0


class Contexts:
    """Contexts by request id, with a time-to-live."""

    def __init__(self, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._contexts: dict[str, _Context] = {}
        self._idle_seconds, self._clock = idle_seconds, clock

    def __len__(self) -> int:
        return len(self._contexts)

    def held_len(self, request_id: str) -> int:
        """Tokens held for a request; 0 if it is unknown."""
        context = self._contexts.get(request_id)
        return len(context.tokens) if context else 0

    def append(self, request_id: str, delta: Sequence[int]) -> list[int]:
        """Appends committed tokens and returns the whole context."""
        context = self._contexts.setdefault(request_id, _Context())
        context.tokens.extend(delta)
        context.last_used = self._clock()
        return context.tokens

    def features(self, request_id: str) -> FeatureBuffer:
        """Those of a request that is held."""
        return self._contexts[request_id].features

    def refer(self, request_id: str, texts: Sequence[Sequence[int]]) -> None:
        """Keeps the texts that a request that is held may copy from, until it is released."""
        self._contexts[request_id].references = References(texts)

    def references(self, request_id: str) -> References | None:
        """Those of a request that is held, if it has any."""
        return self._contexts[request_id].references

    def release(self, request_id: str) -> bool:
        """Forgets a request; says whether it was known."""
        return self._contexts.pop(request_id, None) is not None

    def idle(self) -> list[str]:
        """Requests not heard of for the time-to-live."""
        limit = self._clock() - self._idle_seconds
        return [request_id for request_id, context in self._contexts.items() if context.last_used < limit]
