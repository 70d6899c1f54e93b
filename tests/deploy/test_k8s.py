"""deploy/k8s renders, is valid for Kubernetes, and its names, ports, selectors, settings and times fit."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from gateway.settings import GatewaySettings
from specinfer import __version__
from specinfer.cli.local import SERVICE_ENVIRONMENT, default_speculators
from specinfer.errors import SettingError
from specinfer.hub import DEFAULT_MODEL
from specinfer.hub.pull import find_source
from specinfer.service.server import LIVENESS
from specinfer.service.settings import ServiceSettings
from speculator_svc.settings import SpeculatorSettings
from tests.deploy.kustomize import COMPONENTS, KUBERNETES, OVERLAYS, render_overlay, render_with
from tests.deploy.rendered import Object, Rendered, Workload, selects, texts
from verifier_svc.settings import VerifierSettings

OLDEST, NEWEST = "1.30", "1.37"
API_VERSIONS = {"v1", "apps/v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1"}
"""Those of the newest Kubernetes that nothing is going to remove."""
POD_MONITOR = "monitoring.coreos.com/v1"
SETTINGS: dict[str, type[ServiceSettings]] = {
    "gateway": GatewaySettings,
    "verifier": VerifierSettings,
    "speculator": SpeculatorSettings,
}
HEALTH_NAMES = {
    "gateway": "specinfer.v1.Generation",
    "verifier": "specinfer.v1.Verifier",
    "speculator": "specinfer.v1.Speculator",
}
FILE_SETTINGS = re.compile(r"/etc/specinfer/[\w./-]+")
PLAIN = [(overlay, ()) for overlay in OVERLAYS]
ALONE = [("cpu", (component,)) for component in COMPONENTS]
ALL = [("gpu", ("api-keys", "tls", "load-autoscaling")), ("cpu", ("api-keys", "monitoring", "managed-redis"))]
CASES = [*PLAIN, *ALONE, *ALL]


@cache
def rendered(overlay: str, components: tuple[str, ...], folder: Path | None) -> Rendered:
    """An overlay, with components in a folder."""
    return render_overlay(overlay) if folder is None else render_with(overlay, components, folder)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: "+".join([case[0], *case[1]]))
def objects(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    overlay, components = request.param
    return rendered(overlay, components, tmp_path_factory.mktemp("overlay") if components else None)


def services(objects: Rendered) -> Iterator[tuple[str, Workload, Object]]:
    """(word, workload, container) of our own processes."""
    for workload in objects.workloads:
        for container in workload.pod["containers"]:
            if container["name"] in SETTINGS:
                yield container["name"], workload, container


def test_there_is_something_to_test() -> None:
    assert {"cpu", "gpu"} <= set(OVERLAYS)
    assert set(COMPONENTS) >= {"api-keys", "tls", "monitoring", "load-autoscaling", "managed-redis"}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_every_object_is_valid(objects: Rendered, version: str) -> None:
    for row in objects.objects:
        if row["apiVersion"] == POD_MONITOR:
            continue  # not of Kubernetes itself: see below
        assert row["apiVersion"] in API_VERSIONS, row["metadata"]["name"]
        assert kubernetes_validate.validate(row, version, strict=True) == version


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


def test_settings_are_those_of_the_services(objects: Rendered, monkeypatch: pytest.MonkeyPatch) -> None:
    for word, workload, container in services(objects):
        settings = load_settings(word, objects.environment(workload.pod, container), monkeypatch)
        assert settings.listen == f"0.0.0.0:{workload.ports['grpc']}", "probes and peers come from outside"
        assert (settings.metrics_host, settings.metrics_port) == ("0.0.0.0", workload.ports["metrics"])


def load_settings(word: str, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ServiceSettings:
    """What the service makes of its environment; it refuses names with its prefix that are no settings."""
    prefix = f"SPECINFER_{word.upper()}_"
    with monkeypatch.context() as context:
        for name, value in environment.items():
            if name.startswith(prefix) and "_TLS_" not in name:  # the files are not here
                context.setenv(name, value)
        settings = SETTINGS[word].load(word, [])
    unknown = {name for name in environment if name.startswith(prefix)} - {
        prefix + name.upper() for name in SETTINGS[word].model_fields
    }
    assert not unknown
    return settings


def test_config_maps_have_only_settings_of_their_service(objects: Rendered) -> None:
    """A setting of another service there would be read by nobody."""
    for word in SETTINGS:
        (row,) = (
            row
            for row in objects.of_kind("ConfigMap")
            if re.fullmatch(rf"specinfer-{word}-\w+", row["metadata"]["name"])
        )
        assert all(name.startswith(f"SPECINFER_{word.upper()}_") for name in row["data"])


def test_the_files_that_settings_name_are_mounted(objects: Rendered) -> None:
    for _, workload, container in services(objects):
        environment = objects.environment(workload.pod, container)
        named = {
            found
            for text in [*environment.values(), *texts(container)]
            for found in FILE_SETTINGS.findall(text)
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


def test_services_agree_on_the_model(objects: Rendered) -> None:
    found = {
        word: objects.environment(workload.pod, container) for word, workload, container in services(objects)
    }
    model = found["verifier"]["SPECINFER_VERIFIER_MODEL"]
    assert found["gateway"]["SPECINFER_GATEWAY_MODEL"] == model
    for workload in objects.workloads:
        for container in workload.pod.get("initContainers", []):
            command = objects.command(workload.pod, container)
            assert command[:3] == ["specinfer", "models", "pull"]
            find_source(command[3], "wheel")  # there is such a model


def test_the_cpu_overlay_is_what_up_starts() -> None:
    found = {word: render.environment(workload.pod, container) for render in [render_overlay("cpu")]
             for word, workload, container in services(render)}  # fmt: skip
    assert found["verifier"]["SPECINFER_VERIFIER_MODEL"] == DEFAULT_MODEL
    (flags,) = default_speculators(DEFAULT_MODEL).values()
    speculator = {name: found["speculator"][f"SPECINFER_SPECULATOR_{name.upper()}"] for name in flags}
    assert speculator == dict(flags)


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
    assert {row["metadata"]["name"] for row in objects.of_kind("PodDisruptionBudget")} == {
        "specinfer-gateway", "specinfer-verifier", "specinfer-speculator",
    }  # fmt: skip


def test_services_lead_to_ports_by_their_names(objects: Rendered) -> None:
    for service in objects.of_kind("Service"):
        (workload,) = objects.behind(service["metadata"]["name"])
        for port in service["spec"]["ports"]:
            assert port["targetPort"] == port["name"]
            assert workload.ports[port["targetPort"]] == port["port"], "a headless Service translates nothing"


def test_probes_ask_what_is_there(objects: Rendered) -> None:
    for workload in objects.workloads:
        for container in workload.pod["containers"]:
            ports = {port["name"]: port["containerPort"] for port in container["ports"]}
            for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
                probe = container[kind]
                assert len({"grpc", "tcpSocket", "exec"} & set(probe)) == 1
                if "grpc" in probe:
                    ready = HEALTH_NAMES[container["name"]]
                    wanted = ready if kind == "readinessProbe" else LIVENESS
                    assert probe["grpc"] == {"port": ports["grpc"], "service": wanted}
                if "tcpSocket" in probe:
                    assert probe["tcpSocket"]["port"] in ports
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


def test_threads_are_the_processors_that_are_requested(objects: Rendered) -> None:
    for word, workload, container in services(objects):
        requests, limits = container["resources"]["requests"], container["resources"]["limits"]
        assert {"cpu", "memory"} <= set(requests)
        assert "cpu" not in limits, "a throttled process is late for its leases"
        if word != "gateway":
            environment = objects.environment(workload.pod, container)
            assert environment[f"SPECINFER_{word.upper()}_THREADS"] == requests["cpu"]


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
    folder = KUBERNETES / "components" / "load-autoscaling"
    rules = yaml.safe_load((folder / "prometheus-adapter-values.yaml").read_text())["rules"]
    made = {kind: {rule["name"]["as"] for rule in rules[kind]} for kind in ("custom", "external")}
    asked: dict[str, set[str]] = {"custom": set(), "external": set()}
    for text in (folder / "kustomization.yaml", folder / "verifier-autoscaler.yaml"):
        for row in yaml.safe_load_all(text.read_text()):
            for kind, key in (("custom", "pods"), ("external", "external")):
                asked[kind] |= set(_metrics(row, key))
    assert asked == made


def _metrics(value: object, key: str) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get(key), dict) and "metric" in value[key]:
            yield value[key]["metric"]["name"]
        for part in value.values():
            yield from _metrics(part, key)
    elif isinstance(value, list):
        for part in value:
            yield from _metrics(part, key)
    elif isinstance(value, str) and "\n" in value:
        yield from _metrics(yaml.safe_load(value), key)


def test_prometheus_finds_every_metrics_port(objects: Rendered) -> None:
    for monitor in objects.of_kind("PodMonitor"):
        assert monitor["apiVersion"] == POD_MONITOR
        assert set(monitor["spec"]) <= {"selector", "jobLabel", "podMetricsEndpoints"}
        chosen = objects.selected(monitor["spec"]["selector"])
        assert {workload.name for workload in chosen} == {w.name for _, w, _ in services(objects)}
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert all(endpoint["port"] in workload.ports for workload in chosen)
        assert all(monitor["spec"]["jobLabel"] in workload.labels for workload in chosen)


GATEWAY, VERIFIER, SPECULATOR, REDIS = (
    {"app.kubernetes.io/name": f"specinfer-{word}"} for word in ("gateway", "verifier", "speculator", "redis")
)


def test_network_policies_let_in_whom_they_should(objects: Rendered) -> None:
    """Who may open a connection to which port: (labels of the pod, its namespace)."""
    client, prometheus = ({"app": "x"}, "default"), ({"app": "prometheus"}, "monitoring")
    gateway, verifier = (GATEWAY, "specinfer"), (VERIFIER, "specinfer")
    foreign = (GATEWAY, "default")
    for word in ("verifier", "speculator"):
        workload = objects.workload(f"specinfer-{word}")
        assert admitted(objects, workload, "grpc", [client, prometheus, gateway, verifier, foreign]) == [
            gateway
        ]
        assert admitted(objects, workload, "metrics", [client, prometheus, gateway, foreign]) == [prometheus]
    workload = objects.workload("specinfer-gateway")
    assert admitted(objects, workload, "grpc", [client, verifier]) == [client, verifier]
    assert admitted(objects, workload, "metrics", [client, prometheus, verifier]) == [prometheus]
    for workload in objects.workloads:
        if workload.name == "specinfer-redis":
            callers = [client, prometheus, gateway, verifier, foreign]
            assert admitted(objects, workload, "redis", callers) == [gateway]


def admitted(
    objects: Rendered, target: Workload, port: str, callers: list[tuple[dict[str, str], str]]
) -> list[tuple[dict[str, str], str]]:
    policies = [
        row["spec"]
        for row in objects.of_kind("NetworkPolicy")
        if selects(row["spec"]["podSelector"], target.labels) and "Ingress" in row["spec"]["policyTypes"]
    ]
    assert policies, f"whoever likes reaches {target.name}"
    rules = [rule for policy in policies for rule in policy.get("ingress", [])]
    for rule in rules:
        for named in rule["ports"]:
            selected = [row for row in objects.workloads if named["port"] in row.ports]
            assert selected, f"no port is called {named['port']}"
    open_rules = [rule for rule in rules if port in [named["port"] for named in rule["ports"]]]
    return [caller for caller in callers if any(_lets_in(rule, *caller) for rule in open_rules)]


def _lets_in(rule: Object, labels: dict[str, str], namespace: str) -> bool:
    if "from" not in rule:
        return True
    return any(_is_peer(peer, labels, namespace) for peer in rule["from"])


def _is_peer(peer: Object, labels: dict[str, str], namespace: str) -> bool:
    space = peer.get("namespaceSelector")
    here = (
        namespace == "specinfer"
        if space is None
        else selects(space, {"kubernetes.io/metadata.name": namespace})
    )
    return here and selects(peer.get("podSelector", {}), labels)


def test_pods_may_do_little(objects: Rendered) -> None:
    """What Pod Security's `restricted` asks, a read-only root and no token besides."""
    accounts = {row["metadata"]["name"]: row for row in objects.of_kind("ServiceAccount")}
    for workload in objects.workloads:
        pod, context = workload.pod, workload.pod["securityContext"]
        assert pod["automountServiceAccountToken"] is False
        assert accounts[pod["serviceAccountName"]]["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert all({"configMap", "secret", "emptyDir"} & set(volume) for volume in pod.get("volumes", []))
        for container in workload.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
    (space,) = objects.of_kind("Namespace")
    assert space["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_what_is_written_lies_on_volumes(objects: Rendered) -> None:
    for workload in objects.workloads:
        volumes = {volume["name"] for volume in workload.pod.get("volumes", [])}
        volumes |= {
            claim["metadata"]["name"] for claim in workload.source["spec"].get("volumeClaimTemplates", [])
        }
        for container in workload.containers:
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            assert set(mounts.values()) <= volumes
            environment = objects.environment(workload.pod, container)
            if "redis" not in workload.name:
                assert {environment["HOME"], environment["SPECINFER_CACHE"]} <= set(mounts)


def test_images_have_versions(objects: Rendered) -> None:
    for workload in objects.workloads:
        for container in workload.containers:
            name, _, tag = container["image"].rpartition(":")
            if name.startswith("specinfer-"):
                assert tag == __version__
                assert name.removeprefix("specinfer-") in {*SETTINGS, "tools"}
            else:
                assert re.fullmatch(r"\d+\.\d+\.\d+(-\w+)?", tag), container["image"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda pod: pod["spec"]["containers"][0].update(command=["python", "-m", "$(NO_SUCH)"]),
        lambda pod: pod["spec"]["containers"][0]["envFrom"].append({"configMapRef": {"name": "none"}}),
        lambda pod: pod["spec"].update(enableServiceLinks=True),
    ],
)
def test_the_checks_notice_what_is_wrong(
    spoil: Callable[[Object], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of what the cluster would do with names."""
    objects = Rendered(yaml.safe_load(yaml.safe_dump(render_overlay("cpu").objects)))
    workload = objects.workload("specinfer-gateway")
    spoil(workload.source["spec"]["template"])
    container = workload.pod["containers"][0]
    with pytest.raises((AssertionError, KeyError, SettingError)):  # noqa: PT012
        objects.command(workload.pod, container)
        load_settings("gateway", objects.environment(workload.pod, container), monkeypatch)
