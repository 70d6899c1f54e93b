"""Pods with GPUs: one process for each device, its shared memory, and probes that wait for a capture of minutes."""

import pytest
import yaml

from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import load_settings
from tests.deploy.helm.rendered import Object, Rendered
from tests.deploy.helm.test_chart_settings import processes
from verifier_svc.settings import VerifierSettings

GPU = "nvidia.com/gpu"
ROLES = ("verifier", "speculator", "serve")
CAPTURE_S = 600
"""Seconds that loading and capture of a large model may take."""


def rendered(role: str) -> tuple[Rendered, Object, Object]:
    """Return the objects, and a role's pod and container."""
    objects = render(["gpu"], {"serve": {"enabled": role == "serve"}})
    pod = objects.workload(f"specinfer-{role}").pod
    (container,) = (row for row in pod["containers"] if row["name"] == role)
    return objects, pod, container


@pytest.mark.parametrize("role", ROLES)
def test_a_pod_has_a_process_and_its_device(role: str) -> None:
    objects, pod, container = rendered(role)
    assert container["resources"]["limits"][GPU] == "1"
    assert GPU not in container["resources"].get("requests", {}), "Kubernetes requests the limit"
    assert objects.environment(pod, container)[f"SPECINFER_{role.upper()}_DEVICE"] == "cuda"
    assert {"key": GPU, "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
    assert [row["name"] for row in pod["containers"]] == [role]


@pytest.mark.parametrize("role", ROLES)
def test_probes_wait_for_a_capture(role: str) -> None:
    objects, pod, container = rendered(role)
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= CAPTURE_S
    cache = objects.environment(pod, container)["TRITON_CACHE_DIR"]
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert any(cache.startswith(f"{mount}/") for mount in mounts), "the root file system is read-only"


@pytest.mark.parametrize("files", [["gpu"], ["gpu", "gpu-multi-node"]])
def test_gateways_wait_as_long_as_a_verifier_starts(
    files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(files)
    pod = objects.workload("specinfer-gateway").pod
    (container,) = pod["containers"]
    settings = load_settings("gateway", objects.environment(pod, container), monkeypatch)
    verifier = objects.workload("specinfer-verifier").pod["containers"][0]["startupProbe"]
    starting_s = verifier["periodSeconds"] * verifier["failureThreshold"]
    assert settings.start_timeout_seconds >= starting_s
    probe = container["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] > starting_s


def test_the_executor_is_chosen_by_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    objects, pod, container = rendered("verifier")
    settings = load_settings("verifier", objects.environment(pod, container), monkeypatch)
    assert isinstance(settings, VerifierSettings)
    assert (settings.device, settings.executor) == ("cuda", "auto")


def test_ranks_of_a_pod_share_memory() -> None:
    pod = render(["gpu", "gpu-multi-node"]).workload("specinfer-verifier").pod
    (container,) = pod["containers"]
    (mount,) = (row for row in container["volumeMounts"] if row["mountPath"] == "/dev/shm")
    (volume,) = (row for row in pod["volumes"] if row["name"] == mount["name"])
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "4Gi"}
    assert processes(container["command"]) == int(container["resources"]["limits"][GPU]) == 2


def test_a_runtime_class_is_set_where_the_cluster_needs_it() -> None:
    values = yaml.safe_load("{verifier: {runtimeClassName: nvidia}, speculator: {runtimeClassName: nvidia}}")
    objects = render(["gpu"], values)
    for role in values:
        assert objects.workload(f"specinfer-{role}").pod["runtimeClassName"] == "nvidia"
