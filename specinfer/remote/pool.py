"""Call speculator services in parallel, with a deadline.

Replicas of one service share the requests; each replica has its own connection and statistics. A late replica
is not called again before it has answered. A failed or replaced replica is not called before it has been
described again. Malformed trees are dropped and counted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence

from specinfer.engine.draft_group import DraftQuery
from specinfer.errors import IncompatibleError, ServiceChangedError, UnavailableError
from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.remote.directory import SpeculatorDirectory
from specinfer.remote.drafts import (
    CALL_S,
    FIRST_ANSWER_S,
    TreeShare,
    describe_together,
    release_at,
)
from specinfer.remote.policy import PoolPolicy, UsualStepTime
from specinfer.remote.replicas import SpeculatorReplicas
from specinfer.remote.resident import HostOrder, ResidentDrafts, grant_of
from specinfer.remote.round import NO_DRAFTS, DraftRound, Drafts
from specinfer.remote.service import SpeculatorRecord, SpeculatorService
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, TargetOutputs, WantedOutputs
from specinfer.service.stream import Channel
from specinfer.tree import TokenTree
from specinfer.v1 import speculator_pb2

log = logging.getLogger(__name__)

_LOOK_AGAIN_S = 2.0
"""Seconds between DNS lookups: maximum delay until a new replica is found."""


class SpeculatorPool:
    """All speculators of a gateway. Sequence speculation prefers lower numbers."""

    def __init__(
        self, services: Sequence[str], open_channel: Callable[[str], Channel], policy: PoolPolicy
    ) -> None:
        """Create a pool.

        `services` are elements returned by `service_addresses`. The caller closes the channels.
        """
        self._policy = policy
        self._replicas = SpeculatorReplicas(services, open_channel)
        self.resident: ResidentDrafts | None = None
        """The verifier's own speculators; None without such speculators."""
        self.services = self._replicas.known
        """All services' replicas, available or not. The list is never replaced."""
        self._directory = SpeculatorDirectory(policy)
        self._target = TargetOutputs(policy.hidden_size)
        self.names = self._directory.names
        """Names by number of all speculators that ever answered."""
        self.places = self._directory.places
        """Service of each speculator by number, as written in the setting."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._steps = 0
        self._round: DraftRound | None = None
        """Exchange of the current step."""
        self._step_times = UsualStepTime()

    def host(self, address: str, description: speculator_pb2.DescribeSpeculatorReply) -> None:
        """Add the verifier's resident speculators; before `connect`, with the lowest numbers."""
        resident = ResidentDrafts(address=address, service=address)
        self._directory.enrol(resident, description)
        self.resident = resident

    @property
    def records(self) -> list[SpeculatorRecord]:
        """The resident speculators, if any, and all services' replicas."""
        return [*([self.resident] if self.resident is not None else []), *self.services]

    async def connect(self, strict: bool = True) -> None:
        """Describe all services at once; retry unavailable ones in the background.

        Services that answer are numbered in the order of the settings.

        Args:
            strict: True: refuse a service that does not fit the target; False: log the reason and retry.
        """
        services = await self._replicas.look()
        patience_s = CALL_S if strict else FIRST_ANSWER_S
        answers = await describe_together([(known.address, known.stub) for known in services], patience_s)
        for service, answer in zip(services, answers, strict=True):
            try:
                if isinstance(answer, UnavailableError):
                    raise answer
                self._directory.enrol(service, answer)
            except (UnavailableError, IncompatibleError) as error:
                if strict and isinstance(error, IncompatibleError):
                    raise
                log.warning("%s is not used for now, and retried: %s", service.address, error)
                self._spawn(self._directory.keep_describing(service))
        if self._replicas.may_change:
            self._spawn(self._keep_looking())

    @property
    def groups(self) -> list[SpeculatorSet]:
        """Speculator numbers of each service that ever answered."""
        return list(dict.fromkeys(frozenset(s.members) for s in self.records if s.members))

    @property
    def draws(self) -> bool:
        """True if any speculator draws for sampled requests."""
        return any(record.drawing for record in self.records)

    @property
    def read_references(self) -> bool:
        """True if any service drafts from references, even an unavailable one."""
        return any(record.reads_references for record in self.records)

    def wanted(self, entries: Sequence[StepEntry]) -> WantedOutputs:
        """Return the outputs of the target that the services need."""
        remote = self.services
        if not any(service.feature_layers or service.target_top_k for service in remote):
            return NOTHING_WANTED
        places = self._replicas.places(entries) if any(s.feature_layers for s in remote) else {}
        return self._target.wanted(entries, remote, lambda place, name: remote[place].address in places[name])

    def keep(
        self, wanted: WantedOutputs, trees: Mapping[str, TokenTree], verdicts: Mapping[str, Verdict]
    ) -> None:
        """Keep the wanted outputs of verified trees."""
        if wanted is not NOTHING_WANTED:
            self._target.arrived(wanted, trees, verdicts)

    def order(
        self,
        entries: Sequence[StepEntry],
        choice: Choice,
        drafted: bool,
        wanted: WantedOutputs,
        repeats: bool,
    ) -> HostOrder:
        """Return the verifier's orders for resident drafts and repeated steps.

        Args:
            entries: all requests of the step.
            choice: the planner's choice for the step.
            drafted: whether services have drafted for the step.
            wanted: outputs of the target that services read.
            repeats: whether the verifier may repeat the plan; ignored if services draft or read outputs.
        """
        chosen, references = frozenset[int](), dict[str, Sequence[Sequence[int]]]()
        if self.resident is not None:
            chosen = self.resident.sound(choice.speculators)
            references = dict(self.resident.references(entries))
        if drafted and not chosen:
            return HostOrder(references=references)
        repeats = repeats and not self.asks(choice.speculators) and wanted is NOTHING_WANTED
        return HostOrder(*grant_of(choice, chosen, entries, repeats), references)

    def asks(self, chosen: SpeculatorSet) -> bool:
        """Return whether an available service has any of these speculators."""
        return any(chosen & frozenset(service.members) for service in self.services if service.available)

    async def draft(
        self, entries: Sequence[StepEntry], chosen: SpeculatorSet, traceparent: str = ""
    ) -> Drafts:
        """Return the chosen speculators' trees within the deadline.

        A step with draws has no deadline: a draft's duration depends on the drawn tokens, so dropping late
        drafts would bias the output. After `hung_s` without an answer a service counts as dead.
        `traceparent` is the trace context sent to services.
        """
        if not self.services:
            return NO_DRAFTS
        self._step_times.begins(self._policy.clock())
        shares = self._replicas.divide(entries)
        kept = [
            (entry.request_id, service.latest.of(entry))
            for service in self.services
            for entry in shares.get(service.address, ())
            if service.has_drafted(entry)
        ]
        if not self.asks(chosen) and not kept:
            self._end_round()
            self._step_times.drafted(self._policy.clock())
            return NO_DRAFTS
        round_ = self._begin_round(len(entries), traceparent)
        for request_id, trees in kept:
            round_.add(request_id, trees)
        questions = [
            (service, asked)
            # the slowest is called first
            for service in sorted(self.services, key=lambda s: -s.last_seconds)
            if (asked := service.asked(shares.get(service.address, ()), chosen)) and _available(service)
        ]
        drawn = any(service.will_draw(asked.values()) for service, asked in questions)
        running = [self._spawn(self._ask(round_, service, asked)) for service, asked in questions]
        if running:
            deadline_s = self._policy.deadline(self._step_times.usual_s)
            await asyncio.wait(running, timeout=None if drawn else deadline_s)
        late = [task for task in running if not task.done()]
        if late:
            log.debug("%d services missed the deadline; the step continues without them", len(late))
        self._step_times.drafted(self._policy.clock())
        return round_.drafts()

    async def release(self, request_ids: Sequence[str]) -> None:
        """Release requests at all services; after a failed call they expire there."""
        self._target.forget(request_ids)
        self._replicas.forget(request_ids)
        services = [(s.address, s.stub) for s in self.services if s.available]
        client = self._policy.client
        await asyncio.gather(*(release_at(address, stub, request_ids, client) for address, stub in services))

    async def close(self) -> None:
        """Cancel tasks and reset streams; closing channels would leave them open."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for service in self.services:
            service.stream.reset()

    async def _keep_looking(self) -> None:
        """Look up names repeatedly, and describe new replicas."""
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            for service in await self._replicas.look():
                log.info("%s has a replica at %s", service.service, service.address)
                self._spawn(self._directory.keep_describing(service, at_once=True))

    def _share(self, requests: int) -> TreeShare:
        """Return the limits of one speculator's tree for one request."""
        speculators = sum([len(members) for members in self.groups])
        return TreeShare.of(
            self._policy.max_nodes, self._policy.step_bytes, max(requests, 1), max(speculators, 1)
        )

    def _end_round(self) -> None:
        """Count further answers to the previous step as late."""
        if self._round is not None:
            self._round.over = True

    def _begin_round(self, requests: int, traceparent: str) -> DraftRound:
        """Start the exchange of the next step; end the previous exchange."""
        self._steps += 1
        self._end_round()
        share = self._share(requests)
        self._round = DraftRound(self._steps, self._policy, self._target, share, traceparent)
        return self._round

    async def _ask(
        self, round_: DraftRound, service: SpeculatorService, asked: Mapping[str, DraftQuery]
    ) -> None:
        try:
            await round_.ask(service, asked)
        except UnavailableError as error:
            self._lost(service, error)

    def _lost(self, service: SpeculatorService, error: UnavailableError) -> None:
        """Stop calling a service until it has been described again."""
        log.warning("%s; the service is not called until it answers again", error)
        changed = isinstance(error, ServiceChangedError)
        service.missed += 1
        service.description = None
        service.losses += not changed
        self._spawn(self._directory.keep_describing(service, at_once=changed))

    def _spawn(self, work: "asyncio._CoroutineLike[None]") -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _available(service: SpeculatorService) -> bool:
    if service.description is None or service.busy:
        service.missed += 1
        return False
    return True
