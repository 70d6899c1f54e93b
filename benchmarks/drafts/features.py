"""Hidden states of the target on their way to the drafters that read them, in one process."""

from collections.abc import Sequence

from specinfer.drafters import Drafter, Features
from specinfer.drafters.contexts import FeatureBuffer
from specinfer.model.runner import ModelRunner
from specinfer.verification.features import FeatureSpan


class FeatureFlow:
    """Features that the requests' drafters were given, and those that they lack. Nobody reads any: nothing is kept."""

    def __init__(self, runner: ModelRunner, drafters: Sequence[Drafter]) -> None:
        wishes = [drafter.description.feature_layers for drafter in drafters]
        self._layers = sorted({layer for wanted in wishes for layer in wanted})
        self._places = [[self._layers.index(layer) for layer in wanted] for wanted in wishes]
        self._shape = (len(self._layers), runner.config.hidden_size)
        self._buffers: dict[str, FeatureBuffer] = {}
        self._until: dict[str, int] = {}
        runner.keep_features(self._layers)

    def wanted_from(self, request: str) -> int | None:
        """The context position from which a pass is to tell hidden states."""
        return self._until.get(request, 0) if self._layers else None

    def arrived(self, request: str, span: FeatureSpan) -> None:
        """Keep the features of a pass."""
        if span.data:
            self._buffers.setdefault(request, FeatureBuffer()).add(span.start, span.data, self._shape)
            token_bytes = 2 * self._shape[0] * self._shape[1]
            self._until[request] = span.start + len(span.data) // token_bytes

    def take(self, request: str, drafter: int) -> Features | None:
        """Return what a drafter was not given yet."""
        places, buffer = self._places[drafter], self._buffers.get(request)
        return buffer.take(drafter, places) if buffer is not None and places else None

    def forget(self, requests: Sequence[str]) -> None:
        """Requests that ended."""
        for request in requests:
            self._buffers.pop(request, None)
            self._until.pop(request, None)
