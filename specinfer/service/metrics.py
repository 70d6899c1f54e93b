"""The Prometheus endpoint of a service. Registries are passed in: no process-global state."""

from prometheus_client import CollectorRegistry, start_http_server


def serve_metrics(registry: CollectorRegistry, port: int) -> None:
    """Serves `registry` at http://0.0.0.0:port/metrics from a thread; 0 does nothing."""
    if port:
        start_http_server(port, registry=registry)
