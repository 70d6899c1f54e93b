"""A whole system in one process: real gRPC servers, real Redis, tiny models, scripted drafters.

The tokenizer has one token per printable ASCII character, so that text and tokens are easy to compare.
"""

import asyncio
import secrets
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias
from unittest.mock import patch

import grpc
import pytest
from prometheus_client import CollectorRegistry
from tokenizers import Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from gateway.app import Gateway, build_gateway
from gateway.session.limits import scheduler_limits
from gateway.session.loop import SessionLoop
from gateway.settings import GatewaySettings
from gateway.store.protocol import Store
from gateway.store.records import Record
from specinfer.cli.local.processes import free_ports
from specinfer.drafters import Drafter, DrafterDescription, DraftJob
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.engine.host import Host
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.options.model_options import DEFAULT_RULE
from specinfer.remote.description import describe
from specinfer.remote.policy import PoolPolicy
from specinfer.scheduling.limits import SchedulerLimits
from specinfer.service.channel import channel_options
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.threads import EngineThread
from specinfer.service.tracing import Tracer
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.online.learner import Learner
from specinfer.tree import TokenTree
from specinfer.v1 import (
    generation_pb2,
    generation_pb2_grpc,
    learning_pb2_grpc,
    speculator_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
)
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits
from speculator_svc.learning_servicer import LearningServicer
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from tests.support.services import description_of
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.metrics import VerifierMetrics
from verifier_svc.resident import ResidentSpeculators
from verifier_svc.servicer import VerifierServicer

LearnerOf: TypeAlias = Callable[[SpeculatorEngine, EngineThread], Learner]
EOS = 2
DEFAULTS: dict[str, Any] = {
    "max_batch": 8,
    "tree_nodes": 8,
    "step_nodes": 64,
    "linger_seconds": 0.0,
    "drain_seconds": 0.2,
    "redis_patience_seconds": 60.0,
}
"""Default settings of the gateway."""
SHAPE = {"tree_depth": 4, "sequence_length": 3}
"""Default limits of trees that are not settings; depth 0: as deep as the verifier allows nodes."""
FIRST_CHARACTER = 2
VOCABULARY = 97
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def ascii_tokenizer(swap: bool = False) -> Tokenizer:
    """Return a tokenizer: ids 0 and 1 are special, 2 + i is chr(32 + i); `swap` makes it incompatible."""
    characters = {chr(32 + i): FIRST_CHARACTER + i for i in range(95)}
    vocabulary = {"<pad>": 0, "<bos>": 1} | {_as_byte(text): token for text, token in characters.items()}
    if swap:
        vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    fast = FastTokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    bytes_of_text = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [bytes_of_text, pre_tokenizers.Split(Regex("."), "isolated")]
    )
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(["<pad>", "<bos>"])
    return Tokenizer(fast, CHAT_TEMPLATE, {})


def _as_byte(character: str) -> str:
    """Return a character as byte-level tokenizers write it: only blanks differ."""
    return "\u0120" if character == " " else character


def text_of(tokens: Sequence[int]) -> str:
    return "".join(chr(32 + t - FIRST_CHARACTER) for t in tokens if t >= FIRST_CHARACTER)


class ScriptedDrafter:
    """A drafter whose trees come from a function of the job; it records the jobs."""

    def __init__(self, script: Callable[[DraftJob], TokenTree | SpecInferError]) -> None:
        self.script = script
        self.jobs: list[DraftJob] = []
        self.released: list[str] = []
        self.description = DrafterDescription()

    def draft(self, jobs: Sequence[DraftJob]) -> list[TokenTree | SpecInferError]:
        self.jobs.extend(jobs)
        return [TokenTree.root_only(j.context[-1]) if j.limits.empty else self.script(j) for j in jobs]

    def release(self, request_id: str) -> None:
        self.released.append(request_id)


@dataclass(slots=True)
class System:
    """A running system: all its parts, and a client of the gateway."""

    stub: generation_pb2_grpc.GenerationStub
    gateway: Gateway
    verifier: VerifierEngine
    address: str
    verifier_address: str
    servers: dict[str, ServiceServer] = field(default_factory=dict)
    servicers: list[VerifierServicer] = field(default_factory=list)
    """Servicers of the verifiers."""
    verifiers: Sequence[VerifierEngine] = ()
    registries: dict[str, CollectorRegistry] = field(default_factory=dict)
    """Metrics of "gateway", "verifier" and each speculator service."""

    @property
    def loop(self) -> SessionLoop:
        (session,) = self.gateway.sessions
        return session.loop

    @property
    def host(self) -> Host:
        """The host of the first verifier."""
        return self.servicers[0]._host

    @property
    def store(self) -> Store:
        """The requests in Redis."""
        return self.gateway.store

    async def ended(self, request_id: str) -> Record:
        """Wait until a request's end is stored, which follows its release; return its record."""
        async with asyncio.timeout(60):
            while not (record := await self.store.load(request_id)) or not record.ending:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        return record

    def forget_every(self, steps: int) -> list[int]:
        """Let the verifier drop all requests of every `steps`-th step; the returned list gets an entry per step."""
        verify, seen = self.verifier.verify, list[int]()

        def forgetful(jobs: Any) -> Any:
            seen.append(len(jobs))
            if len(seen) % steps == 0:
                self.verifier.release([job.request_id for job in jobs])
            return verify(jobs)

        self.verifier.verify = forgetful  # type: ignore[method-assign]
        return seen

    def generated(self, request_id: str) -> int:
        """Return the number of an answer's committed tokens; 0 if the request does not run here."""
        state = self.loop.scheduler.states.get(request_id)
        return state.new_tokens if state is not None else 0

    def hold(self, waits: Callable[[], bool] = lambda: True) -> asyncio.Event:
        """Delay passes while `waits()` is true, until the returned event is set."""
        verify, go_on = self.loop.verifier.verify, asyncio.Event()

        async def delayed(*arguments: Any) -> Any:
            await until(lambda: go_on.is_set() or not waits())
            return await verify(*arguments)

        self.loop.verifier.verify = delayed  # type: ignore[method-assign]
        return go_on

    async def generate(self, prompt: Sequence[int], **fields: Any) -> list[generation_pb2.GenerateReply]:
        """Return all replies to a greedy request; `fields` override its fields."""
        return [reply async for reply in self.stub.Generate(request_for(prompt, **fields))]

    async def tokens(self, prompt: Sequence[int], **fields: Any) -> list[int]:
        """Return all generated tokens of a request."""
        return [t for reply in await self.generate(prompt, **fields) for t in reply.token_ids]


def request_for(prompt: Sequence[int], **fields: Any) -> generation_pb2.GenerateRequest:
    """Return a greedy request; `fields`: the message's fields, `temperature` and `seed`."""
    sampling = {"temperature": fields.pop("temperature", 0.0)}
    for name in ("seed", "top_p", "top_k"):
        if name in fields:
            sampling[name] = fields.pop(name)
    defaults = {
        "request_id": secrets.token_hex(6),
        "max_new_tokens": 16,
        "sampling": sampling,
        "ignore_eos": True,
        "tokens": generation_pb2.TokenIds(ids=prompt),
    }
    if "text" in fields or "chat" in fields:
        del defaults["tokens"]
    return generation_pb2.GenerateRequest(**(defaults | fields))


@asynccontextmanager
async def running_system(
    redis_url: str,
    drafters: Mapping[str, Drafter] | None = None,
    *,
    model: Any = None,
    engine_limits: EngineLimits | None = None,
    acceptance: str = DEFAULT_RULE,
    deadline_s: float = 10.0,
    hung_s: float = 60.0,
    patience_s: float = 60.0,
    lease_s: float = 3.0,
    adaptive: bool = False,
    kv_tokens: int = 2048,
    kv_window: int = 0,
    speculator_tokenizer: Tokenizer | None = None,
    one_service: bool = False,
    resident: AbstractSet[str] | bool = False,
    absent: AbstractSet[str] = frozenset(),
    eos: int = EOS,
    verifiers: int = 1,
    service_options: Mapping[str, Any] | None = None,
    tracer: Tracer | None = None,
    learner_of: LearnerOf | None = None,
    **options: Any,
) -> AsyncIterator[System]:
    """Run verifiers, speculators and gateway within the context; check the caches at the end.

    Every drafter has its own service, unless `one_service` is set; drafters in `absent` are not started.
    `resident` drafters, by name or all, run in the verifier instead.
    `learner_of` makes the learner of speculator services, which then learn.
    `service_options` are settings of the services' servers, `options` further settings of the gateway.
    """
    tokenizer = ascii_tokenizer()
    engine_limits = engine_limits or EngineLimits(max_context_len=512)
    model = model or tiny_transformers("llama")
    runners = [runner_of(model, kv_tokens=kv_tokens, kv_window=kv_window) for _ in range(verifiers)]
    compiler = Compiler(tokenizer.to_json(), VOCABULARY, [eos])
    engines = [VerifierEngine(runner, acceptance, engine_limits, compiler=compiler) for runner in runners]
    drafters = drafters or {}
    hosted = {
        name: drafters[name] for name in drafters if resident is True or (resident and name in resident)
    }
    drafters = {name: drafter for name, drafter in drafters.items() if name not in hosted}
    servers: dict[str, ServiceServer] = {}
    threads: list[EngineThread] = []
    registries: dict[str, CollectorRegistry] = defaultdict(CollectorRegistry)

    async def serve(name: str, service: str, add: Callable[[ServiceServer, EngineThread], None]) -> str:
        servers[name] = server = ServiceServer(settings(**service_options or {}), [service])
        threads.append(EngineThread(name))
        add(server, threads[-1])
        return f"127.0.0.1:{await server.start()}"

    description = description_of(
        engines[0],
        model="tiny",
        tokenizer_fingerprint=tokenizer.fingerprint(),
        pass_costs=[verifier_pb2.PassCost(tokens=n, microseconds=us) for n, us in ((1, 1000), (64, 2000))],
        eos_token_ids=[eos],
        kv_window_tokens=kv_window,
        model_fingerprint="tiny",
        hidden_size=runners[0].config.hidden_size,
        feature_layers=runners[0].feature_layers,
    )
    verifier_addresses, servicers = [], list[VerifierServicer]()
    for number, engine in enumerate(engines):

        def add_verifier(
            server: ServiceServer, thread: EngineThread, engine: VerifierEngine = engine
        ) -> None:
            verifier_reply = verifier_pb2.DescribeVerifierReply()
            verifier_reply.CopyFrom(description)
            verifier_reply.instance_id = secrets.token_hex(4)
            metrics = VerifierMetrics(registries[thread.name], list(hosted))
            drafters = SpeculatorEngine(list(hosted.values()), max_nodes=64) if hosted else None
            residents = ResidentSpeculators(drafters, list(hosted), engine.runner)
            if hosted:
                verifier_reply.resident.CopyFrom(residents.description)
            host = Host(residents.pool, engine, compiler)
            servicer = VerifierServicer(host, thread, metrics, verifier_reply, tracer)
            servicers.append(servicer)
            verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)

        name = f"verifier-{number}" if number else "verifier"
        verifier_addresses.append(await serve(name, "specinfer.v1.Verifier", add_verifier))
    addresses = []
    for group in [drafters] if one_service else [{name: drafters[name]} for name in drafters]:

        def add(server: ServiceServer, thread: EngineThread, group: Mapping[str, Drafter] = group) -> None:
            registry = registries[thread.name]
            add_speculators(server, thread, group, speculator_tokenizer, registry, tracer, learner_of)

        if absent & group.keys():
            addresses.append(f"127.0.0.1:{free_ports(1)[0]}")
        else:
            addresses.append(await serve("+".join(group), "specinfer.v1.Speculator", add))

    shape = {name: options.pop(name, usual) for name, usual in SHAPE.items()}
    gateway_settings = GatewaySettings(
        listen="127.0.0.1:0",
        verifiers=",".join(verifier_addresses),
        speculators=",".join(addresses),
        redis_url=redis_url,
        verifier_patience_seconds=patience_s,
        lease_seconds=lease_s,
        adaptive=adaptive,
        **DEFAULTS | options,
    )
    try:
        registry = registries["gateway"]
        with (
            patch.object(GatewaySettings, "hung_seconds", hung_s),
            patch("gateway.session.session.PoolPolicy", partial(PoolPolicy, deadline_s=deadline_s)),
            patch("gateway.session.session.scheduler_limits", partial(limits_of, shape)),
        ):
            async with another_gateway(gateway_settings, registry, tracer) as (gateway, stub, address):
                system = System(
                    stub,
                    gateway,
                    engines[0],
                    address,
                    verifier_addresses[0],
                    servers,
                    servicers,
                    engines,
                    registries,
                )
                yield system
                if system.gateway is gateway:  # unless the test has closed it
                    assert not gateway.running.done(), gateway.running
    finally:
        for server in reversed(servers.values()):
            await server.stop()
        for thread in threads:
            thread.stop()
        for engine in engines:
            engine.release(list(engine._cached))
            engine.runner.cache.check()


def limits_of(shape: Mapping[str, int], *described: Any) -> SchedulerLimits:
    """Return the gateway's limits with these tree limits."""
    limits = scheduler_limits(*described)
    return replace(limits, **{name: size or getattr(limits, name) for name, size in shape.items()})


@asynccontextmanager
async def another_gateway(
    settings: GatewaySettings,
    registry: CollectorRegistry | None = None,
    tracer: Tracer | None = None,
) -> AsyncIterator[tuple[Gateway, generation_pb2_grpc.GenerationStub, str]]:
    """Run a further gateway; yield the gateway, a client and its address."""
    registry = registry or CollectorRegistry()
    async with build_gateway(settings, ascii_tokenizer(), registry, tracer) as gateway:
        server = ServiceServer(
            settings, ["specinfer.v1.Generation"], gateway.interceptors, settings.max_calls
        )
        generation_pb2_grpc.add_GenerationServicer_to_server(gateway.servicer, server.grpc)
        address = f"127.0.0.1:{await server.start()}"
        try:
            # a separate pool: gRPC shares connections, also failed ones of an earlier server at this port
            options = [*channel_options(), ("grpc.use_local_subchannel_pool", 1)]
            async with grpc.aio.insecure_channel(address, options=options) as client:
                yield gateway, generation_pb2_grpc.GenerationStub(client), address
        finally:
            await server.stop()


async def crash(gateway: Gateway) -> None:
    """End a gateway as if killed: without messages, and its leases expire."""
    gateway.running.cancel()
    await asyncio.gather(gateway.running, return_exceptions=True)
    for session in list(gateway.sessions):
        session.loop.persistence._runs.clear()
        await session.stop()
    gateway.sessions.by_instance.clear()
    gateway.token_streams.fail_all(UnavailableError("killed"))


def add_speculators(
    server: ServiceServer,
    thread: EngineThread,
    drafters: Mapping[str, Drafter],
    tokenizer: Tokenizer | None = None,
    registry: CollectorRegistry | None = None,
    tracer: Tracer | None = None,
    learner_of: LearnerOf | None = None,
) -> None:
    engine = SpeculatorEngine(list(drafters.values()), max_nodes=64)
    methods = [name if learner_of is not None else "scripted" for name in drafters]
    reply = describe(engine, list(drafters), methods, secrets.token_hex(4))
    reply.tokenizer_fingerprint = tokenizer.fingerprint() if tokenizer else ""
    learner = learner_of(engine, thread) if learner_of is not None else None
    reply.learns = learner is not None
    metrics = SpeculatorMetrics(registry or CollectorRegistry(), list(drafters), learner)
    servicer = SpeculatorServicer(engine, thread, metrics, reply, tracer, learner)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)
    if learner is not None:
        learning_pb2_grpc.add_LearningServicer_to_server(LearningServicer(learner), server.grpc)


def settings(**options: Any) -> ServiceSettings:
    """Return settings: a free port of loopback, no drain time."""
    return ServiceSettings(**{"listen": "127.0.0.1:0", "drain_seconds": 0.2, **options})


@contextmanager
def refused(code: grpc.StatusCode, *words: str) -> Iterator[None]:
    """Expect that a call fails with this status and with all these words in its details."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        yield
    details = caught.value.details() or ""
    assert (caught.value.code(), [word for word in words if word not in details]) == (code, []), details


async def until(condition: Callable[[], bool], timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # nothing signals it: the state of another part is observed
            await asyncio.sleep(0.002)
