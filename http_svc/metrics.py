"""What the HTTP service counts."""

from functools import cache

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from specinfer.service.metrics import declare_build_info
from specinfer.service.step_metrics import TO_MINUTES_S


class HttpMetrics:
    """Calls by endpoint and status."""

    def __init__(self, registry: CollectorRegistry) -> None:
        declare_build_info(registry)
        self.running = Gauge("specinfer_http_calls_running", "Calls being answered.", registry=registry)
        self.calls = cache(
            Counter(
                "specinfer_http_calls",
                "Calls that ended, by endpoint and HTTP status.",
                ["endpoint", "status"],
                registry=registry,
            ).labels
        )
        self.seconds = Histogram(
            "specinfer_http_call_seconds",
            "Time from a call's headers to the end of its answer, streams included.",
            buckets=TO_MINUTES_S,
            registry=registry,
        )
        self.hung_up = Counter(
            "specinfer_http_hung_up", "Calls whose client left before the end.", registry=registry
        )
        self.resumed = Counter(
            "specinfer_http_resumed", "Streams that went on with Last-Event-ID.", registry=registry
        )
