"""The chart's single pod: `serve` alone instead of all services."""

import json
from pathlib import Path

import pytest

from all_in_one.settings import ServeSettings
from specinfer import __version__
from specinfer.cli.demo import PAIR
from tests.deploy.helm.chart import pod_of_helm_test, render
from tests.deploy.helm.chart_cases import API_KEYS, MONITORING
from tests.deploy.helm.rendered import Object, Rendered, selects
from tests.deploy.helm.test_chart import NEWEST, OLDEST, validate

SERVE: Object = {
    "serve": {"enabled": True, "models": {"size": "5Gi"}, "settings": {"store": "/models/requests.jsonl"}},
    "redis": {"password": ""},
}


@pytest.fixture(scope="module")
def objects() -> Rendered:
    return render(values=SERVE)


@pytest.fixture
def container(objects: Rendered) -> Object:
    (container,) = objects.workload("specinfer-serve").pod["containers"]
    return dict(container)


def test_there_is_one_pod_and_nothing_of_the_services(objects: Rendered) -> None:
    (workload,) = objects.workloads
    assert (workload.name, workload.replicas) == ("specinfer-serve", 1)
    for version in (OLDEST, NEWEST):
        for row in objects.objects:
            validate(json.dumps(row), version)
    assert {row["kind"] for row in objects.objects} == {
        "ServiceAccount",
        "Service",
        "StatefulSet",
        "NetworkPolicy",
    }
    assert objects.behind("specinfer-serve") == [workload]
    for row in objects.of_kind("NetworkPolicy"):
        assert selects(row["spec"]["podSelector"], workload.labels), "a policy of nobody"


def test_settings_are_those_of_serve(
    objects: Rendered, container: Object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    workload = objects.workload("specinfer-serve")
    for name, value in objects.environment(workload.pod, container).items():
        monkeypatch.setenv(name, value)
    settings = ServeSettings.load("serve", [])
    assert settings.listen == f"0.0.0.0:{workload.ports['http']}"
    assert settings.store == "/models/requests.jsonl"
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert workload.pod["terminationGracePeriodSeconds"] >= stop + 2 * settings.drain_seconds + 10
    assert str(settings.threads) == container["resources"]["requests"]["cpu"]
    assert container["image"] == f"specinfer-server:{__version__}"


def test_the_model_is_pulled_into_a_volume_that_stays(objects: Rendered, container: Object) -> None:
    workload = objects.workload("specinfer-serve")
    (first,) = workload.pod["initContainers"]
    assert first["command"] == ["specinfer", "models", "pull", "smollm2-135m"]
    (claim,) = workload.source["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["resources"] == {"requests": {"storage": "5Gi"}}
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert mounts["/models"] == claim["metadata"]["name"]


def test_a_start_ends_when_the_model_is_loaded_not_when_the_port_opens(container: Object) -> None:
    assert container["startupProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    settings = {"tls_certificate": "/tls/a", "tls_key": "/tls/b", "tls_client_ca": "/tls/c"}
    pod = render(values={**SERVE, "serve": {**SERVE["serve"], "settings": settings}}).workload(
        "specinfer-serve"
    )
    with_client_ca = pod.pod["containers"][0]["startupProbe"]
    assert with_client_ca["exec"]["command"][:2] == ["python", "-c"]


def test_keys_are_mounted_where_it_looks() -> None:
    objects = render(values={**SERVE, **API_KEYS})
    pod = objects.workload("specinfer-serve").pod
    (container,) = pod["containers"]
    path = objects.environment(pod, container)["SPECINFER_SERVE_API_KEYS"]
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {"name": mounts[path.rpartition("/")[0]], "secret": {"secretName": "specinfer-api-keys"}} in pod[
        "volumes"
    ]


def test_prometheus_reads_the_port_of_the_api() -> None:
    objects = render(values={**SERVE, **MONITORING})
    (monitor,) = objects.of_kind("ServiceMonitor")
    (service,) = objects.of_kind("Service")
    assert selects(monitor["spec"]["selector"], service["metadata"]["labels"])
    assert {"port": "http", "path": "/metrics"}.items() <= monitor["spec"]["endpoints"][1].items()
    assert [port["name"] for port in service["spec"]["ports"]] == ["http"]


def test_helm_test_asks_its_api() -> None:
    pod = pod_of_helm_test(SERVE)
    validate(json.dumps(pod), NEWEST)
    (container,) = pod["spec"]["containers"]
    script, address = container["command"][2:4]
    compile(script, "test", "exec")
    assert address == "http://specinfer-serve:8000"


def test_the_pair_is_pulled_and_served_together() -> None:
    objects = render(["pair"], {"redis": {"password": ""}})
    workload = objects.workload("specinfer-serve")
    (container,) = workload.pod["containers"]
    pulled = [row["command"][-1] for row in workload.pod["initContainers"]]
    settings = objects.environment(workload.pod, container)
    assert pulled == [settings[f"SPECINFER_SERVE_{name}"] for name in ("MODEL", "DRAFT")] == list(PAIR)
    assert len({row["name"] for row in workload.containers}) == len(workload.containers)
    assert settings["SPECINFER_SERVE_THREADS"] == container["resources"]["requests"]["cpu"]
    for row in objects.objects:
        validate(json.dumps(row), NEWEST)
