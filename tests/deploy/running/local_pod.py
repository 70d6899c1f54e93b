"""Run a pod of rendered manifests as local processes, with the manifest's commands, variables and files.

Only locations change: the pod's loopback address replaces 0.0.0.0, addresses of other pods replace names of Services,
and folders of a temporary directory replace mounted paths. Ports stay.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.request import urlopen

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specinfer.cli.local.redis_server import find_redis_binary
from specinfer.errors import UnavailableError
from tests.deploy.helm.rendered import Object, Rendered, Workload, expand
from tests.support.preloaded import Started, start_service

START_S = 120.0
_PROGRAMS = {
    "python": [sys.executable],
    "specinfer": [sys.executable, "-m", "specinfer.cli"],
}
"""Commands that run the programs of this checkout instead of installed ones."""
_OF_THE_MACHINE = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
"""Environment variables that pods inherit from this machine."""


class Pod:
    """One pod: `start`, `wait_until_ready`, then `stop`."""

    def __init__(
        self,
        objects: Rendered,
        workload: Workload,
        name: str,
        address: str,
        directory: Path,
        addresses: Callable[[str], str],
    ) -> None:
        """Create the pod, and write the files of its volumes.

        Args:
            address: this pod's loopback address.
            addresses: returns a pod's address, given the name of a Service.
        """
        self.name, self.address, self.workload = name, address, workload
        self._objects, self._directory, self._addresses = objects, directory, addresses
        self._process: Started | None = None
        directory.mkdir(parents=True, exist_ok=True)
        (self.container,) = workload.pod["containers"]
        self._write_volumes()

    def folder(self, mount_path: str) -> Path:
        mounts = {row["mountPath"]: row["name"] for row in self.container["volumeMounts"]}
        assert mount_path in mounts, f"{self.name}: nothing is mounted at {mount_path}"
        return self._directory / str(mounts[mount_path])

    @property
    def log(self) -> str:
        """Return the output of the pod's processes."""
        return (self._directory / "log").read_text(errors="replace")

    def start(self) -> None:
        """Run the init containers, then start the container."""
        for container in self.workload.pod.get("initContainers", []):
            done = self._run(container).wait(START_S)
            assert done == 0, f"{self.name}: {container['name']} ended with {done}: {self.log[-500:]}"
        self._process = self._run(self.container)

    def wait_until_ready(self) -> None:
        """Wait for the startup probe, then for the readiness probe."""
        for kind in ("startupProbe", "readinessProbe"):
            self.wait_for(kind, passes=True)

    def wait_for(self, kind: str, passes: bool) -> None:
        """Wait until a probe passes (`passes`) or fails."""
        deadline = time.monotonic() + START_S
        while self.probe(kind) is not passes:
            self.check()
            assert time.monotonic() < deadline, (
                f"{self.name}: {kind} after {START_S:.0f} s: {self.log[-500:]}"
            )
            time.sleep(0.1)

    def check(self) -> None:
        """Raise UnavailableError if the container has ended by itself."""
        if self._process is not None and self._process.poll() is not None:
            raise UnavailableError(f"{self.name} ended with {self._process.poll()}: {self.log[-500:]}")

    def probe(self, kind: str) -> bool:
        """Run a probe once, like the kubelet; return whether it passes."""
        probe = self.container[kind]
        if "grpc" in probe:
            return self._ask_health(probe["grpc"]["port"], probe["grpc"].get("service", ""))
        if "exec" in probe:
            return self._run(self.container, probe["exec"]["command"]).wait(30) == 0
        if "httpGet" in probe:
            return self._answers(probe["httpGet"]["port"], probe["httpGet"]["path"])
        return self._connects(probe["tcpSocket"]["port"])

    def end(self) -> int:
        """End the pod like the kubelet (preStop, SIGTERM, SIGKILL after the grace period); return the exit code."""
        grace_s = self.workload.pod["terminationGracePeriodSeconds"]
        started = time.monotonic()
        if hook := self.container.get("lifecycle", {}).get("preStop"):
            time.sleep(hook["sleep"]["seconds"])
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        process, self._process = self._process, None
        try:
            return process.wait(grace_s - (time.monotonic() - started))
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def stop(self) -> None:
        """Kill the pod, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _run(self, container: Object, command: list[str] | None = None) -> Started:
        environment = self._objects.environment(self.workload.pod, container)
        written = command or [*container["command"], *container.get("args", [])]
        program, *arguments = [self._local(expand(part, environment)) for part in written]
        started = [*_PROGRAMS.get(program, [program]), *arguments]
        given = {name: self._local(text) for name, text in environment.items()} | _machine()
        return start_service(started, self._directory / "log", given)

    def _local(self, text: str) -> str:
        """Replace addresses and mounted paths in a text by those of this machine."""
        services = [row["metadata"]["name"] for row in self._objects.of_kind("Service")]
        paths = {row["mountPath"]: row["name"] for row in self.container.get("volumeMounts", [])}
        pattern = re.compile(
            rf"(?<![\w.-])(?:(?P<own>0\.0\.0\.0|127\.0\.0\.1)(?![\w.])|(?P<service>{_any_of(services)})(?=:\d))"
            rf"|(?<![\w./-])(?P<path>{_any_of(paths)})(?=[/\s]|$)"
        )

        def replaced(match: "re.Match[str]") -> str:
            if match["path"]:
                return str(self._directory / paths[match["path"]])
            return self.address if match["own"] else self._addresses(match["service"])

        return pattern.sub(replaced, text)

    def _write_volumes(self) -> None:
        volumes = {volume["name"]: volume for volume in self.workload.pod.get("volumes", [])}
        for mount in self.container["volumeMounts"]:
            folder = self.folder(mount["mountPath"])
            folder.mkdir(exist_ok=True)
            for name, text in (self._objects.content(volumes.get(mount["name"], {})) or {}).items():
                (folder / name).write_text(self._local(text))

    def _port(self, port: int | str) -> int:
        return port if isinstance(port, int) else self.workload.ports[port]

    def _ask_health(self, port: int, service: str) -> bool:
        with grpc.insecure_channel(f"{self.address}:{port}") as channel:
            request = health_pb2.HealthCheckRequest(service=service)
            try:
                reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=10)
            except grpc.RpcError as error:
                if isinstance(error, grpc.Call) and error.code() is grpc.StatusCode.NOT_FOUND:
                    raise LookupError(f"{self.name}: health knows no service {service!r}") from error
                return False
        return bool(reply.status == health_pb2.HealthCheckResponse.SERVING)

    def _answers(self, port: int | str, path: str) -> bool:
        try:
            with urlopen(f"http://{self.address}:{self._port(port)}{path}", timeout=10) as reply:
                return 200 <= reply.status < 400
        except OSError:
            return False

    def _connects(self, port: int | str) -> bool:
        try:
            socket.create_connection((self.address, self._port(port)), timeout=10).close()
        except OSError:
            return False
        return True


def _any_of(names: Iterable[str]) -> str:
    """Return a pattern of the names, the longest first."""
    return "|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)"


def _machine() -> dict[str, str]:
    """Return the environment of this machine for a pod; PATH has the programs of an image."""
    programs = os.pathsep.join([str(Path(find_redis_binary()).parent), os.environ["PATH"]])
    return {name: os.environ[name] for name in _OF_THE_MACHINE if name in os.environ} | {"PATH": programs}
