"""Run a system with the gateway in this process, for other planners."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from prometheus_client import CollectorRegistry

from benchmarks.load import Load, generate_all
from gateway.app import Gateway, build_gateway, load_tokenizer
from gateway.settings import GatewaySettings
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from specinfer.client import AsyncClient
from specinfer.drafters.pools import Flags
from specinfer.engine.step import StepMachine
from specinfer.planning.table_planner import TablePlanner
from specinfer.service.server import ServiceServer
from specinfer.v1 import generation_pb2, generation_pb2_grpc


class _WithoutGateway(LocalSystem):
    """Local system of Redis and verifier, without a gateway process."""

    def _spawn(self, name: str, module: str, flags: Flags) -> None:
        if name != "gateway":
            super()._spawn(name, module, flags)

    def _wait(self, name: str, address: str) -> None:
        if name != "gateway":
            super()._wait(name, address)


@dataclass
class ThroughServices:
    """Answer groups of prompts through the gateway."""

    gateway: Gateway
    client: AsyncClient

    @property
    def machine(self) -> StepMachine:
        """Step machine of the verifier's session."""
        (session,) = self.gateway.sessions
        return session.loop.machine

    @property
    def planner(self) -> TablePlanner:
        """Planner that the gateway created."""
        assert isinstance(self.machine.planner, TablePlanner)
        return self.machine.planner

    async def tokens_and_seconds(
        self, prompts: Sequence[Sequence[int]], new_tokens: int
    ) -> tuple[int, float]:
        """Answer a group concurrently; return its tokens and seconds."""
        load = Load(len(prompts), generation_pb2.SPECULATION_TREE, new_tokens)
        started = time.perf_counter()
        answers = await generate_all(self.client, prompts, load)
        seconds = time.perf_counter() - started
        await asyncio.sleep(0.2)  # the planner learns from the last steps after the answers
        return sum(len(answer.token_ids) for answer in answers), seconds


@asynccontextmanager
async def through_services(options: LocalOptions, most_requests: int) -> AsyncIterator[ThroughServices]:
    """Start a system.

    Args:
        options: options of Redis and verifier, as for `specinfer up`.
        most_requests: maximum requests of a step.
    """
    with _WithoutGateway(options) as system:
        values: dict[str, Any] = {
            "listen": system.address,
            "model": options.model,
            "verifiers": system.verifier,
            "speculators": "",
            "redis_url": system.redis_url,
            "max_batch": most_requests,
            "metrics_port": 0,
        }
        settings = GatewaySettings(**values)
        async with build_gateway(settings, load_tokenizer(settings), CollectorRegistry()) as gateway:
            server = ServiceServer(settings, [], gateway.interceptors, settings.max_calls)
            generation_pb2_grpc.add_GenerationServicer_to_server(gateway.servicer, server.grpc)  # type: ignore[no-untyped-call]
            await server.start()
            client = AsyncClient(system.address)
            try:
                yield ThroughServices(gateway, client)
            finally:
                await client.close()
                await server.stop()
