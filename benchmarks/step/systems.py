"""Systems to measure: `LLM` in process, and services of any checkout."""

import asyncio
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from redis import Redis

from benchmarks.step.ledger import Reading, in_process_counters, process_counters, service_counters, used
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.system import LocalSystem
from specinfer.client import AsyncClient
from specinfer.hub import DEFAULT_MODEL
from specinfer.llm import LLM, SamplingParams
from specinfer.v1 import common_pb2, generation_pb2

Prompts = Sequence[Sequence[int]]


class System(Protocol):
    """A system that decodes plainly, with counters."""

    async def turn(self, prompts: Prompts, new_tokens: int) -> Reading:
        """Answer prompts concurrently; return the counters' increase."""


class InProcess:
    """`LLM` in this process."""

    def __init__(self) -> None:
        self._llm = LLM(DEFAULT_MODEL)
        self._pass_cpu_s = 0.0
        runner: Any = self._llm.runner
        forward = runner.forward

        def timed(segments: Any) -> Any:
            started = time.process_time()
            try:
                return forward(segments)
            finally:
                self._pass_cpu_s += time.process_time() - started

        runner.forward = timed

    async def turn(self, prompts: Prompts, new_tokens: int) -> Reading:
        """Answer prompts concurrently; return the counters' increase."""
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, speculation="off")
        before = in_process_counters(self._llm, self._pass_cpu_s)
        self._llm.generate([list(prompt) for prompt in prompts], params, use_tqdm=False)
        return used(before, in_process_counters(self._llm, self._pass_cpu_s))

    def close(self) -> None:
        self._llm.close()


class _Checkout(LocalSystem):
    """Services of a checkout, which may differ from this process'."""

    def __init__(self, options: LocalOptions, root: Path) -> None:
        super().__init__(options)
        self._root = root

    def program(self, module: str) -> tuple[list[str], Mapping[str, str]]:
        """Return a module's command; `-P` keeps this checkout off `sys.path`."""
        return [sys.executable, "-P", "-m", module], {"PYTHONPATH": str(self._root)}


class Services(AbstractAsyncContextManager["Services"]):
    """A local system with default speculators, and one client."""

    def __init__(self, root: Path, most_requests: int) -> None:
        self._root, self._most_requests = root, most_requests

    async def __aenter__(self) -> Self:
        verifier, gateway = free_ports(2)
        self._ports = {"verifier": verifier, "gateway": gateway}
        options = LocalOptions(
            gateway={"max-batch": str(self._most_requests), "metrics-port": str(gateway)},
            verifier={"metrics-port": str(verifier)},
        )
        self._system = _Checkout(options, self._root)
        self._system.__enter__()
        self._client = AsyncClient(self._system.address)
        self._redis = Redis.from_url(self._system.redis_url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._redis.close()
        await self._client.close()
        self._system.__exit__(kind, error, trace)

    async def turn(self, prompts: Prompts, new_tokens: int) -> Reading:
        """Answer prompts concurrently; return the counters' increase."""
        before = await self._read()
        replies = await asyncio.gather(*(self._answer(prompt, new_tokens) for prompt in prompts))
        return used(before, await self._read()) | {"messages.clients": float(sum(replies))}

    async def _read(self) -> Reading:
        pids = {name: child.pid for name, child in self._system.children.items()}
        counters = await service_counters(self._client, pids, self._ports, self._redis)
        return counters | process_counters("client", "self")

    async def _answer(self, prompt: Sequence[int], new_tokens: int) -> int:
        """Answer one request; return the number of replies."""
        message = generation_pb2.GenerateRequest(
            tokens=generation_pb2.TokenIds(ids=prompt),
            max_new_tokens=new_tokens,
            sampling=common_pb2.SamplingParams(temperature=0),
            speculation=generation_pb2.SPECULATION_OFF,
            ignore_eos=True,
        )
        async with self._client.stream(message) as stream:
            return len([piece async for piece in stream])
