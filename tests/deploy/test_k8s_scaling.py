"""Autoscalers, disruption budgets and the PodMonitor of deploy/k8s."""

from collections.abc import Iterator

import yaml

from tests.deploy.kustomize import KUBERNETES
from tests.deploy.overlay_cases import services
from tests.deploy.rendered import Rendered

POD_MONITOR = "monitoring.coreos.com/v1"


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
        assert monitor["apiVersion"] == POD_MONITOR
        assert set(monitor["spec"]) <= {"selector", "jobLabel", "podMetricsEndpoints"}
        chosen = objects.selected(monitor["spec"]["selector"])
        assert {workload.name for workload in chosen} == {w.name for _, w, _ in services(objects)}
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert all(endpoint["port"] in workload.ports for workload in chosen)
        assert all(monitor["spec"]["jobLabel"] in workload.labels for workload in chosen)
