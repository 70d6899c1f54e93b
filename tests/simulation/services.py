"""Processes of a world: gateways, verifiers and speculators, made of the real parts."""

import asyncio
import math
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry

from gateway.app import Gateway, build_gateway
from gateway.session.constraints import Constraints
from gateway.settings import GatewaySettings
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import Store
from gateway.store.redis import RedisStore
from specinfer.drafters import DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.engine.host import Host
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.remote.description import describe
from specinfer.service.in_process import SCHEME
from specinfer.text.constraints.masks import MaskState, MaskThreads
from specinfer.tree import ProposalKind, TokenTree, TreeBuilder
from specinfer.v1 import generation_pb2_grpc, speculator_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import Network, Server
from tests.simulation.plan import Plan
from tests.simulation.redis import SimulatedConnection, SimulatedRedis
from tests.simulation.target import EOS, likely, target_compiler, target_runner
from tests.support.oracle import chain
from tests.support.system import VOCABULARY, ScriptedDrafter, ascii_tokenizer
from verifier_svc.metrics import VerifierMetrics
from verifier_svc.resident import ResidentSpeculators
from verifier_svc.servicer import VerifierServicer

_PASS_S = (0.01, 0.05)
TOKENIZER = ascii_tokenizer()
_FINGERPRINT = TOKENIZER.fingerprint()


class SimulatedThread:
    """The thread of an engine or of a store, whose calls take virtual time."""

    def __init__(self, draw: Random, seconds: tuple[float, float] = _PASS_S) -> None:
        self.name, self._draw, self._seconds = "engine", draw, seconds
        self._one, self._waiting = asyncio.Lock(), 0

    @property
    def waiting(self) -> bool:
        return self._waiting > 0

    async def call(self, function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
        """Run `function` after the calls before it."""
        self._waiting += 1
        try:
            await self._one.acquire()
        finally:
            self._waiting -= 1
        try:
            await asyncio.sleep(self._draw.uniform(*self._seconds))
            return function(*arguments, **more)
        finally:
            self._one.release()

    def stop(self) -> None:
        """Do nothing: the calls that wait are not made any more."""


class SimulatedMasks(MaskThreads):
    """Masks that are computed at once, or late by a step."""

    def __init__(self, clock: Callable[[], float], draw: Random) -> None:
        super().__init__(budget_s=math.inf)
        self._clock, self._draw = clock, draw
        self.late_until = 0.0
        self._later: list[tuple[Future[MaskState | None], Callable[[], MaskState | None]]] = []

    def wait_for(self, seconds: float) -> None:
        later, self._later = self._later, []
        for future, work in later:
            _compute(future, work)

    def submit(self, expensive: bool, work: Callable[[], MaskState | None]) -> "Future[MaskState | None]":
        future = Future[MaskState | None]()
        if self._clock() < self.late_until and self._draw.random() < 0.5:
            self._later.append((future, work))
        else:
            _compute(future, work)
        return future


def _compute(future: "Future[MaskState | None]", work: Callable[[], MaskState | None]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as error:  # noqa: BLE001  # passed to whoever asks for the mask
            future.set_exception(error)


class _Checked(Constraints):
    """Constraints that are compiled before the world begins."""

    def prepare(self, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        self._compiler = target_compiler()

    async def check(self, constraint: Any) -> None:
        target_compiler().begin(constraint).result()

    async def close(self) -> None:
        """Do nothing: all worlds share the compiler."""


class Guesser(ScriptedDrafter):
    """A drafter that is right for a while, and may be told to send wrong trees."""

    def __init__(self, draw: Random, drawing: bool) -> None:
        super().__init__(self._tree)
        self._draw, self._drawing, self.wrong = draw, drawing, False
        self.description = DrafterDescription(draws=drawing)

    def _tree(self, job: DraftJob) -> TokenTree:
        if self.wrong:
            return chain(job.context[-1] ^ 1, [5])
        if self._drawing and not job.sampling.greedy:
            return self._drawn(job)
        tokens, context = [], list(job.context)
        for _ in range(min(job.limits.nodes, job.limits.depth)):
            context.append(likely(context, 0 if self._draw.random() < 0.7 else 1))
            tokens.append(context[-1])
        return chain(job.context[-1], tokens)

    def _drawn(self, job: DraftJob) -> TokenTree:
        """Draw a branch; another draft of the same context would draw another one."""
        builder, node, context = TreeBuilder(job.context[-1]), 0, list(job.context)
        for _ in range(min(job.limits.nodes, job.limits.depth)):
            choices = sorted([likely(context, 0), likely(context, 1)])
            context.append(self._draw.choice(choices))
            q = np.array(choices, np.int32), np.array([0.5, 0.5], np.float32)
            (node,) = builder.propose_samples(node, ProposalKind.WITHOUT_REPLACEMENT, [context[-1]], q)
        return builder.build()


class VerifierProcess:
    """A verifier service."""

    def __init__(self, world: "Parts", number: int, generation: int) -> None:
        self.process = Process(world.loop, f"v{number}")
        draw, plan = Random(f"{world.plan.seed} verifier {number} {generation}"), world.plan
        runner, self.masks = target_runner(plan.kv_tokens), SimulatedMasks(world.loop.time, draw)
        limits = EngineLimits(max_context_len=512, idle_seconds=60.0)
        compiler, now = target_compiler(), world.loop.time
        self.engine = VerifierEngine(runner, limits=limits, clock=now, compiler=compiler, masks=self.masks)
        self.guesser = Guesser(draw, plan.drawing)
        drafters = SpeculatorEngine([self.guesser], max_nodes=32) if plan.resident else None
        residents = ResidentSpeculators(drafters, ["resident"] if drafters else [], runner)
        description = verifier_pb2.DescribeVerifierReply(
            model="hash",
            vocab_size=VOCABULARY,
            tokenizer_fingerprint=_FINGERPRINT,
            max_context_len=limits.max_context_len,
            max_requests=limits.max_requests,
            max_nodes=limits.max_nodes,
            max_step_tokens=limits.max_step_tokens,
            kv_capacity_tokens=runner.cache.capacity_tokens,
            kv_block_tokens=BLOCK_TOKENS,
            pass_costs=[
                verifier_pb2.PassCost(tokens=n, microseconds=us) for n, us in ((1, 1000), (64, 2000))
            ],
            eos_token_ids=[EOS],
            model_fingerprint="hash",
            instance_id=f"v{number}.{generation}",
        )
        if drafters is not None:
            description.resident.CopyFrom(residents.description)
        metrics = VerifierMetrics(CollectorRegistry(), ["resident"] if drafters else [])
        self.host = Host(residents.pool, self.engine, compiler, clock=now)
        servicer = VerifierServicer(self.host, SimulatedThread(draw), metrics, description)  # type: ignore[arg-type]
        self.server = Server(self.process.name, self.process, world.network)
        verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, self.server)


class SpeculatorProcess:
    """A speculator service with one drafter."""

    def __init__(self, world: "Parts", number: int, generation: int) -> None:
        self.process = Process(world.loop, f"s{number}")
        draw = Random(f"{world.plan.seed} speculator {number} {generation}")
        self.guesser = Guesser(draw, world.plan.drawing)
        engine = SpeculatorEngine([self.guesser], max_nodes=32)
        reply = describe(engine, ["guess"], ["scripted"], f"s{number}.{generation}")
        metrics = SpeculatorMetrics(CollectorRegistry(), ["guess"], None)
        servicer = SpeculatorServicer(engine, SimulatedThread(draw), metrics, reply)  # type: ignore[arg-type]
        self.server = Server(self.process.name, self.process, world.network)
        speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, self.server)


class GatewayProcess:
    """A gateway service, which runs until it is killed or drained."""

    def __init__(self, world: "Parts", number: int, generation: int) -> None:
        self.world, self.name = world, f"g{number}.{generation}"
        self.process = Process(world.loop, f"g{number}")
        self.gateway: Gateway | None = None
        self.stop = asyncio.Event()
        self.ready = asyncio.Event()
        self.store: Store | None = None
        self.task = self.process.start(self._run())

    async def _run(self) -> None:
        plan, address = self.world.plan, self.process.name
        settings = _settings().model_copy(
            update={
                "verifiers": ",".join(f"{SCHEME}v{number}" for number in range(plan.verifiers)),
                "speculators": ",".join(f"{SCHEME}s{number}" for number in range(plan.speculators)),
                "redis_url": "embedded:" if plan.embedded else "redis://redis:6379/0",
                "max_batch": plan.max_batch,
                "lease_seconds": plan.lease_s,
                "adaptive": plan.seed % 2 == 0,
            }
        )
        self.store = self._store(plan)
        async with build_gateway(
            settings,
            TOKENIZER,
            CollectorRegistry(),
            clock=self.world.loop.time,
            store=self.store,
            constraints=_Checked(TOKENIZER),
        ) as self.gateway:
            server = Server(address, self.process, self.world.network)
            generation_pb2_grpc.add_GenerationServicer_to_server(self.gateway.servicer, server)
            self.ready.set()
            await self.stop.wait()
            await self.gateway.drain()
            server.close()

    def _store(self, plan: Plan) -> Store:
        if not plan.embedded:
            return RedisStore(SimulatedConnection(self.world.redis), self.name, 600, lease_s=plan.lease_s)
        thread: Any = SimulatedThread(Random(f"{plan.seed} store {self.name}"), (0.0, 0.002))
        clock = self.world.loop.time
        return EmbeddedStore(self.name, 600, path=self.world.file, clock=clock, thread=thread)

    def kill(self) -> None:
        if not self.process.alive:
            return
        self.process.kill()
        if isinstance(self.store, EmbeddedStore):
            self.store.database.close()  # the system closes the files of a dead process


@cache
def _settings() -> GatewaySettings:
    """Return the settings of all worlds; reading them takes longer than many steps."""
    return GatewaySettings(
        listen="127.0.0.1:0",
        tree_nodes=6,
        step_nodes=24,
        linger_seconds=60.0,
        drain_seconds=2.0,
        start_timeout_seconds=1e6,
        verifier_patience_seconds=300.0,
        redis_patience_seconds=300.0,
    )


class Parts:
    """The shared parts of a world's processes."""

    def __init__(self, loop: SimulatedLoop, plan: Plan) -> None:
        self.loop, self.plan = loop, plan
        self.draw = Random(f"{plan.seed} world")
        self.network = Network(loop, self.draw)
        self.redis = SimulatedRedis(loop, self.network, self.draw)
        self._folder = tempfile.TemporaryDirectory(dir=_shared_memory()) if plan.embedded else None
        self.file = Path(self._folder.name) / "store" if self._folder is not None else None

    def close(self) -> None:
        if self._folder is not None:
            self._folder.cleanup()


def _shared_memory() -> str | None:
    folder = Path("/dev/shm")  # a file system in memory; elsewhere the usual directory
    return str(folder) if folder.is_dir() else None
