"""Access into the release and out of it: Ingress, HTTPRoute, client namespaces, egress, accounts, the hub's token."""

import json
from typing import Any

import pytest

from tests.deploy.helm.chart import CHART, render
from tests.deploy.helm.rendered import Object, Rendered, Workload, selects
from tests.deploy.helm.test_chart import NEWEST, OLDEST, validate
from tests.deploy.helm.test_chart_access import admitted

SERVE: Object = {"serve": {"enabled": True}, "redis": {"password": ""}}


def test_the_chart_has_all_that_it_needs_in_its_folder() -> None:
    """`tests.deploy.helm.chart` renders a copy of the folder, in which a link would be broken."""
    assert not [path for path in CHART.rglob("*") if path.is_symlink()]


@pytest.mark.parametrize(("values", "service"), [({}, "specinfer-http"), (SERVE, "specinfer-serve")])
def test_ways_from_outside_lead_to_openais_api(values: Object, service: str) -> None:
    ways = {
        "ingress": {
            "enabled": True,
            "className": "nginx",
            "hosts": ["a.example", "b.example"],
            "tlsSecret": "cert",
        },
        "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}], "hostnames": ["a.example"]},
    }
    objects = render(values={**values, **ways})
    (ingress,), (route,) = objects.of_kind("Ingress"), objects.of_kind("HTTPRoute")
    for version in (OLDEST, NEWEST):
        validate(json.dumps(ingress), version)
    spec = ingress["spec"]
    assert [rule["host"] for rule in spec["rules"]] == ["a.example", "b.example"] == spec["tls"][0]["hosts"]
    backends = [path["backend"]["service"] for rule in spec["rules"] for path in rule["http"]["paths"]]
    assert backends == [{"name": service, "port": {"name": "http"}}] * 2
    assert ingress["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    (rule,) = route["spec"]["rules"]
    assert rule["backendRefs"] == [{"name": service, "port": 8000}]
    assert rule["timeouts"] == {"request": "0s"}
    (workload,) = objects.behind(service)
    assert workload.ports["http"] == 8000


def test_an_ingress_without_hosts_takes_all() -> None:
    (ingress,) = render(values={"ingress": {"enabled": True}}).of_kind("Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert "host" not in rule
    assert "tls" not in ingress["spec"]
    validate(json.dumps(ingress), NEWEST)


@pytest.mark.parametrize(("values", "role"), [({}, "gateway"), ({}, "http"), (SERVE, "serve")])
def test_only_named_namespaces_may_call(values: Object, role: str) -> None:
    objects = render(values={**values, "networkPolicy": {"clientNamespaces": ["apps", "ingress"]}})
    workload = objects.workload(f"specinfer-{role}")
    port = "grpc" if role == "gateway" else "http"
    inside = (workload.labels, "specinfer")
    callers = [
        ({"app": "x"}, "default"),
        ({"app": "x"}, "apps"),
        ({}, "ingress"),
        inside,
        (workload.labels, "default"),
    ]
    assert admitted(objects, workload, port, callers) == [callers[1], callers[2], inside]


def reached(objects: Rendered, source: Workload) -> list[Object] | None:
    """Return the egress rules of a workload's pods; None if egress is not limited."""
    policies = [
        row["spec"] for row in objects.of_kind("NetworkPolicy")
        if "Egress" in row["spec"]["policyTypes"] and selects(row["spec"]["podSelector"], source.labels)
    ]  # fmt: skip
    return [rule for policy in policies for rule in policy.get("egress", [])] if policies else None


def test_pods_call_nobody_else_where_egress_is_bound() -> None:
    extra = [{"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": [{"protocol": "TCP", "port": 4317}]}]
    objects = render(values={"networkPolicy": {"egress": {"enabled": True, "extra": extra}}})
    dns = {"ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    hub = {"ports": [{"protocol": "TCP", "port": 443}]}
    for workload in objects.workloads:
        rules = reached(objects, workload)
        if workload.name == "specinfer-redis":
            assert rules == []
            continue
        assert rules is not None
        peers, *rest = rules
        assert objects.selected(peers["to"][0]["podSelector"]) == objects.workloads
        pulls = any(container["name"] == "model" for container in workload.containers)
        assert rest == [dns, *extra, *([hub] if pulls else [])], workload.name
    for row in objects.of_kind("NetworkPolicy"):
        validate(json.dumps(row), NEWEST)
    assert reached(render(), render().workload("specinfer-gateway")) is None


@pytest.mark.parametrize("role", ["gateway", "verifier", "speculator", "http", "redis", "serve"])
def test_accounts_have_annotations(role: str) -> None:
    values: dict[str, Any] = {**SERVE} if role == "serve" else {}
    values[role] = {**values.get(role, {}), "serviceAccount": {"annotations": {"role": "arn:of-ours"}}}
    objects = render(values=values)
    annotated = {
        row["metadata"]["name"]
        for row in objects.of_kind("ServiceAccount")
        if "annotations" in row["metadata"]
    }
    assert annotated == {f"specinfer-{role}"}


def test_only_what_pulls_models_gets_the_token_of_the_hub() -> None:
    values = {"hub": {"existingSecret": "hub", "key": "hf"}, "speculator": {"pull": {"enabled": True}}}
    names = set()
    for workload in render(values=values).workloads:
        for container in workload.containers:
            given = [row for row in container.get("env", []) if row["name"] == "HF_TOKEN"]
            assert bool(given) == (container["name"] == "model")
            names |= {json.dumps(row["valueFrom"]) for row in given}
    assert names == {json.dumps({"secretKeyRef": {"name": "hub", "key": "hf"}})}
