"""docs/operations.md tells of every metric that a service declares, and of no other."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from gateway.observability.metrics import GatewayMetrics
from http_svc.entry.middleware import HttpMetrics
from speculator_svc.metrics import SpeculatorMetrics
from tests.support.idle_learner import idle_learner
from verifier_svc.metrics import VerifierMetrics

OPERATIONS = (Path(__file__).resolve().parents[1] / "docs" / "operations.md").read_text()
EVERYWHERE = {"specinfer_build_info", "specinfer_model_info"}


def declared(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Names on the wire, counters with `_total`, and their labels."""
    found = {}
    for collector in registry._collector_to_names:
        for family in collector.describe():
            suffix = "_total" if family.type == "counter" else ""
            labels = getattr(collector, "_labelnames", None) or getattr(family, "_labelnames", ())
            found[family.name + suffix] = frozenset(labels)
    return {name: labels for name, labels in found.items() if name not in EVERYWHERE}


def told(section: str) -> dict[str, frozenset[str]]:
    """Names and labels in the first column of a section's table."""
    text = OPERATIONS.split(f"### {section}\n")[1].split("\n#")[0]
    found: dict[str, frozenset[str]] = {}
    for row in re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE):
        labels = frozenset[str]()
        for name, braces in re.findall(r"`([\w:]+)(?:\{([\w,]+)\})?`", row):
            labels = frozenset(braces.split(",")) if braces else labels
            found[name if ":" in name else f"specinfer_{name}"] = (
                labels if braces or name.startswith("spec_decode") else frozenset()
            )
    return found


def test_the_tables_are_what_services_declare() -> None:
    gateway, verifier, speculator, http = (CollectorRegistry() for _ in range(4))
    GatewayMetrics(gateway)
    VerifierMetrics(verifier, ["ngram"])
    SpeculatorMetrics(speculator, ["ngram"], idle_learner())
    HttpMetrics(http)
    assert told("Metrics of the gateway") == declared(gateway)
    assert told("Metrics of the verifier") == declared(verifier)
    assert told("Metrics of a speculator service") == declared(speculator)
    assert told("Metrics of the HTTP service") == declared(http)
    assert len(told("Metrics of the gateway")) > 40


def test_vllms_names_are_there_if_they_are_asked_for() -> None:
    plain, both = CollectorRegistry(), CollectorRegistry()
    GatewayMetrics(plain)
    GatewayMetrics(both, "tiny")
    more = {name: labels for name, labels in declared(both).items() if name not in declared(plain)}
    assert told("Under vLLM's names") == more
    assert len(more) == 4
