"""Single services on loopback, without a gateway: real gRPC servers with tiny models and scripted drafters."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client import CollectorRegistry

from specinfer.drafters import Drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.engine.host import Host
from specinfer.engine.local_pool import LocalPool
from specinfer.remote.description import describe
from specinfer.request.sampling import GREEDY, Sampling
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.service.server import ServiceServer
from specinfer.service.settings import ServiceSettings
from specinfer.service.threads import EngineThread
from specinfer.tree import TreeLimits
from specinfer.v1 import speculator_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from specinfer.verification.engine import VerifierEngine
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from tests.support.tiny_models import runner_of, tiny_transformers
from verifier_svc.metrics import VerifierMetrics
from verifier_svc.servicer import VerifierServicer


@asynccontextmanager
async def speculator_service(
    drafters: Mapping[str, Drafter],
    *,
    instance_id: str = "",
    tokenizer_fingerprint: str = "",
    listen: str = "127.0.0.1:0",
) -> AsyncIterator[tuple[str, SpeculatorEngine]]:
    """Run a service within the context; yield its address and engine."""
    engine, thread = SpeculatorEngine(list(drafters.values()), max_nodes=64), EngineThread("speculator")
    description = describe(engine, list(drafters), ["scripted"] * len(drafters), instance_id)
    description.tokenizer_fingerprint = tokenizer_fingerprint
    metrics = SpeculatorMetrics(CollectorRegistry(), list(drafters))
    server = ServiceServer(ServiceSettings(listen=listen, drain_seconds=0.0), [])
    servicer = SpeculatorServicer(engine, thread, metrics, description)
    speculator_pb2_grpc.add_SpeculatorServicer_to_server(servicer, server.grpc)
    try:
        yield f"127.0.0.1:{await server.start()}", engine
    finally:
        await server.stop()
        thread.stop()


def description_of(engine: VerifierEngine, **fields: Any) -> verifier_pb2.DescribeVerifierReply:
    return verifier_pb2.DescribeVerifierReply(
        vocab_size=engine.runner.config.vocab_size,
        max_context_len=engine.limits.max_context_len,
        max_requests=engine.limits.max_requests,
        max_nodes=engine.limits.max_nodes,
        max_step_tokens=engine.limits.max_step_tokens,
        kv_capacity_tokens=engine.runner.cache.capacity_tokens,
        kv_block_tokens=engine.runner.cache.block_tokens,
        **fields,
    )


def raising(original: Callable[..., Any], *faults: Exception) -> Callable[..., Any]:
    """Return a function that raises each of the faults once, the last first, and then does as `original`."""
    left = [*faults]

    def called(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return original(*arguments)

    return called


def host_of(engine: VerifierEngine) -> Host:
    return Host(LocalPool([], engine.runner.config.hidden_size, engine.runner.config.vocab_size), engine)


@asynccontextmanager
async def verifier_service(
    *, instance_id: str = "", model_fingerprint: str = "", listen: str = "127.0.0.1:0"
) -> AsyncIterator[tuple[str, VerifierEngine]]:
    """Run a service within the context; yield its address and engine."""
    engine, thread = VerifierEngine(runner_of(tiny_transformers("llama"))), EngineThread("verifier")
    costs = [verifier_pb2.PassCost(tokens=1, microseconds=1000)]
    description = description_of(
        engine, pass_costs=costs, instance_id=instance_id, model_fingerprint=model_fingerprint
    )
    server = ServiceServer(ServiceSettings(listen=listen, drain_seconds=0.0), [])
    servicer = VerifierServicer(host_of(engine), thread, VerifierMetrics(CollectorRegistry()), description)
    verifier_pb2_grpc.add_VerifierServicer_to_server(servicer, server.grpc)
    try:
        yield f"127.0.0.1:{await server.start()}", engine
    finally:
        await server.stop()
        thread.stop()


def step_entry(
    request_id: str,
    tokens: list[int],
    sampling: Sampling = GREEDY,
    *,
    base_len: int = 0,
    draws: bool = False,
    nodes: int = 4,
) -> StepEntry:
    """Return the step entry of a request with these committed tokens; it gets a tree."""
    request = GenerationRequest(request_id, tuple(tokens), 100, sampling)
    state = RequestState.new(request, 0.0, 0, draws)
    return StepEntry(state, base_len, tuple(tokens[base_len:]), True, TreeLimits(nodes, nodes), nodes)
