"""Run a local system: Redis, verifier, speculators, gateway as child processes."""

import logging
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import (
    Child,
    check_http,
    check_listen_address,
    check_metrics_port,
    free_ports,
    wait_for_port,
)
from specinfer.cli.local.redis_server import (
    check_redis,
    find_redis_binary,
    redis_command,
    redis_url_from_environment,
)
from specinfer.drafters.draft import check_named_draft
from specinfer.drafters.pools import (
    MODEL_DRAFTERS,
    SERVICE_FLAGS,
    Flags,
    check_speculator,
)
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.hub.resolve import check_model_folder
from specinfer.service.channel import direct
from specinfer.service.outage import backoff
from specinfer.service.server import INSTANCE_VARIABLE, instance_service
from specinfer.system.machine import is_cuda

log = logging.getLogger(__name__)
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
"""First and longest pause before a speculator is restarted, in seconds."""
Report = Callable[[str], None]
START_TIMEOUT_S, _GPU_FACTOR = 180.0, 10
"""Maximum seconds until a service is ready; their factor on a GPU, which captures passes."""
SERVICE_ENVIRONMENT = {
    # idle threads of a service must not spin on cores that another service needs
    # (benchmarks/tried.md#passive-threads)
    "OMP_WAIT_POLICY": "PASSIVE",
    # gRPC's event engine passes messages through a further thread: a round trip takes 110 us instead of 70
    "GRPC_EXPERIMENTS": "-event_engine_client,-event_engine_listener",
}
"""Environment of the child processes; the user's own variables override it."""
NO_METRICS = {
    # several systems on a machine would use the same default ports
    "verifier_svc": {"SPECINFER_VERIFIER_METRICS_PORT": "0"},
    "speculator_svc": {"SPECINFER_SPECULATOR_METRICS_PORT": "0"},
    "gateway": {"SPECINFER_GATEWAY_METRICS_PORT": "0"},
}
"""Variables that disable a service's metrics; the user's variables override them."""
_TRY_OFTEN = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
)
"""Channel options: fast reconnection while a service starts."""


class LocalSystem:
    """System of child processes, started and stopped as a context manager."""

    def __init__(self, options: LocalOptions, report: Report = lambda _: None) -> None:
        self._options, self.report = options, report
        self.children: dict[str, Child] = {}
        self._pool = options.services
        self._redis_port, *ports = free_ports(3 + len(self._pool))
        gateway, self.verifier, *self.speculators = [f"127.0.0.1:{port}" for port in ports]
        self.address = options.listen or gateway
        self.redis_url = redis_url_from_environment() or ""
        self.instance = secrets.token_hex(8)
        """Random id in the services' health replies, to recognise our own services."""
        self._failed = False
        self._commands: dict[str, tuple[list[str], dict[str, str]]] = {}
        self._restarts = Counter[str]()
        self._due: dict[str, float] = {}
        """By ended speculator, the time of its restart in monotonic seconds."""

    @cached_property
    def logs(self) -> Path:
        """Directory of the services' logs; deleted unless a service failed."""
        return Path(tempfile.mkdtemp(prefix="specinfer-"))

    def __enter__(self) -> Self:
        self._check_first()
        try:
            self._start()
        except SpecInferError as error:
            self._failed = True
            self.__exit__()
            raise UnavailableError(f"{error}; logs in {self.logs}") from error
        except BaseException:  # also for Ctrl-C: stop the children
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()
        if not self._failed:
            shutil.rmtree(self.logs, ignore_errors=True)

    def stop(self) -> None:
        """End the children in reverse order of their start."""
        for child in reversed(self.children.values()):
            child.terminate()
        for child in reversed(self.children.values()):
            child.join(timeout_s=10.0)
        self.children.clear()

    def check(self) -> None:
        """Restart speculators that have ended."""
        try:
            for name, child in list(self.children.items()):
                if name in self._pool and (reason := child.end()):
                    self._restart(name, reason, time.monotonic())
                else:
                    child.check()
        except UnavailableError as error:
            self._failed = True
            raise UnavailableError(f"{error}; logs in {self.logs}") from error

    def _restart(self, name: str, reason: str, now: float) -> None:
        """Restart a speculator after a pause that doubles each time."""
        if name not in self._due:
            pause_s = backoff(_FIRST_PAUSE_S, self._restarts[name], _LONGEST_PAUSE_S)
            self._restarts[name] += 1
            self._due[name] = now + pause_s
            log.warning("%s; restarting it in %.0f s", reason, pause_s)
        if now >= self._due[name]:
            del self._due[name]
            self._launch(name)

    def _check_first(self) -> None:
        """Check models, addresses and Redis before any process starts."""
        check_model_folder(self._options.model)
        for flags in self._pool.values():
            check_speculator("speculator", flags, SERVICE_FLAGS)
        check_named_draft(self._options.model, self._options.hosted_draft, self._options.target)
        check_listen_address(self.address)
        if self._options.metrics:
            check_metrics_port()
        if self._options.http is not None:
            check_http(self._options.http)
        if self.redis_url:
            check_redis(self.redis_url)
        else:
            find_redis_binary()

    def _start(self) -> None:
        self.redis_url = self.redis_url or self._start_redis()
        model = {"model": self._options.model}
        device = {"device": self._options.device} if self._options.device is not None else {}
        common = {**model, "dtype": self._options.dtype, **device}
        draft = {"draft": self._options.hosted_draft}
        verifier = {"listen": self.verifier, **common, **draft, **self._options.verifier}
        services = {"verifier": (self.verifier, "verifier_svc", verifier)}
        for address, (name, flags) in zip(self.speculators, self._pool.items(), strict=True):
            drafters = flags.get("drafter", "").split("+")
            extra = {**common, "target": self._options.model} if MODEL_DRAFTERS & set(drafters) else {}
            if len(drafters) == 1:
                extra["name"] = name
            services[name] = address, "speculator_svc", {"listen": address, **extra, **flags}
        # on a GPU speculators load first: the verifier's cache gets what they leave of its memory
        groups = [[*self._pool], ["verifier"]] if self._on_gpu else [[*services]]
        for group in groups:
            for name in group:
                self._spawn(name, *services[name][1:])
            for name in group:
                self.wait_for(name, services[name][0])
        gateway = {
            "listen": self.address,
            "verifiers": self.verifier,
            "speculators": ",".join([*self.speculators, *self._options.addresses]),
            "redis-url": self.redis_url,
            **model,
            **self._options.gateway,
        }
        self._spawn("gateway", "gateway", gateway)
        self.wait_for("gateway", self.address)
        if self._options.http is not None:
            self._start_http(self._options.http)

    def _start_redis(self) -> str:
        port = self._redis_port
        self.report("starting redis")
        child = Child("redis", redis_command(port, self.logs), self.logs / "redis.log", {})
        self.children["redis"] = child
        wait_for_port(child, f"127.0.0.1:{port}", START_TIMEOUT_S)
        return f"redis://127.0.0.1:{port}/0"

    def _start_http(self, address: str) -> None:
        self.report("starting http")
        self._spawn(
            "http", "http_svc", {"listen": address, "gateways": self.address, **self._options.http_flags}
        )
        wait_for_port(self.children["http"], address, START_TIMEOUT_S)

    def program(self, module: str) -> tuple[list[str], Mapping[str, str]]:
        """Return the command and environment of a service.

        A benchmark may override this to start another program with the same interface.
        """
        return [sys.executable, "-m", module], {}

    @property
    def _on_gpu(self) -> bool:
        return is_cuda(self._options.device or "")

    def _spawn(self, name: str, module: str, flags: Flags) -> None:
        command, wanted_by_program = self.program(module)
        for key, value in flags.items():
            command += _arguments(key, value)
        wanted = dict(SERVICE_ENVIRONMENT)
        if module != "gateway" or not self._options.metrics:
            wanted |= NO_METRICS.get(module, {})
        environment = {key: text for key, text in wanted.items() if key not in os.environ}
        environment |= wanted_by_program
        environment[INSTANCE_VARIABLE] = self.instance
        self._commands[name] = command, environment
        self._launch(name)

    def _launch(self, name: str) -> None:
        command, environment = self._commands[name]
        self.children[name] = Child(name, command, self.logs / f"{name}.log", environment)

    def wait_for(self, name: str, address: str) -> None:
        """Wait until our own service at `address` is serving."""
        self.report(f"starting {name}")
        child, shown = self.children[name], ""
        timeout_s = START_TIMEOUT_S * (_GPU_FACTOR if self._on_gpu else 1)
        deadline = time.monotonic() + timeout_s
        with grpc.insecure_channel(address, [*_TRY_OFTEN, *direct()]) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            while time.monotonic() < deadline:
                child.check()
                if (progress := child.progress()) != shown:
                    self.report(f"{name}: {progress}")
                    shown = progress
                try:
                    request = health_pb2.HealthCheckRequest(service=instance_service(self.instance))
                    reply = stub.Check(request, timeout=1.0, wait_for_ready=True)
                except grpc.RpcError:
                    time.sleep(0.02)
                    continue  # not ready yet; UnavailableError follows after the timeout
                if reply.status == health_pb2.HealthCheckResponse.SERVING:
                    return
        raise UnavailableError(f"{name} is not serving after {timeout_s:.0f} s: {child.last_line()}")


def _arguments(key: str, value: str) -> list[str]:
    """Return a flag as command-line arguments; switches have no value."""
    flag = key.replace("_", "-")
    if value in ("true", "false"):
        return [f"--{flag}" if value == "true" else f"--no-{flag}"]
    return [f"--{flag}", value]
