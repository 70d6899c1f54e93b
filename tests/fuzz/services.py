"""Real servicers and engines of verifier and speculators, with a target without a model.

They serve a fuzzed gateway, or are fuzzed themselves. They run for a whole campaign, so that leaks show.
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from prometheus_client import CollectorRegistry

from specinfer.drafters import Drafter
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.ngram import NgramDrafter
from specinfer.model.cache.sequence import BLOCK_TOKENS
from specinfer.remote.description import describe
from specinfer.v1 import common_pb2, speculator_pb2, verifier_pb2
from specinfer.verification.engine import EngineLimits, VerifierEngine
from speculator_svc.metrics import SpeculatorMetrics
from speculator_svc.servicer import SpeculatorServicer
from tests.fuzz.drafters import RandomDrafter
from tests.fuzz.table_target import TableTarget, table_runner
from tests.fuzz.transport import InlineContext, InlineThread
from tests.support.services import host_of
from tests.support.system import VOCABULARY
from verifier_svc.metrics import VerifierMetrics
from verifier_svc.servicer import VerifierServicer

FINGERPRINT = "fuzz"
"""Tokenizer fingerprint of all services."""
_LIMITS = EngineLimits(max_requests=512, max_nodes=64, max_step_tokens=1 << 14, max_context_len=512)


class Services:
    """Verifier, a service with two speculators of points, and one with a speculator that draws."""

    def __init__(self, target: TableTarget, kv_tokens: int = 1 << 13) -> None:
        self.target = target
        self.fence = 0
        """Highest fence that the verifier has seen; it refuses lower ones."""
        self.runner = table_runner(target, kv_tokens)
        self._engine = VerifierEngine(self.runner, limits=_LIMITS)
        thread: Any = InlineThread()
        self.verifier = VerifierServicer(
            host_of(self._engine), thread, VerifierMetrics(CollectorRegistry()), self._description()
        )
        self._random = [RandomDrafter(target, Random(), draws) for draws in (False, True)]
        points, draws = self._random
        self._engines = [_engine([NgramDrafter(1, 3), points]), _engine([draws])]
        self.speculators = [_servicer(engine, thread) for engine in self._engines]

    def reseed(self, rng: Random) -> None:
        """Set the generator on which all drafts depend."""
        for drafter in self._random:
            drafter.rng = rng

    async def release(self, request_ids: Sequence[str], client: str = "") -> None:
        context: Any = InlineContext()
        request = common_pb2.ReleaseRequest(request_ids=request_ids, client=client, fence=self.fence)
        for servicer in (self.verifier, *self.speculators):
            await servicer.Release(request, context)

    def check_empty(self) -> None:
        """Check that no service has cached anything."""
        cached_requests = [engine.cached_requests for engine in (self._engine, *self._engines)]
        assert cached_requests == [0, 0, 0], (
            f"requests held by verifier and speculator services: {cached_requests}"
        )
        self._engine.settle()
        self.runner.cache.check()
        free, all_of_it = self.runner.cache.free_tokens, self.runner.cache.capacity_tokens
        assert free == all_of_it, f"{all_of_it - free} tokens of the cache are not free"

    def _description(self) -> verifier_pb2.DescribeVerifierReply:
        limits = _LIMITS
        return verifier_pb2.DescribeVerifierReply(
            model="table",
            vocab_size=VOCABULARY,
            tokenizer_fingerprint=FINGERPRINT,
            max_context_len=limits.max_context_len,
            max_requests=limits.max_requests,
            max_nodes=limits.max_nodes,
            max_step_tokens=limits.max_step_tokens,
            kv_capacity_tokens=self.runner.cache.capacity_tokens,
            kv_block_tokens=BLOCK_TOKENS,
            pass_costs=[verifier_pb2.PassCost(tokens=n, microseconds=us) for n, us in ((1, 100), (64, 300))],
        )


def _engine(drafters: Sequence[Drafter]) -> SpeculatorEngine:
    return SpeculatorEngine(drafters, max_nodes=64)


def _servicer(engine: SpeculatorEngine, thread: Any) -> SpeculatorServicer:
    names = [f"{type(drafter).__name__}-{i}" for i, drafter in enumerate(engine.drafters)]
    reply: speculator_pb2.DescribeSpeculatorReply = describe(engine, names, ["scripted"] * len(names))
    reply.tokenizer_fingerprint = FINGERPRINT
    return SpeculatorServicer(engine, thread, SpeculatorMetrics(CollectorRegistry(), names), reply)
