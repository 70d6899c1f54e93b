"""Two systems side by side, one that drafts ahead and one that does not; speculators are far away from both."""

import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.system import SERVICE_ENVIRONMENT, LocalOptions, LocalSystem
from specinfer.drafters.pools import Flags
from specinfer.hub import DEFAULT_MODEL
from specinfer.service.server import INSTANCE_VARIABLE


class ReplayingSystem(LocalSystem):
    """As `LocalSystem`, with the benchmark's verifier."""

    texts: Path
    pass_ms: Path
    more_batches: Sequence[str] = ()
    """Further addresses of the verifier, each with a batch of its own."""

    def _spawn(self, name: str, module: str, flags: Flags) -> None:
        if module == "gateway":
            flags = {**flags, "verifiers": ",".join([self.verifier, *self.more_batches])}
        if module != "verifier_svc":
            return super()._spawn(name, module, flags)
        program = [sys.executable, "-m", "benchmarks.ahead.replaying_verifier"]
        listen = ",".join([flags["listen"], *self.more_batches])
        command = [*program, listen, str(self.texts), str(self.pass_ms)]
        environment = {**SERVICE_ENVIRONMENT, INSTANCE_VARIABLE: self.instance}
        self.children[name] = Child(name, command, self.logs / f"{name}.log", environment)
        return None


class FarSpeculators:
    """One speculator service behind a delay, and a system for each way of drafting."""

    def __init__(
        self, directory: Path, gateways: Mapping[str, Mapping[str, str]], ssm: Mapping[str, str]
    ) -> None:
        """Create them; in the directory are the texts. `gateways` are settings of each system's gateway.

        `ssm` are those of the speculator service.
        """
        self._pass_ms, self._round_trip_ms = directory / "pass_ms", directory / "round_trip_ms"
        self.set(0.0, 0.0)
        self._ports = free_ports(2)
        far, near = self._ports
        speculator = [
            sys.executable,
            "-m",
            "speculator_svc",
            "--listen",
            f"127.0.0.1:{near}",
            "--metrics-port",
            "0",
        ]
        speculator += [part for name, value in ssm.items() for part in (f"--{name}", value)]
        proxy = [
            sys.executable,
            "-m",
            "benchmarks.ahead.far_away",
            str(far),
            str(near),
            str(self._round_trip_ms),
        ]
        passive = {"OMP_WAIT_POLICY": "PASSIVE"}
        self._children = [
            Child("speculator", speculator, directory / "speculator.log", passive),
            Child("proxy", proxy, directory / "proxy.log", {}),
        ]
        self.systems: dict[str, ReplayingSystem] = {}
        for name, flags in gateways.items():
            options = LocalOptions(
                model=DEFAULT_MODEL, gateway=flags, speculators={}, addresses=[f"127.0.0.1:{far}"]
            )
            self.systems[name] = ReplayingSystem(options)
            self.systems[name].texts, self.systems[name].pass_ms = directory / "texts.json", self._pass_ms

    def set(self, pass_ms: float, round_trip_ms: float) -> None:
        """Set the least time of passes and the round trip to the speculators."""
        self._pass_ms.write_text(str(pass_ms))
        self._round_trip_ms.write_text(str(round_trip_ms))
        time.sleep(0.05)

    def __enter__(self) -> Self:
        for child, port in zip(self._children, reversed(self._ports), strict=True):
            wait_for_port(child, f"127.0.0.1:{port}", 60.0)
        for system in self.systems.values():
            system.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for system in self.systems.values():
            system.__exit__(kind, error, trace)
        for child in self._children:
            child.terminate()
            child.join(timeout_s=10)
