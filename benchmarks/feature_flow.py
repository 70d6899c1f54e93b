"""Pass the target's hidden states to drafters of one process."""

from collections.abc import Sequence

from specinfer.drafters import Drafter, Features
from specinfer.drafters.contexts import FeatureBuffer
from specinfer.model.runner import ModelRunner


class FeatureFlow:
    """Keeps hidden states of requests until each drafter has received them."""

    def __init__(self, runner: ModelRunner, drafters: Sequence[Drafter]) -> None:
        layers_by_drafter = [drafter.description.feature_layers for drafter in drafters]
        self._layers = sorted({layer for layers in layers_by_drafter for layer in layers})
        self._indices = [[self._layers.index(layer) for layer in layers] for layers in layers_by_drafter]
        self._shape = (len(self._layers), runner.config.hidden_size)
        self._buffers: dict[str, FeatureBuffer] = {}
        self._until: dict[str, int] = {}
        """Context positions with hidden states, by request."""
        runner.keep_features(self._layers)

    def wanted_from(self, request: str) -> int | None:
        """Return the first missing position; None if no drafter needs hidden states."""
        return self._until.get(request, 0) if self._layers else None

    def arrived(self, request: str, start: int, data: bytes) -> None:
        """Store the hidden states that a pass returned."""
        if data:
            self._buffers.setdefault(request, FeatureBuffer()).add(start, data, self._shape)
            token_bytes = 2 * self._shape[0] * self._shape[1]
            self._until[request] = start + len(data) // token_bytes

    def take(self, request: str, drafter: int) -> Features | None:
        """Return the hidden states that a drafter has not received yet."""
        indices, buffer = self._indices[drafter], self._buffers.get(request)
        return buffer.take(drafter, indices) if buffer is not None and indices else None

    def forget(self, requests: Sequence[str]) -> None:
        """Drop the hidden states of finished requests."""
        for request in requests:
            self._buffers.pop(request, None)
            self._until.pop(request, None)
