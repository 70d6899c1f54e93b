"""Drive one verifier while its lease lasts: a session.

Each session has its own scheduler, planner, streams and speculator pool. When a session ends for any reason, its
requests lose their owner in Redis, and any gateway with room continues them.
"""

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import grpc

from gateway.api.watch.watches import Watches
from gateway.cluster.verifier_link import VerifierLink
from gateway.events import Events
from gateway.session.constraints import Constraints
from gateway.session.limits import node_budget, scheduler_limits
from gateway.session.loop import SessionLoop
from gateway.session.persist import Persistence
from gateway.session.token_stream import TokenStream, TokenStreams
from gateway.session.verifier import VerifierClient, pass_curve
from gateway.settings import GatewaySettings
from gateway.store.protocol import Store, VerifierLease
from gateway.store.records import Record
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.planning.feedback import FinishedStep
from specinfer.planning.gains import TreeGains
from specinfer.planning.learned import LearnedGains, LinearModel, TextMatches
from specinfer.planning.memory import PlannerMemory
from specinfer.planning.table_planner import TablePlanner
from specinfer.remote.policy import PoolPolicy
from specinfer.remote.pool import SpeculatorPool
from specinfer.scheduling.request import GenerationRequest, RequestState
from specinfer.scheduling.scheduler import Scheduler
from specinfer.scheduling.text import StopStrings
from specinfer.service.channel import open_channel
from specinfer.service.stream import MeteredChannel
from specinfer.system.machine import processor_name
from specinfer.text.tokenizer import Tokenizer
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)
_MAX_BLOCKS = 16384
"""Maximum block hashes of prompts in a `PrefixIndex`."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Objects that all sessions of a gateway share."""

    settings: GatewaySettings
    tokenizer: Tokenizer
    events: Events
    store: Store
    token_streams: TokenStreams
    constraints: Constraints
    watches: Watches
    trained: Mapping[str, LinearModel]
    """Weights of the learned planner by speculator set, as in `specinfer.planning.learned`."""
    clock: Callable[[], float]
    """Monotonic seconds."""


class VerifierSession:
    """One verifier's requests, from `start` to `end`."""

    def __init__(self, shared: Shared, link: VerifierLink, lease: VerifierLease) -> None:
        self._shared, self.link, self.lease = shared, link, lease
        assert link.description is not None, "only described verifiers are claimed"
        self.description = link.description
        self._channels: list[grpc.aio.Channel] = []
        self._task: asyncio.Task[None] | None = None
        self._expected, self._ending = 0, False
        self._prefixes = PrefixIndex(max(1, self.description.kv_block_tokens))
        self.loop = self._build(self.description)

    @property
    def model(self) -> str:
        return self.description.model_fingerprint

    @property
    def running(self) -> bool:
        """True before `start`, and while the loop runs."""
        return self._task is None or not self._task.done()

    @property
    def begun(self) -> bool:
        """True while the loop runs."""
        return self._task is not None and not self._task.done()

    @property
    def room(self) -> int:
        """Free slots of the batch, regardless of cache use (compare `spare`)."""
        limit = scheduler_limits(self._shared.settings, self.description).max_batch
        return max(0, limit - self._requests)

    @property
    def spare(self) -> int:
        """Additional requests that could run, if each needs the average cache."""
        return max(0, self.loop.scheduler.spare - self._expected)

    @property
    def _requests(self) -> int:
        return self.loop.scheduler.running + self.loop.scheduler.waiting + self._expected

    def view(self, request: GenerationRequest) -> tuple[bool, int, int]:
        """Return the tuple (fits, requests, cached tokens) for `rules.best_session`."""
        shared = self._prefixes.shared(request.prompt)
        fits = self.room > 0 and self.loop.scheduler.has_room(request)
        return fits, self._requests, shared

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """Count a request in this session while Redis records the request."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    def submit(self, record: Record) -> RequestState:
        """Queue a recorded request, to continue after its stored tokens.

        If clients of this gateway were shown more tokens than the store still has, it continues after those.

        Raises the errors of `Scheduler.submit`, and:
            UnavailableError: if the session has ended since it was chosen.
        """
        if self._ending:
            raise UnavailableError("the verifier's session has ended: retry")
        request, token_streams = record.request, self._shared.token_streams
        token_stream = token_streams.add(TokenStream(request, record.idempotency_key))
        try:
            token_stream.extend(0, record.tokens, record.logprobs, None)
            state = self.loop.submit(record, token_stream)
        finally:
            token_streams.forget_if_idle(token_stream)
        self._prefixes.note(request.prompt)
        return state

    def continue_with(self, lease: VerifierLease) -> None:
        """Use a new lease for the same verifier."""
        self.lease = lease
        self.loop.verifier.fence = lease.fence

    async def start(self, strict: bool = False) -> None:
        """Connect to the speculators, and start the loop."""
        await self.loop.pool.connect(strict)
        if self._ending:
            return
        self._task = asyncio.create_task(self.loop.run())
        self._task.add_done_callback(self._ended)

    async def end(self) -> None:
        """Stop the loop, and remove this gateway as owner of its requests."""
        await self._stop_iterating()
        persistence, self._ending = self.loop.persistence, True
        try:
            await self._shared.store.disown(persistence.release_requests(persistence.unfinished))
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Stop the loop, and close the connections."""
        self._ending = True
        await self._stop_iterating()
        await self.loop.close()
        await self.loop.pool.close()
        for channel in self._channels:
            await channel.close()

    async def _stop_iterating(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, SpecInferError):
            log.warning("the session of the verifier at %s ends: %s", self.link.address, error)
        elif error is not None:
            log.error("the session of the verifier at %s failed", self.link.address, exc_info=error)

    def _open_channel(self, address: str) -> MeteredChannel:
        """Open a channel to a speculator; `stop` closes it."""
        channel = open_channel(address, self._shared.settings.services_tls)
        self._channels.append(channel)
        return MeteredChannel(channel, self._shared.events.meter("speculator"))

    def _build(self, description: verifier_pb2.DescribeVerifierReply) -> SessionLoop:
        settings, shared = self._shared.settings, self._shared
        policy = PoolPolicy(
            description.vocab_size,
            description.tokenizer_fingerprint,
            hung_s=settings.hung_seconds,
            scoped=settings.prefix_scope == "key",
            trust_draws=settings.trust_draws,
            max_nodes=description.max_nodes,
            hidden_size=description.hidden_size,
            feature_layers=description.feature_layers,
            clock=shared.clock,
        )
        pool = SpeculatorPool(settings.speculator_services, self._open_channel, policy)
        if description.resident.speculators:
            pool.host(self.link.address, description.resident)
        limits, curve = scheduler_limits(settings, description), pass_curve(description)
        budget = node_budget(settings, limits, curve, description.context_nanoseconds / 1e9)
        log.info("planner limits: %d nodes per tree, %d nodes per step", budget.per_request, budget.per_step)
        scheduler = Scheduler(limits, budget, StopStrings(shared.tokenizer))

        def persistence(
            learn: Callable[[FinishedStep], None], release: Callable[[list[str]], None]
        ) -> Persistence:
            return Persistence(
                scheduler,
                shared.store,
                shared.token_streams,
                shared.events,
                pool.names,
                shared.watches,
                learn,
                release,
                self.model,
                settings.redis_patience_seconds,
                shared.clock,
            )

        channel = MeteredChannel(self.link.channel, shared.events.meter("verifier"))
        verifier = VerifierClient(
            channel, settings.hung_seconds, self.lease.fence, settings.prefix_scope == "key", shared.clock
        )
        verifier.expect(description)
        gains = TreeGains()
        if settings.planner != "measured":
            matches = TextMatches(lambda name: scheduler.states[name].tokens)
            gains = LearnedGains(shared.trained, pool.names, matches)
        machine = description.model_fingerprint, description.executor, description.device, processor_name()
        memory = PlannerMemory(machine, pool.names) if description.model_fingerprint else None
        planner = TablePlanner(curve, budget, settings.adaptive, gains, memory)
        return SessionLoop(
            *(scheduler, pool, verifier, shared.events, planner, persistence),
            shared.constraints,
            settings.lease_seconds,
            shared.clock,
        )


class PrefixIndex:
    """Recent block hashes of prompts, to estimate the verifier's cached prefix."""

    def __init__(self, block_tokens: int) -> None:
        self._block = block_tokens
        self._known: OrderedDict[int, None] = OrderedDict()

    def note(self, tokens: Sequence[int]) -> None:
        """Add the blocks of a prompt that the verifier reads."""
        for key in self._keys(tokens):
            self._known[key] = None
            self._known.move_to_end(key)
        while len(self._known) > _MAX_BLOCKS:
            self._known.popitem(last=False)

    def shared(self, tokens: Sequence[int]) -> int:
        """Return the probable cached prefix of a prompt, in tokens."""
        blocks = 0
        for key in self._keys(tokens):
            if key not in self._known:
                break
            blocks += 1
        return blocks * self._block

    def _keys(self, tokens: Sequence[int]) -> Iterator[int]:
        key = 0
        for start in range(0, len(tokens) - self._block + 1, self._block):
            key = hash((key, tuple(tokens[start : start + self._block])))
            yield key
