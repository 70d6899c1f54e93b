"""Prometheus metrics of the gateway: requests, steps and parts of the system.

docs/settings.md lists the metrics; the dashboards describe their bad values.
"""

from prometheus_client import CollectorRegistry

from gateway.events import Count
from gateway.observability.metrics.requests import RequestCounters as RequestCounters
from gateway.observability.metrics.steps import StepMetrics as StepMetrics
from gateway.observability.metrics.system import SystemMetrics as SystemMetrics
from gateway.observability.metrics.system import SystemView as SystemView
from specinfer.service.metrics import Declaring, declare_build_info


class GatewayMetrics:
    """All metrics of the gateway."""

    def __init__(self, registry: CollectorRegistry, vllm_model: str = "") -> None:
        self.requests = RequestCounters(registry)
        self.steps = StepMetrics(registry)
        self.system = SystemMetrics(registry, vllm_model)
        new = Declaring(registry)
        self.counts = {count: new.counter(*count.value) for count in Count}
        declare_build_info(registry)
