"""Build the table of all metrics by service from their declarations."""

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry

from gateway.observability.metrics import GatewayMetrics
from http_svc.entry.middleware import HttpMetrics
from speculator_svc.metrics import SpeculatorMetrics
from tests.support.idle_learner import idle_learner
from verifier_svc.metrics import VerifierMetrics

SERVICES: Mapping[str, Callable[[CollectorRegistry], object]] = {
    "gateway": lambda registry: GatewayMetrics(registry, "model"),
    "verifier": lambda registry: VerifierMetrics(registry, ["ngram"]),
    "speculator": lambda registry: SpeculatorMetrics(registry, ["ngram"], idle_learner()),
    "HTTP": HttpMetrics,
}
"""Function by service that declares its metrics in a registry."""


def metrics() -> str:
    rows: dict[str, list[str]] = {}
    for service, declare in SERVICES.items():
        registry = CollectorRegistry()
        declare(registry)
        for row in _rows(registry):
            rows.setdefault(row, []).append(service)
    lines = ["| metric | services | meaning |", "|---|---|---|"]
    for row, services in rows.items():
        name, meaning = row.split("|", 1)
        lines.append(
            f"| `{name}` | {'all' if len(services) == len(SERVICES) else ', '.join(services)} | {meaning} |"
        )
    return "\n".join(lines) + "\n"


def _rows(registry: CollectorRegistry) -> list[str]:
    """Return a table row (name with labels, meaning) for each metric of a registry."""
    rows = []
    for collector in registry._collector_to_names:
        for family in collector.describe():
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            name = family.name.removeprefix("specinfer_") + ("_total" if family.type == "counter" else "")
            kind = " Histogram." if family.type == "histogram" else ""
            braces = f"{{{','.join(labels)}}}" if labels else ""
            rows.append(f"{name}{braces}|{family.documentation}{kind}")
    return rows
