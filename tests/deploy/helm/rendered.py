"""Rendered Kubernetes objects, with the environments, files and selections that result in a cluster. Pure.

A reference to a missing object is an error, as in a cluster.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Object = dict[str, Any]
WORKLOADS = ("Deployment", "StatefulSet", "Job")
GROUPS = "LeaderWorkerSet"
_REFERENCE = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True)
class Workload:
    """A Deployment, a StatefulSet, a Job, or the leaders of a LeaderWorkerSet."""

    source: Object
    replicas: int
    """Minimum number of pods: of its HorizontalPodAutoscaler, else its `replicas`."""

    @property
    def name(self) -> str:
        return str(self.source["metadata"]["name"])

    @property
    def template(self) -> Object:
        return dict(self.source["spec"]["template"])

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.template["metadata"]["labels"])

    @property
    def pod(self) -> Object:
        return dict(self.template["spec"])

    @property
    def containers(self) -> list[Object]:
        """Return all containers, including init containers."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def ports(self) -> dict[str, int]:
        """Return the ports of its containers, by name."""
        rows = [port for container in self.containers for port in container.get("ports", [])]
        return {port["name"]: port["containerPort"] for port in rows}


class Rendered:
    """All objects of a release."""

    def __init__(self, objects: list[Object]) -> None:
        self.objects = objects

    def of_kind(self, kind: str) -> list[Object]:
        return [row for row in self.objects if row["kind"] == kind]

    def get(self, kind: str, name: str) -> Object:
        rows = [row for row in self.of_kind(kind) if row["metadata"]["name"] == name]
        assert len(rows) == 1, f"{kind} {name}: there are {len(rows)}"
        return rows[0]

    @cached_property
    def workloads(self) -> list[Workload]:
        rows = [row for row in self.objects if row["kind"] in WORKLOADS]
        rows += map(leaders, self.of_kind(GROUPS))
        return [Workload(row, self._replicas(row)) for row in rows]

    def workload(self, name: str) -> Workload:
        (match,) = (workload for workload in self.workloads if workload.name == name)
        return match

    def _replicas(self, workload: Object) -> int:
        for scaler in self.of_kind("HorizontalPodAutoscaler"):
            target = scaler["spec"]["scaleTargetRef"]
            if (target["kind"], target["name"]) == (workload["kind"], workload["metadata"]["name"]):
                return int(scaler["spec"]["minReplicas"])
        return int(workload["spec"].get("replicas", 1))

    def selected(self, selector: Mapping[str, Any]) -> list[Workload]:
        """Return the workloads whose pods a LabelSelector selects."""
        return [workload for workload in self.workloads if selects(selector, workload.labels)]

    def behind(self, service: str) -> list[Workload]:
        """Return the workloads whose pods a Service selects."""
        return self.selected({"matchLabels": self.get("Service", service)["spec"]["selector"]})

    def environment(self, pod: Object, container: Object) -> dict[str, str]:
        """Return the environment variables of a container, without those of its image."""
        variables = self._service_links() if pod.get("enableServiceLinks", True) else {}
        for variable in container.get("env", []):
            variables[variable["name"]] = expand(self._value(variable), variables)
        return variables

    def command(self, pod: Object, container: Object) -> list[str]:
        environment = self.environment(pod, container)
        parts = [*container["command"], *container.get("args", [])]
        return [expand(part, environment) for part in parts]

    def content(self, volume: Object) -> dict[str, str] | None:
        """Return the contents of a volume's files by name; None for an initially empty volume."""
        if "configMap" in volume:
            source = volume["configMap"]
            return _chosen(self.get("ConfigMap", source["name"])["data"], source)
        if "secret" in volume:
            source = volume["secret"]
            return _chosen(self._secret(source["secretName"]), source)
        return None

    def _value(self, variable: Object) -> str:
        if "value" in variable:
            return str(variable["value"])
        reference = variable["valueFrom"]["secretKeyRef"]
        return self._secret(reference["name"])[reference["key"]]

    def _secret(self, name: str) -> dict[str, str]:
        secret = self.get("Secret", name)
        encoded = {key: base64.b64decode(text).decode() for key, text in secret.get("data", {}).items()}
        return encoded | secret.get("stringData", {})

    def _service_links(self) -> dict[str, str]:
        """Return the variables that the kubelet adds for Services with an address, unless a pod declines them."""
        variables = {}
        for service in self.of_kind("Service"):
            if service["spec"].get("clusterIP") != "None":
                name = service["metadata"]["name"].upper().replace("-", "_")
                port = str(service["spec"]["ports"][0]["port"])
                variables |= {f"{name}_SERVICE_HOST": "127.0.0.1", f"{name}_SERVICE_PORT": port}
                variables |= {f"{name}_PORT": f"tcp://127.0.0.1:{port}"}
        return variables


def leaders(group: Object) -> Object:
    """Return the leaders of a LeaderWorkerSet as a StatefulSet: only their pods are called by others."""
    template = group["spec"]["leaderWorkerTemplate"]["leaderTemplate"]
    selector = {"matchLabels": template["metadata"]["labels"]}
    spec = {"replicas": group["spec"]["replicas"], "template": template, "selector": selector}
    return {**group, "spec": spec}


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a LabelSelector selects these labels; an empty selector selects all."""
    wanted = selector.get("matchLabels", {}).items() <= labels.items()
    return wanted and all(_fits(rule, labels) for rule in selector.get("matchExpressions", []))


def _fits(rule: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value = labels.get(rule["key"])
    if rule["operator"] == "In":
        return value in rule["values"]
    if rule["operator"] == "NotIn":
        return value not in rule["values"]
    return (value is not None) == {"Exists": True, "DoesNotExist": False}[rule["operator"]]


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Replace `$(NAME)` like Kubernetes; an unknown name is an error."""
    return _REFERENCE.sub(lambda match: environment[match[1]], text)


def _chosen(data: Mapping[str, str], source: Object) -> dict[str, str]:
    if "items" not in source:
        return dict(data)
    return {item["path"]: data[item["key"]] for item in source["items"]}


def texts(value: object) -> Iterator[str]:
    """Yield every text within an object."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from texts(part)
