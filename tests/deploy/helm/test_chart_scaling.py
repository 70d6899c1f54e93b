"""Autoscalers of the chart, and its objects for the Prometheus operator and Grafana."""

import json
import re

import pytest
import yaml
from prometheus_client import CollectorRegistry

from gateway.observability.metrics import GatewayMetrics
from specinfer.service.metrics import TO_MINUTES_S
from tests.deploy.helm.chart import CHART, HELM, render
from tests.deploy.helm.chart_cases import MONITORING
from tests.deploy.helm.rendered import Rendered, selects
from tests.deploy.monitoring.expressions import RULES, dashboards

OPERATOR = "monitoring.coreos.com/v1"
ADAPTER = HELM / "prometheus-adapter-values.yaml"
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
    rules = yaml.safe_load(ADAPTER.read_text())["rules"]
    made = {kind: {rule["name"]["as"] for rule in rules[kind]} for kind in ("custom", "external")}
    asked: dict[str, set[str]] = {"custom": set(), "external": set()}
    for scaler in render(["load-autoscaling"]).of_kind("HorizontalPodAutoscaler"):
        for metric in scaler["spec"]["metrics"]:
            for kind, key in (("custom", "pods"), ("external", "external")):
                asked[kind] |= {metric[key]["metric"]["name"]} if key in metric else set()
    assert asked == made


def test_the_adapter_reads_series_that_gateways_have() -> None:
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    families = {family.name: family.type for family in registry.collect()}
    declared = {f"{name}_total" if kind == "counter" else name for name, kind in families.items()}
    rules = yaml.safe_load(ADAPTER.read_text())["rules"]
    series = [_SERIES.match(rule["seriesQuery"]) for rule in [*rules["custom"], *rules["external"]]]
    assert {series_name[0] for series_name in series if series_name} <= declared


def test_prometheus_finds_every_metrics_port(objects: Rendered) -> None:
    for monitor in objects.of_kind("ServiceMonitor"):
        assert monitor["apiVersion"] == OPERATOR
        assert set(monitor["spec"]) <= {"selector", "jobLabel", "endpoints"}
        ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
        assert ports == {"metrics", "http"}
        targets = {}
        for service in objects.of_kind("Service"):
            labels = service["metadata"]["labels"]
            if selects(monitor["spec"]["selector"], labels):
                named = [port["name"] for port in service["spec"]["ports"] if port["name"] in ports]
                targets[labels[monitor["spec"]["jobLabel"]]] = len(named)
        ours = {workload.name for workload in objects.workloads} - {"specinfer-redis"}
        assert {name: count for name, count in targets.items() if count} == dict.fromkeys(ours, 1)


def test_monitoring_is_left_out_unless_it_is_asked_for() -> None:
    """A cluster without the Prometheus operator would refuse the whole release."""
    for name in ([], ["gpu"]):
        assert not [row for row in render(name).objects if row["apiVersion"] == OPERATOR]


RUNBOOK = "https://docs.example/specinfer/operations.md"


@pytest.mark.parametrize("url", ["", RUNBOOK])
def test_the_operator_gets_the_rules_of_the_chart(url: str) -> None:
    """Runbook links are URLs or missing: a path in this repository could not be opened."""
    monitoring = {"monitoring": {"prometheusRule": {"enabled": True, "runbookUrl": url}}}
    (rule,) = render(values=monitoring).of_kind("PrometheusRule")
    files = [yaml.safe_load(path.read_text())["groups"] for path in RULES]
    expected = [group for groups in files for group in groups]
    for row in (row for group in expected for row in group["rules"] if "annotations" in row):
        paragraph = row["annotations"].pop("runbook_url").partition("#")[2]
        assert paragraph == row["alert"].lower()
        row["annotations"] |= {"runbook_url": f"{url}#{paragraph}"} if url else {}
    assert rule["spec"]["groups"] == expected


def test_the_objective_of_first_tokens_is_a_value() -> None:
    """Each value of the schema is a bound of the metric's buckets."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    rule = schema["properties"]["monitoring"]["properties"]["prometheusRule"]
    for seconds in rule["properties"]["firstTokenSeconds"]["enum"]:
        assert float(seconds) in TO_MINUTES_S
        monitoring = {"prometheusRule": {"enabled": True, "firstTokenSeconds": seconds}}
        (row,) = render(values={"monitoring": monitoring}).of_kind("PrometheusRule")
        text = json.dumps(row)
        assert text.count(f'le=\\"{seconds}.0\\"') == 4
        assert text.count(f"took more than {seconds} seconds") == 2


def test_keda_adds_verifiers_by_the_requests_that_wait() -> None:
    values = {"verifier": {"keda": {"enabled": True, "threshold": 4, "maxReplicas": 7}}}
    objects = render(values=values)
    (scaler,) = objects.of_kind("ScaledObject")
    assert scaler["apiVersion"] == "keda.sh/v1alpha1"
    target = scaler["spec"]["scaleTargetRef"]
    workload = objects.get(target["kind"], target["name"])
    assert workload["apiVersion"] == target["apiVersion"]
    assert "replicas" not in workload["spec"], "every apply would undo what the autoscaler did"
    assert (scaler["spec"]["minReplicaCount"], scaler["spec"]["maxReplicaCount"]) == (1, 7)
    (trigger,) = scaler["spec"]["triggers"]
    asked = trigger["metadata"]
    assert trigger["type"] == "prometheus"
    assert asked["threshold"] == "4", "KEDA takes texts alone"
    match = re.fullmatch(r'sum\((\w+)\{namespace="specinfer"\}\)', asked["query"])
    assert match
    registry = CollectorRegistry()
    GatewayMetrics(registry)
    assert match[1] in {family.name for family in registry.collect()}
    assert not render().of_kind("ScaledObject")


def test_grafana_gets_the_dashboards() -> None:
    labelled = [
        row for row in render(values=MONITORING).of_kind("ConfigMap")
        if row["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]  # fmt: skip
    shown = [json.loads(text) for row in labelled for text in row["data"].values()]
    assert {dashboard["uid"]: dashboard for dashboard in shown} == dashboards()
    assert len(labelled) == len(shown) > 1
