"""Run all pods of rendered manifests on this machine, each with its own loopback address."""

import secrets
from pathlib import Path
from types import TracebackType
from typing import Self

from specinfer.system.cache_directory import cache_directory
from tests.deploy.helm.rendered import Rendered, Workload
from tests.deploy.running.local_pod import Pod

_ORDER = [f"specinfer-{role}" for role in ("redis", "verifier", "speculator", "gateway", "http")]


class LocalCluster:
    """All pods, running within a context."""

    def __init__(self, objects: Rendered, directory: Path, model: Path) -> None:
        """Create the pods; `model` replaces every model that the manifests name."""
        self.objects, self._model = objects, model
        self.pods: dict[str, Pod] = {}
        self._network = f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}"
        """Random loopback network of this run, so that concurrent runs can all use the manifests' ports."""
        self._hosts: dict[str, str] = {}
        for workload in sorted(objects.workloads, key=lambda workload: _ORDER.index(workload.name)):
            for number in range(workload.replicas):
                self._hosts[f"{workload.name}-{number}"] = f"{self._network}.{10 + len(self._hosts)}"
        for workload in objects.workloads:
            for number in range(workload.replicas):
                self._add(workload, f"{workload.name}-{number}", directory)

    def __enter__(self) -> Self:
        try:
            for name in self._hosts:
                self.pods[name].start()
            for name in self._hosts:
                self.pods[name].wait_until_ready()
        except BaseException:  # nothing may stay behind
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pod in self.pods.values():
            pod.stop()

    def of(self, workload: str) -> list[Pod]:
        return [pod for pod in self.pods.values() if pod.workload.name == workload]

    def _add(self, workload: Workload, name: str, directory: Path) -> None:
        pod = Pod(self.objects, workload, name, self._hosts[name], directory / name, self._address)
        self.pods[name] = pod
        if "models" in [mount["name"] for mount in pod.container["volumeMounts"]]:
            self._put_models(pod)

    def _address(self, service: str) -> str:
        """Return the address of a Service's pod; a headless Service must have only one."""
        (workload,) = self.objects.behind(service)
        headless = self.objects.get("Service", service)["spec"].get("clusterIP") == "None"
        assert workload.replicas == 1 or not headless, service
        return self._hosts[f"{workload.name}-0"]

    def _put_models(self, pod: Pod) -> None:
        """Share models and compiled kernels with a pod, so that no test pulls or compiles."""
        environment = self.objects.environment(pod.workload.pod, pod.container)
        cache = pod.folder(environment["SPECINFER_CACHE"])
        (cache / "models").mkdir()
        named = [value for name, value in environment.items() if name.endswith("_MODEL")]
        for name in named:
            (cache / "models" / name.replace("/", "--")).symlink_to(self._model)
        (cache_directory() / "native").mkdir(parents=True, exist_ok=True)
        (cache / "native").symlink_to(cache_directory() / "native")
