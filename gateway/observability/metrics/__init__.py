"""Prometheus metrics of the gateway: of requests, of steps, and of the parts of the system.

docs/operations.md says what each means and what a bad value looks like.
"""

from prometheus_client import CollectorRegistry

from gateway.observability.metrics.requests import RequestCounters as RequestCounters
from gateway.observability.metrics.steps import StepMetrics as StepMetrics
from gateway.observability.metrics.system import SystemMetrics as SystemMetrics
from gateway.observability.metrics.system import SystemView as SystemView
from specinfer.service.metrics import declare_build_info


class GatewayMetrics:
    """All of them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.requests = RequestCounters(registry)
        self.steps = StepMetrics(registry)
        self.system = SystemMetrics(registry)
        declare_build_info(registry)
