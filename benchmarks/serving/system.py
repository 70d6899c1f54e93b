"""Redis, a verifier of fixed step time and one gateway, each a process of its own."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.serving.steps import FixedStep, read_steps
from benchmarks.serving.streams import Order, StreamOutcome
from specinfer.cli.local.processes import Child, free_ports, wait_for_port
from specinfer.cli.local.redis_server import redis_command
from specinfer.cli.local.system import SERVICE_ENVIRONMENT
from specinfer.service.channel import open_channel, wait_until_serving

VERIFIER_FLAG = "verifiers"
"""The gateway's setting that names verifiers."""
GATEWAY, GATEWAY_WITHOUT_STORE = "gateway", "benchmarks.serving.storeless_gateway"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class Setup:
    """The parts and the settings of the measured system."""

    model: str
    """The model whose tokenizer is used."""
    step_ms: float = 20.0
    max_batch: int = 256
    module: str = GATEWAY
    """The gateway's program."""
    flags: Mapping[str, str] = field(default_factory=dict)
    """Further settings of the gateway."""


class ServingSystem:
    """Runs while the context is open."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self._children = setup, list[Child]()
        self._directory = tempfile.TemporaryDirectory(prefix="specinfer-load-")
        self._ports = free_ports(3)
        self.address = f"127.0.0.1:{self._ports[2]}"

    async def __aenter__(self) -> Self:
        redis, verifier, _ = self._ports
        path, listen = Path(self._directory.name), f"127.0.0.1:{verifier}"
        child = self._start("redis", redis_command(redis, path))
        wait_for_port(child, f"127.0.0.1:{redis}", _START_S)
        program = [sys.executable, "-m", "benchmarks.serving.fixed_verifier"]
        self._start(
            "verifier", [*program, listen, self.setup.model, str(self.setup.step_ms), str(self._steps)]
        )
        await self._serving(listen)
        self._gateway = self._start("gateway", self._gateway_command(redis, listen))
        await self._serving(self.address)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for child in reversed(self._children):
            child.terminate()
            child.join(timeout_s=10)
        self._directory.cleanup()

    @property
    def gateway_pid(self) -> int:
        """The gateway's process."""
        return self._gateway.pid

    def steps(self, first: int = 0) -> list[FixedStep]:
        """Return what the verifier has seen, from this step on."""
        return read_steps(self._steps, first)

    async def run(self, orders: Sequence[Order]) -> list[list[StreamOutcome]]:
        """Streams from a process of their own; the outcomes of each order."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.serving.streams", self.address),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**SERVICE_ENVIRONMENT, **os.environ},
        )
        lines = "".join(json.dumps(asdict(order)) + "\n" for order in orders)
        try:
            output, _ = await process.communicate(lines.encode())
        except asyncio.CancelledError:
            process.kill()
            raise
        return [[StreamOutcome(**each) for each in outcomes] for outcomes in json.loads(output)]

    @property
    def _steps(self) -> Path:
        return Path(self._directory.name) / "steps"

    def _gateway_command(self, redis: int, verifier: str) -> list[str]:
        flags = {
            "listen": self.address,
            VERIFIER_FLAG: verifier,
            "redis-url": f"redis://127.0.0.1:{redis}/0",
            "model": self.setup.model,
            "max-batch": str(self.setup.max_batch),
            "max-waiting": "4096",
            "metrics-port": "0",
        } | dict(self.setup.flags)
        return [
            sys.executable,
            "-m",
            self.setup.module,
            *(p for k, v in flags.items() for p in (f"--{k}", v)),
        ]

    def _start(self, name: str, command: Sequence[str]) -> Child:
        log = Path(self._directory.name) / f"{name}.log"
        self._children.append(Child(name, command, log, {**SERVICE_ENVIRONMENT, **os.environ}))
        return self._children[-1]

    async def _serving(self, address: str) -> None:
        channel = open_channel(address)
        try:
            waiting = asyncio.create_task(wait_until_serving(channel, self._children[-1].name, _START_S))
            while not waiting.done():
                self._children[-1].check()
                await asyncio.wait([waiting], timeout=0.2)
            await waiting
        finally:
            await channel.close()
