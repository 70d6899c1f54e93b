"""The services accept the chart's settings, files and probes, and its times fit theirs."""

import re
from collections.abc import Callable, Iterator

import pytest
import yaml

from gateway.settings import GatewaySettings
from specinfer.cli.local.system import SERVICE_ENVIRONMENT
from specinfer.drafters.draft import default_services
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.service.server import LIVENESS
from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import SETTINGS, load_settings, services
from tests.deploy.helm.rendered import Object, Rendered, Workload, texts

HEALTH_NAMES = {
    "gateway": "specinfer.v1.Generation",
    "verifier": "specinfer.v1.Verifier",
    "speculator": "specinfer.v1.Speculator",
}
FILE_SETTINGS = re.compile(r"/etc/specinfer/[\w./-]+")


def test_settings_are_those_of_the_services(objects: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, workload, container in services(objects):
        settings = load_settings(word, objects.environment(workload.pod, container), monkeypatch)
        assert settings.listen == f"0.0.0.0:{workload.ports['grpc']}", "probes and peers come from outside"
        assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", workload.ports["metrics"])


def test_settings_are_given_to_their_service_alone(objects: Rendered) -> None:
    """A service would not read the setting of another service."""
    for word, workload, container in services(objects):
        names = objects.environment(workload.pod, container)
        prefixes = {f"SPECINFER_{other.upper()}_" for other in SETTINGS if other != word}
        assert not [name for name in names for prefix in prefixes if name.startswith(prefix)]


def test_values_become_variables_as_they_are_written() -> None:
    """Go would print the number as 1e+06."""
    values = {"verifier": {"settings": {"kv_tokens": 1000000, "threads": None, "acceptance": "naive"}}}
    objects = render(values={**values, "environment": {"HTTPS_PROXY": "http://proxy:3128"}})
    verifier = objects.workload("specinfer-verifier")
    for container in verifier.containers:
        variables = objects.environment(verifier.pod, container)
        assert variables["HTTPS_PROXY"] == "http://proxy:3128"
    assert variables["SPECINFER_VERIFIER_KV_TOKENS"] == "1000000"
    assert variables["SPECINFER_VERIFIER_ACCEPTANCE"] == "naive"
    assert "SPECINFER_VERIFIER_THREADS" not in variables


def test_the_files_that_settings_name_are_mounted(objects: Rendered) -> None:
    for _, workload, container in services(objects):
        environment = objects.environment(workload.pod, container)
        named = {
            match
            for text in [*environment.values(), *texts(container)]
            for match in FILE_SETTINGS.findall(text)
        }
        there = set(mounted_files(objects, workload, container))
        folders = {path.rpartition("/")[0] for path in there}
        assert named - folders <= there
        assert not folders or named & there, "mounted and not used"


def mounted_files(objects: Rendered, workload: Workload, container: Object) -> Iterator[str]:
    volumes = {volume["name"]: volume for volume in workload.pod.get("volumes", [])}
    for mount in container.get("volumeMounts", []):
        for name in objects.content(volumes.get(mount["name"], {})) or {}:
            yield f"{mount['mountPath']}/{name}"


def test_what_up_sets_for_speed_is_set(objects: Rendered) -> None:
    for _, workload, container in services(objects):
        environment = objects.environment(workload.pod, container)
        assert SERVICE_ENVIRONMENT.items() <= environment.items()


def test_the_chart_is_what_up_starts() -> None:
    objects = render()
    variables = {
        word: objects.environment(workload.pod, container) for word, workload, container in services(objects)
    }
    assert variables["verifier"]["SPECINFER_VERIFIER_MODEL"] == DEFAULT_MODEL
    (flags,) = default_services(DEFAULT_MODEL).values()
    speculator = {name: variables["speculator"][f"SPECINFER_SPECULATOR_{name.upper()}"] for name in flags}
    assert speculator == dict(flags)


def test_probes_ask_what_is_there(objects: Rendered) -> None:
    for workload in objects.workloads:
        for container in workload.pod["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container[kind]
                assert len({"grpc", "tcpSocket", "httpGet", "exec"} & set(probe)) == 1
                if "grpc" in probe:
                    ready = HEALTH_NAMES[container["name"]]
                    wanted = ready if kind == "readinessProbe" else LIVENESS
                    assert probe["grpc"] == {"port": ports["grpc"], "service": wanted}
                if "tcpSocket" in probe:
                    assert probe["tcpSocket"]["port"] in ports
                if "httpGet" in probe:
                    assert probe["httpGet"]["port"] in ports
                assert (kind == "readinessProbe") or probe.get("failureThreshold", 3) > 3


def test_a_service_has_time_to_start_and_to_end(objects: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, workload, container in services(objects):
        settings = load_settings(word, objects.environment(workload.pod, container), monkeypatch)
        stop = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert workload.pod["terminationGracePeriodSeconds"] >= stop + 2 * settings.drain_seconds + 5
        probe = container["startupProbe"]
        if isinstance(settings, GatewaySettings):
            assert stop > 0
            assert probe["failureThreshold"] * probe["periodSeconds"] > settings.start_timeout_seconds
            assert workload.source["spec"]["progressDeadlineSeconds"] > settings.start_timeout_seconds


def processes(command: list[str]) -> int:
    """Return the number of ranks that torchrun starts in a pod; 1 without torchrun."""
    matches = [re.fullmatch(r"--nproc-per-node=(\d+)", part) for part in command]
    return next((int(match[1]) for match in matches if match), 1)


def test_threads_are_the_processors_that_are_requested(objects: Rendered) -> None:
    for word, workload, container in services(objects):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(requests)
        assert "cpu" not in limits, "a throttled process is late for its leases"
        if word != "gateway":
            environment = objects.environment(workload.pod, container)
            ranks = processes(container["command"])
            assert int(environment[f"SPECINFER_{word.upper()}_THREADS"]) * ranks == int(requests["cpu"])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod["spec"]["containers"][0].update(command=["python", "-m", "$(NO_SUCH)"]),
        lambda pod: pod["spec"]["containers"][0]["env"][-1]["valueFrom"]["secretKeyRef"].update(name="none"),
        lambda pod: pod["spec"].update(enableServiceLinks=True),
    ],
)
def test_the_checks_notice_what_is_wrong(
    spoil: Callable[[Object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control: each wrong name in the manifests is found."""
    objects = Rendered(yaml.safe_load(yaml.safe_dump(render().objects)))
    workload = objects.workload("specinfer-gateway")
    spoil(workload.source["spec"]["template"])
    container = workload.pod["containers"][0]
    with pytest.raises((AssertionError, KeyError, SettingError)):  # noqa: PT012
        objects.command(workload.pod, container)
        load_settings("gateway", objects.environment(workload.pod, container), monkeypatch)


PLACED = {
    "nodeSelector": {"disk": "fast"},
    "tolerations": [{"key": "ours", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
}
GIVEN = {**PLACED, "podAnnotations": {"of": "ours"}, "resources": {"limits": {"memory": "7Gi"}}}
OF_SERVICES = {
    "extraArgs": ["--log-level", "debug"],
    "extraEnv": [{"name": "OURS", "value": "1"}],
    "extraVolumes": [{"name": "ours", "configMap": {"name": "ours"}}],
    "extraVolumeMounts": [{"name": "ours", "mountPath": "/ours"}],
    "podDisruptionBudget": {"maxUnavailable": "30%", "minAvailable": None},
}


@pytest.mark.parametrize("files", [[], ["gpu", "gpu-multi-node"]])
@pytest.mark.parametrize("role", ["gateway", "verifier", "speculator", "http", "redis"])
def test_what_every_role_may_be_given_reaches_its_pods_and_no_others(role: str, files: list[str]) -> None:
    objects = render(files, {role: {**GIVEN, **({} if role == "redis" else OF_SERVICES)}})
    for workload in objects.workloads:
        (container,), pod = workload.pod["containers"], workload.pod
        annotations = workload.template["metadata"].get("annotations", {})
        if workload.name != f"specinfer-{role}":
            assert "of" not in annotations
            assert pod.get("nodeSelector") is None
            assert container["resources"]["limits"]["memory"] != "7Gi"
            continue
        assert {name: pod[name] for name in PLACED} == PLACED
        assert annotations["of"] == "ours"
        assert container["resources"]["limits"]["memory"] == "7Gi"
        if role != "redis":
            assert container["args"] == OF_SERVICES["extraArgs"]
            assert objects.environment(pod, container)["OURS"] == "1"
            assert OF_SERVICES["extraVolumes"][0] in pod["volumes"]
            assert OF_SERVICES["extraVolumeMounts"][0] in container["volumeMounts"]
            budget = objects.get("PodDisruptionBudget", workload.name)["spec"]
            assert (budget["maxUnavailable"], budget.get("minAvailable")) == ("30%", None)


def test_a_changed_password_replaces_the_pods_that_read_it() -> None:
    before, after = render(), render(values={"redis": {"password": "another"}})
    changed = {
        w.name
        for w, other in zip(before.workloads, after.workloads, strict=True)
        if w.template != other.template
    }
    assert changed == {"specinfer-redis", "specinfer-gateway"}
    resized = render(values={"redis": {"maxmemory": "1gb"}})
    changed = {
        w.name
        for w, other in zip(before.workloads, resized.workloads, strict=True)
        if w.template != other.template
    }
    assert changed == {"specinfer-redis"}
