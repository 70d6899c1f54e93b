"""Files for KServe and the Gateway API Inference Extension: what they name is what the server has."""

import json
from pathlib import Path

import pytest
import yaml

from all_in_one.settings import ServeSettings
from specinfer import __version__
from tests.deploy.helm.chart import ROOT
from tests.deploy.helm.rendered import Object, Rendered
from tests.deploy.helm.test_chart import NEWEST, OLDEST, validate

PLATFORMS = ROOT / "deploy" / "platforms"
SERVING_RUNTIME = {
    *(
        "affinity",
        "annotations",
        "builtInAdapter",
        "containers",
        "disabled",
        "grpcDataEndpoint",
        "grpcEndpoint",
    ),
    *("hostIPC", "httpDataEndpoint", "imagePullSecrets", "labels", "multiModel", "nodeSelector"),
    *("protocolVersions", "replicas", "storageHelper", "supportedModelFormats", "tolerations", "volumes"),
    *("workerSpec", "schedulerName", "resourceClaims"),
}
"""Fields of KServe's ServingRuntimeSpec, as the package `kserve` 0.21 has them."""
MODEL_FORMAT = {"autoSelect", "name", "priority", "version"}


def objects_of(name: str) -> Rendered:
    return Rendered(list(yaml.safe_load_all((PLATFORMS / f"{name}.yaml").read_text())))


def settings_of(container: Object, name: str) -> ServeSettings:
    """The settings that the server in a container reads; it refuses what it does not know."""
    assert container["command"] == ["python", "-m", "all_in_one"]
    assert container["image"] == f"specinfer-server:{__version__}"
    settings = ServeSettings.load("serve", [part.replace("{{.Name}}", name) for part in container["args"]])
    assert settings.threads == int(container["resources"]["requests"]["cpu"])
    return settings


@pytest.fixture
def runtime() -> Object:
    """KServe's ServingRuntime."""
    (found,) = objects_of("kserve").of_kind("ServingRuntime")
    assert found["apiVersion"] == "serving.kserve.io/v1alpha1"
    return dict(found["spec"])


def test_the_serving_runtime_has_fields_that_kserve_has(runtime: Object) -> None:
    assert set(runtime) <= SERVING_RUNTIME
    assert all(set(format_) <= MODEL_FORMAT for format_ in runtime["supportedModelFormats"])
    pod = {"containers": runtime["containers"], "volumes": runtime["volumes"]}
    for version in (OLDEST, NEWEST):
        validate(
            json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}), version
        )


def test_kserve_starts_the_server_with_what_it_mounts(runtime: Object) -> None:
    (container,) = runtime["containers"]
    assert container["name"] == "kserve-container", "KServe merges the predictor into the one of this name"
    settings = settings_of(container, "smollm2")
    assert settings.model == "/mnt/models"
    assert settings.model_names == ("smollm2",)
    assert settings.vllm_metrics
    port = runtime["annotations"]["prometheus.kserve.io/port"]
    assert settings.listen == f"0.0.0.0:{port}"
    assert [row["containerPort"] for row in container["ports"]] == [int(port)]
    assert (
        container["startupProbe"]["tcpSocket"]["port"]
        == container["readinessProbe"]["httpGet"]["port"]
        == int(port)
    )


def test_the_inference_service_names_the_runtime() -> None:
    objects = objects_of("kserve")
    (service,) = objects.of_kind("InferenceService")
    model = service["spec"]["predictor"]["model"]
    found = objects.get("ServingRuntime", model["runtime"])
    assert model["modelFormat"]["name"] in [row["name"] for row in found["spec"]["supportedModelFormats"]]


def test_the_pool_is_the_servers_at_their_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    objects = objects_of("inference-pool")
    (pool,) = objects.of_kind("InferencePool")
    assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
    assert set(pool["spec"]) == {"selector", "targetPorts", "endpointPickerRef"}
    assert set(pool["spec"]["selector"]) == {"matchLabels"}, "a pool's selector has nothing else"
    (servers,) = objects.selected(pool["spec"]["selector"])
    assert objects.selected(servers.source["spec"]["selector"]) == [servers]
    (port,) = pool["spec"]["targetPorts"]
    assert servers.ports == {"http": port["number"]}
    (container,) = servers.pod["containers"]
    settings = settings_of(container, "")
    assert settings.listen == f"0.0.0.0:{port['number']}"
    assert settings.vllm_metrics, "the picker reads the load under vLLM's names, at the port of the API"
    assert servers.pod["initContainers"][0]["command"][-1] == settings.model
    stop = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert servers.pod["terminationGracePeriodSeconds"] >= stop + settings.drain_seconds + 10
    for version in (OLDEST, NEWEST):
        validate(json.dumps(servers.source), version)


def test_the_route_leads_to_the_pool() -> None:
    objects = objects_of("inference-pool")
    (route,) = objects.of_kind("HTTPRoute")
    (rule,) = route["spec"]["rules"]
    (backend,) = rule["backendRefs"]
    pool = objects.get(backend["kind"], backend["name"])
    assert pool["apiVersion"].partition("/")[0] == backend["group"]
