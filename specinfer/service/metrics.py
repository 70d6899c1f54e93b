"""The Prometheus endpoint of a service. Registries are passed in: no process-global state."""

from prometheus_client import CollectorRegistry, start_http_server


def serve_metrics(registry: CollectorRegistry, host: str, port: int) -> None:
    """Serves `registry` at http://host:port/metrics from a thread; port 0 does nothing."""
    if port:
        start_http_server(port, addr=host, registry=registry)
