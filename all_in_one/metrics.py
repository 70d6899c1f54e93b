"""Metrics of several services in one process, at one endpoint."""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector


class Union(Collector):
    """The metrics of several registries; what several have, as the version, is that of the first."""

    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics, each once."""
        seen = set[str]()
        for registry in self._registries:
            for metric in registry.collect():
                if metric.name not in seen:
                    seen.add(metric.name)
                    yield metric


def united(registries: Sequence[CollectorRegistry]) -> CollectorRegistry:
    """Return a registry that shows the metrics of these."""
    whole = CollectorRegistry(auto_describe=False)
    whole.register(Union(registries))
    return whole
