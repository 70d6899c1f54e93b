"""The system under test: Redis, verifiers, speculator services and gateways, each behind a proxy."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.redis_server import find_redis_binary
from specinfer.cli.local.system import SERVICE_ENVIRONMENT
from specinfer.errors import UnavailableError
from tests.chaos.failover import RedisRoles
from tests.chaos.faults import Fault, FaultKind
from tests.chaos.proxy import Proxy
from tests.chaos.service import Service

_STARTS = 10
_ENVIRONMENT = {**SERVICE_ENVIRONMENT, "OMP_NUM_THREADS": "1"}
Flags = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Shape:
    """The parts of a system."""

    gateways: int = 2
    verifiers: int = 2
    speculators: tuple[str, ...] = ("ngram", "ssm")
    """Drafters, each with its own service."""
    resident: tuple[str, ...] = ("ngram", "ssm")
    """Drafters that every verifier hosts."""
    lease_s: float = 1.0
    max_batch: int = 16
    proposal: str = "point"
    """Proposals of SSMs. If they draw, sampled texts depend on the steps. Then only greedy requests are compared
    with the undisturbed run, and all requests with Redis."""
    gateway_flags: tuple[tuple[str, str], ...] = ()

    @property
    def drawn(self) -> bool:
        """True if speculators draw."""
        return self.proposal != "point"


class ChaosSystem:
    """The whole system, within a context. Each gateway has its own proxy to Redis; other processes have one."""

    def __init__(self, shape: Shape, model: Path, directory: Path, clock: Callable[[], float]) -> None:
        self.shape, self._model, self._directory, self._clock = shape, model, directory, clock
        self.services: dict[str, Service] = {}
        self.links: dict[str, Proxy] = {}
        self._restarts: set[asyncio.Task[None]] = set()
        self.failed_starts = 0
        """Processes that ended during their start and were started again."""
        self._build()

    @property
    def addresses(self) -> list[str]:
        """Addresses of the gateways for clients."""
        return [self.links[name].address for name, s in self.services.items() if s.kind == "gateway"]

    async def __aenter__(self) -> "ChaosSystem":
        for proxy in self.links.values():
            await proxy.start()
        try:
            for kinds in (("redis", "standby", "verifier", "speculator"), ("gateway",)):
                chosen = [service for service in self.services.values() if service.kind in kinds]
                for service in chosen:
                    service.start()
                await asyncio.gather(*(service.ready() for service in chosen))
        except BaseException:  # nothing may stay behind
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._restarts:
            task.cancel()
        await asyncio.gather(*self._restarts, return_exceptions=True)
        for service in reversed(self.services.values()):
            service.resume()
            await service.stop()
        for proxy in self.links.values():
            await proxy.stop()

    def check(self) -> None:
        """Raise UnavailableError if a process has ended by itself."""
        for service in self.services.values():
            if not service.disturbed:
                service.check()
        for task in self._restarts:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def settled(self) -> None:
        """Wait until all killed or stopped processes are running again."""
        await asyncio.gather(*self._restarts)

    async def inject(self, fault: Fault) -> str | None:
        """Start a fault, and return its kind for the report; the recovery runs in the background.

        Return None if the target was already down.
        """
        if fault.kind in (FaultKind.CUT, FaultKind.DELAY):
            proxy = self.links[fault.target]
            if fault.kind is FaultKind.CUT:
                if not proxy.cut():
                    return None
            else:
                proxy.hold(fault.seconds)
            return f"{fault.kind.value} {fault.target.split('-')[0]}"
        if fault.kind is FaultKind.FAILOVER:
            return await self._fail_over()
        service = self.services[fault.target]
        if service.disturbed:
            return None
        service.disturbed = True
        work = self._kill if fault.kind is FaultKind.KILL else self._pause
        self._restarts.add(asyncio.create_task(work(service, fault.seconds)))
        return f"{fault.kind.value} {service.kind}"

    async def _fail_over(self) -> str | None:
        """Promote the standby Redis; return None if either server is down."""
        pair = [self.services["redis"], self.services["standby"]]
        if any(service.disturbed for service in pair):
            return None
        await self.redis.change()
        for link in self.links.values():
            if link.name.startswith("redis-"):
                link.turn_to(self.redis.primary)
        return "failover redis"

    async def _kill(self, service: Service, down_s: float) -> None:
        await service.kill()
        await asyncio.sleep(down_s)
        for attempt in range(_STARTS):
            service.start()
            try:
                await service.ready()
            except (
                UnavailableError
            ):  # what it needs at its start may be down, too: a supervisor starts it again
                if attempt == _STARTS - 1:
                    raise
                self.failed_starts += 1
            else:
                break
        service.disturbed = False

    async def _pause(self, service: Service, seconds: float) -> None:
        service.pause()
        await asyncio.sleep(seconds)
        service.resume()
        service.disturbed = False

    def _build(self) -> None:
        shape = self.shape
        redis = self._add("redis", "redis", redis_command, {})
        standby = self._add("standby", "standby", redis_command, {})
        self.redis = RedisRoles(redis.port, standby.port)
        model = {"model": str(self._model), "threads": "1"}
        verifier = model | {"dtype": "float32", "kv-tokens": "16384", "executor": "native"}
        if shape.resident:
            draws = f",proposal={shape.proposal}" if "ssm" in shape.resident else ""
            verifier["draft"] = "+".join(shape.resident) + draws
        verifiers = [
            self._serve(f"verifier-{n + 1}", "verifier", "tests.chaos.verifier", verifier)
            for n in range(shape.verifiers)
        ]
        ssm = model | {"dtype": "float32", "proposal": shape.proposal}
        speculators = []
        for drafter in shape.speculators:
            flags = {"drafter": drafter} | (ssm if "ssm" in drafter else {})
            speculators.append(self._serve(f"speculator-{drafter}", "speculator", "speculator_svc", flags))
        for n in range(shape.gateways):
            link = self._link(f"redis-{n + 1}", redis.port)
            flags = {
                "model": str(self._model),
                "verifiers": ",".join(self.links[s.name].address for s in verifiers),
                "speculators": ",".join(self.links[s.name].address for s in speculators),
                "redis-url": f"redis://{link.address}/0",
                "lease-seconds": str(shape.lease_s),
                "linger-seconds": "60",
                "redis-patience-seconds": "120",
                "verifier-patience-seconds": "120",
                "start-timeout-seconds": "110",
                "max-batch": str(shape.max_batch),
                **dict(shape.gateway_flags),
            }
            self._serve(f"gateway-{n + 1}", "gateway", "gateway", flags)
        del self.links["redis"], self.links["standby"]  # each gateway has its own

    def _serve(self, name: str, kind: str, package: str, flags: Flags) -> Service:
        def command(port: int, _: Path) -> list[str]:
            parts = [part for key, value in flags.items() for part in (f"--{key}", value)]
            listen = ("--listen", f"127.0.0.1:{port}", "--metrics-port", "0")
            return [sys.executable, "-m", package, *listen, *parts]

        return self._add(name, kind, command, _ENVIRONMENT)

    def _add(
        self, name: str, kind: str, command: Callable[[int, Path], list[str]], environment: Flags
    ) -> Service:
        (port,) = free_ports(1)
        service = Service(name, kind, port, command(port, self._directory), self._directory, environment)
        self.services[name] = service
        self._link(name, port)
        return service

    def _link(self, name: str, target_port: int) -> Proxy:
        (port,) = free_ports(1)
        self.links[name] = Proxy(name, port, target_port, self._clock)
        return self.links[name]


def redis_command(port: int, directory: Path) -> list[str]:
    """Return the command of a Redis that loses no data when its process is killed.

    Redis writes its append-only file before it answers, and the kernel keeps written data when the process dies.
    With `appendfsync everysec`, Redis may answer before it writes: during an earlier fsync, it defers the write for
    up to two seconds. `no` never defers. This test assumes that the machine stays up; otherwise use `always`.
    Each server has its own folder: two that start at once in one folder take away each other's files.
    """
    own = directory / f"redis-{port}"
    own.mkdir(exist_ok=True)
    options = {
        "bind": "127.0.0.1",
        "port": str(port),
        "dir": str(own),
        "save": "",
        "appendonly": "yes",
        "appendfsync": "no",
        "daemonize": "no",
    }
    return [find_redis_binary(), *(part for key, value in options.items() for part in (f"--{key}", value))]
