"""Verifiers of several pods: the chart's LeaderWorkerSet starts the number of ranks in the settings."""

import json

import pytest

from specinfer.model.parallel.layout import check_layout
from specinfer.model.weights.config import ModelConfig
from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import load_settings
from tests.deploy.helm.rendered import Object, Rendered
from tests.deploy.helm.test_chart import NEWEST, OLDEST, validate
from tests.deploy.helm.test_chart_settings import processes
from verifier_svc.ranks import layout_of
from verifier_svc.settings import VerifierSettings

QWEN3_32B = ModelConfig(
    family="qwen3",
    vocab_size=151936,
    hidden_size=5120,
    intermediate_size=25600,
    layers=64,
    heads=64,
    kv_heads=8,
    head_dim=128,
    norm_eps=1e-6,
    max_positions=40960,
    activation="silu",
    tied_embeddings=False,
    qk_norm=True,
    eos_token_ids=(151645,),
)


@pytest.fixture(scope="module")
def objects() -> Rendered:
    return render(["gpu", "gpu-multi-node"])


def group(objects: Rendered) -> Object:
    (group,) = objects.of_kind("LeaderWorkerSet")
    return dict(group["spec"]["leaderWorkerTemplate"])


def containers(objects: Rendered) -> list[tuple[Object, Object]]:
    """Return (pod, container with ranks) of leader and worker."""
    pods = [group(objects)[f"{role}Template"]["spec"] for role in ("leader", "worker")]
    return [(pod, pod["containers"][0]) for pod in pods]


def test_pods_are_valid(objects: Rendered) -> None:
    """Only the pods are validated: the schema of LeaderWorkerSet is not available."""
    for role in ("leader", "worker"):
        template = group(objects)[f"{role}Template"]
        for version in (OLDEST, NEWEST):
            validate(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}), version)


def test_there_are_as_many_ranks_and_gpus_as_the_settings_say(
    objects: Rendered, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = group(objects)["size"]
    for pod, container in containers(objects):
        variables = {"LWS_GROUP_SIZE": str(nodes), "LWS_WORKER_INDEX": "0", "LWS_LEADER_ADDRESS": "leader"}
        environment = objects.environment(pod, container)
        described = {
            **container,
            "env": [{"name": name, "value": value} for name, value in variables.items()],
        }
        command = objects.command(pod, described)
        assert f"--nnodes={nodes}" in command
        assert command[-2:] == ["-m", "verifier_svc"]
        settings = load_settings("verifier", environment, monkeypatch)
        assert isinstance(settings, VerifierSettings)
        layout = layout_of(settings)
        assert layout.ranks == nodes * processes(command)
        assert container["resources"]["limits"]["nvidia.com/gpu"] == str(processes(command))
        assert layout.tensor <= processes(command), "within a node, where devices talk fast"
        assert settings.model == "Qwen/Qwen3-32B"
        check_layout(QWEN3_32B, layout)


def test_leader_and_workers_run_the_same(objects: Rendered) -> None:
    (_, leader), (_, worker) = containers(objects)
    for part in ("image", "command", "env", "resources", "volumeMounts", "securityContext"):
        assert leader[part] == worker[part], part
    assert group(objects)["restartPolicy"] == "RecreateGroupOnPodRestart", "one rank ends, all do"
    leaders = objects.workload("specinfer-verifier")
    assert objects.behind("specinfer-verifier") == [leaders], "gateways see leaders alone"
    labels = group(objects)["workerTemplate"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] != leaders.labels["app.kubernetes.io/name"]
