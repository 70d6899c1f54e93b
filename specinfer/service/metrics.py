"""Define Prometheus metrics of all services, and fast counters and histograms."""

import errno
import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from specinfer import __version__
from specinfer.errors import SettingError

log = logging.getLogger(__name__)


_LOG_EVERY_S = 5.0
disable_created_metrics()  # type: ignore[no-untyped-call]


def service_registry() -> CollectorRegistry:
    """Return a registry with the process metrics (`process_*`)."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    return registry


def declare_build_info(registry: CollectorRegistry) -> None:
    """Declare the metric whose label is SpecInfer's version."""
    info = Gauge("specinfer_build_info", "Version of SpecInfer; always 1.", ["version"], registry=registry)
    info.labels(__version__).set(1)


def declare_model_info(registry: CollectorRegistry) -> Gauge:
    """Declare the metric whose labels describe the model and its execution."""
    return Gauge(
        "specinfer_model_info",
        "The target model and how it runs; always 1.",
        ["model", "dtype", "weights", "executor", "device"],
        registry=registry,
    )


class Observing:
    """Calls functions that update metrics; logs their exceptions.

    Must be called on the engine's thread if a metric depends on the engine's earlier counts.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._logged_at: float | None = None

    def __call__(self, count: Callable[[], None]) -> None:
        try:
            count()
        except Exception:
            now = self._clock()
            if self._logged_at is None or now - self._logged_at >= _LOG_EVERY_S:
                self._logged_at = now
                log.exception("a metric could not be updated and misses this event")


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serve a registry's metrics from a thread; port 0: do nothing."""
    if not port:
        return
    try:
        start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            reason = "in use by another program; choose another port, or 0 for no metrics"
            raise SettingError("metrics_port", port, reason) from error
        if error.errno == errno.EACCES:
            raise SettingError("metrics_port", port, "needs privileges; choose a port above 1023") from error
        reason = f"must be an address of this machine, or 0.0.0.0 for all ({error.strerror or error})"
        raise SettingError("metrics_host", host, reason) from error


TO_MINUTES_S = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
    *(1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""Bucket bounds in seconds for requests' waiting times."""
TO_SECONDS_S = (
    *(0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Bucket bounds in seconds for parts of a step."""
COUNTS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
"""Bucket bounds for numbers of requests, nodes and tokens."""


class StepCounter(Collector):
    def __init__(
        self, name: str, documentation: str, labels: Sequence[str], registry: CollectorRegistry
    ) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self._values: defaultdict[tuple[str, ...], float] = defaultdict(float)
        if not labels:
            self.add(0)
        registry.register(self)

    def add(self, count: float = 1, *labels: str) -> None:
        """Add to the counter with these labels; adding 0 exports the counter."""
        self._values[labels] += count

    def rise(self, total: float, *labels: str) -> None:
        """Increase the counter with these labels to a total since the start."""
        self._values[labels] = max(self._values[labels], total)

    def describe(self) -> Iterator[CounterMetricFamily]:
        yield CounterMetricFamily(self._name, self._documentation, labels=self._labels)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the counts since the start."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, value in list(self._values.items()):
            family.add_metric(labels, value)
        yield family


class _Cell:
    """Observations for one value of a histogram's label."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        """Observations per bucket, not cumulated; the last bucket is +Inf."""
        self.total = 0.0


class StepHistogram(Collector):
    """A histogram with at most one label."""

    def __init__(
        self,
        name: str,
        documentation: str,
        buckets: Sequence[float],
        registry: CollectorRegistry,
        label: str = "",
        values: Sequence[str] = (),
    ) -> None:
        """Create a histogram.

        Label values in `values` are exported from the start; other values when first observed.
        """
        self._name, self._documentation, self._label = name, documentation, label
        self._bounds = list(buckets)
        self._cells = {value: _Cell(len(buckets)) for value in (values if label else ("",))}
        registry.register(self)

    def observe(self, value: float, label: str = "", times: int = 1) -> None:
        """Count a value `times` times."""
        cell = self._cells.get(label)
        if cell is None:
            cell = self._cells[label] = _Cell(len(self._bounds))
        cell.counts[bisect_left(self._bounds, value)] += times
        cell.total += value * times

    def describe(self) -> Iterator[HistogramMetricFamily]:
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield the observations since the start."""
        family = self._family()
        for value, cell in list(self._cells.items()):
            family.add_metric([value] if self._label else [], self._cumulated(cell.counts), cell.total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(
            self._name, self._documentation, labels=[self._label] if self._label else []
        )

    def _cumulated(self, counts: Sequence[int]) -> list[tuple[str, float]]:
        buckets, sum_ = [], 0
        for bound, count in zip([*map(_written, self._bounds), "+Inf"], list(counts), strict=True):
            sum_ += count
            buckets.append((bound, float(sum_)))
        return buckets


class Declaring:
    """Declares metrics, whose names begin with `prefix`."""

    def __init__(self, registry: CollectorRegistry, prefix: str = "specinfer_") -> None:
        self._registry, self._prefix = registry, prefix

    def counter(self, name: str, documentation: str, *labels: str) -> StepCounter:
        return StepCounter(self._prefix + name, documentation, labels, self._registry)

    def gauge(self, name: str, documentation: str, *labels: str) -> Gauge:
        return Gauge(self._prefix + name, documentation, labels, registry=self._registry)

    def histogram(
        self,
        name: str,
        documentation: str,
        buckets: Sequence[float] = TO_SECONDS_S,
        label: str = "",
        values: Sequence[str] = (),
    ) -> StepHistogram:
        return StepHistogram(self._prefix + name, documentation, buckets, self._registry, label, values)


def _written(bound: float) -> str:
    """Return a bound in the format of Prometheus clients."""
    return str(float(bound))
