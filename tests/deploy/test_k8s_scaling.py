"""Autoscalers of deploy/k8s, and what it gives the Prometheus operator."""

import re
from collections.abc import Iterator

import yaml
from prometheus_client import CollectorRegistry

from gateway.observability.metrics import GatewayMetrics
from tests.deploy.kustomize import KUBERNETES
from tests.deploy.prometheus_rule import RULES, TARGET, prometheus_rule
from tests.deploy.rendered import Rendered

OPERATOR = "monitoring.coreos.com/v1"
_SERIES = re.compile(r"^\w+")


def test_autoscalers_have_targets_that_set_no_number_themselves(objects: Rendered) -> None:
    for scaler in objects.of_kind("HorizontalPodAutoscaler"):
        target = scaler["spec"]["scaleTargetRef"]
        workload = objects.get(target["kind"], target["name"])
        assert workload["apiVersion"] == target["apiVersion"]
        assert scaler["metadata"]["name"] == target["name"]
        if target["kind"] == "Deployment":
            assert "replicas" not in workload["spec"], "every apply would undo what the autoscaler did"
    assert objects.workload("specinfer-gateway").replicas >= 2


def test_metrics_of_autoscalers_are_made_by_the_adapter() -> None:
    folder = KUBERNETES / "components" / "load-autoscaling"
    rules = yaml.safe_load((folder / "prometheus-adapter-values.yaml").read_text())["rules"]
    made = {kind: {rule["name"]["as"] for rule in rules[kind]} for kind in ("custom", "external")}
    asked: dict[str, set[str]] = {"custom": set(), "external": set()}
    for text in (folder / "kustomization.yaml", folder / "verifier-autoscaler.yaml"):
        for row in yaml.safe_load_all(text.read_text()):
            for kind, key in (("custom", "pods"), ("external", "external")):
                asked[kind] |= set(_metrics(row, key))
    assert asked == made


def test_the_adapter_reads_series_that_gateways_have() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    families = {family.name: family.type for family in registry.collect()}
    declared = {f"{name}_total" if kind == "counter" else name for name, kind in families.items()}
    values = KUBERNETES / "components" / "load-autoscaling" / "prometheus-adapter-values.yaml"
    rules = yaml.safe_load(values.read_text())["rules"]
    series = [_SERIES.match(rule["seriesQuery"]) for rule in [*rules["custom"], *rules["external"]]]
    assert {found[0] for found in series if found} <= declared


def _metrics(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get(key), dict) and "metric" in value[key]:
            yield value[key]["metric"]["name"]
        for part in value.values():
            yield from _metrics(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _metrics(part, key)
    elif isinstance(value, str) and "\n" in value:
        yield from _metrics(yaml.safe_load(value), key)


def test_prometheus_finds_every_metrics_port(objects: Rendered) -> None:
    for monitor in objects.of_kind("PodMonitor"):
        assert monitor["apiVersion"] == OPERATOR
        assert set(monitor["spec"]) <= {"selector", "jobLabel", "podMetricsEndpoints"}
        chosen = objects.selected(monitor["spec"]["selector"])
        ours = {workload.name for workload in objects.workloads} - {"specinfer-redis"}
        assert {workload.name for workload in chosen} == ours
        ports = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
        assert ports == ["metrics", "http"]
        assert all(len(set(ports) & set(workload.ports)) == 1 for workload in chosen)
        assert all(monitor["spec"]["jobLabel"] in workload.labels for workload in chosen)


def test_the_operator_gets_the_rules_of_deploy_prometheus() -> None:
    assert TARGET.read_text() == prometheus_rule(), "run `python -m tests.deploy.prometheus_rule`"
    groups = yaml.safe_load(TARGET.read_text())["spec"]["groups"]
    files = [yaml.safe_load(path.read_text())["groups"] for path in sorted(RULES.glob("*.yml"))]
    assert groups == [group for groups in files for group in groups]
