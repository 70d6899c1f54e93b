"""The HTTP service in the chart: its settings, gateways, callers and shutdown."""

from pathlib import Path

import pytest

from http_svc.settings import HttpSettings
from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import rendered_case
from tests.deploy.helm.rendered import Object, Rendered, Workload
from tests.deploy.helm.test_chart_access import admitted


@pytest.fixture(scope="module")
def objects() -> Rendered:
    return render()


@pytest.fixture
def workload(objects: Rendered) -> Workload:
    return objects.workload("specinfer-http")


@pytest.fixture
def container(workload: Workload) -> Object:
    (container,) = workload.pod["containers"]
    return dict(container)


def test_settings_are_those_of_the_service(
    objects: Rendered, workload: Workload, container: Object, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SPECINFER_HTTP_LISTEN")
    for name, value in objects.environment(workload.pod, container).items():
        monkeypatch.setenv(name, value)
    settings = HttpSettings.load("http_svc", [])
    assert settings.listen == f"0.0.0.0:{workload.ports['http']}"
    host, port = settings.gateways.split(":")
    (gateway,) = objects.behind(host)
    assert gateway.name == "specinfer-gateway"
    assert gateway.ports["grpc"] == int(port)
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert workload.pod["terminationGracePeriodSeconds"] >= stop + settings.drain_seconds + 10


def test_only_readiness_follows_the_gateways(container: Object) -> None:
    """A restart of the HTTP service would not repair the gateways."""
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": "http"}
    assert (
        container["livenessProbe"]["tcpSocket"] == container["startupProbe"]["tcpSocket"] == {"port": "http"}
    )


def test_clients_reach_it_and_it_the_gateways(objects: Rendered, workload: Workload) -> None:
    client = ({"app": "x"}, "default")
    assert admitted(objects, workload, "http", [client]) == [client]
    ours = (workload.labels, "specinfer")
    assert admitted(objects, objects.workload("specinfer-gateway"), "grpc", [ours]) == [ours]
    assert admitted(objects, objects.workload("specinfer-verifier"), "grpc", [ours]) == []


def test_with_tls_it_trusts_the_gateways_authority_and_has_not_their_key() -> None:
    objects = rendered_case("tls")
    workload = objects.workload("specinfer-http")
    (container,) = workload.pod["containers"]
    given = objects.environment(workload.pod, container)
    (gateway,) = objects.behind(given["SPECINFER_HTTP_GATEWAY_TLS_NAME"])
    assert gateway.name == "specinfer-gateway"
    folder, _, file = given["SPECINFER_HTTP_GATEWAY_TLS_CA"].rpartition("/")
    mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    (volume,) = (volume for volume in workload.pod["volumes"] if volume["name"] == mounts[folder])
    assert list(objects.content(volume) or {}) == [file]
