"""Drafts that independent services make ahead of a verdict, while the verifier works.

What they are to draft for goes to them behind the step's message to the verifier; the trees wait here, by request and
by the tokens that an outcome adds to the context. A tree is used only for the context that it was drafted for, and only
if it is what would be asked for now; whatever else came of the request, its draft is made now.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specinfer.outcomes import EntryStatus
from specinfer.planning.ahead import AheadStep
from specinfer.planning.latency import SpeculatorSet
from specinfer.planning.planner import Choice
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.scheduling.target_outputs import TargetOutputs
from specinfer.speculators.drafts import TreeShare, add_references, exchange_drafts
from specinfer.speculators.policy import PoolPolicy
from specinfer.speculators.service import DraftQuery, SpeculatorService
from specinfer.tree import TokenTree, TreeLimits, most_depth
from specinfer.v1 import speculator_pb2

_MOST_OUTCOMES = 64
"""Outcomes of one request that are kept from an answer."""


class _Terms(NamedTuple):
    """Terms of a draft; one that was made ahead is used if it was made by the terms of now."""

    speculators: SpeculatorSet
    limits: TreeLimits


@dataclass(frozen=True, slots=True)
class _AheadOrder:
    """Drafts that were ordered for the outcomes of one request's tree."""

    query: DraftQuery
    context_len: int
    max_positions: int

    def terms(self, added: int) -> _Terms:
        """Return the terms of the draft for an outcome that adds so many tokens to the context."""
        limits = self.query.entry.limits
        depth = min(limits.depth, most_depth(self.context_len, added, self.max_positions))
        return _terms(self.query.speculators, replace(limits, depth=depth))


@dataclass(frozen=True, slots=True)
class _Made:
    """Drafts of one service for the outcomes of one request's tree."""

    order: _AheadOrder
    drafts: Mapping[tuple[int, ...], Sequence[speculator_pb2.Draft]]

    def find(self, service: SpeculatorService, query: DraftQuery) -> Sequence[speculator_pb2.Draft] | None:
        """Return the drafts for the context of a query, if they are what would be asked for now."""
        entry = query.entry
        added = tuple(entry.state.tokens[self.order.context_len :])
        limits = replace(entry.limits, nodes=_nodes(service, entry.limits), depth=service.most_depth(entry))
        if self.order.terms(len(added)) != _terms(query.speculators, limits):
            return None
        return self.drafts.get(added)


@dataclass(slots=True)
class _Counts:
    """Use of drafts made ahead since the last step, and the time in which services had nothing to do."""

    hits: Counter[int] = field(default_factory=Counter)
    misses: Counter[int] = field(default_factory=Counter)
    wasted: Counter[int] = field(default_factory=Counter)
    idle_s: float = 0.0


class AheadDrafts:
    """Drafts made ahead by the services of a pool, from one step to the next."""

    def __init__(self, policy: PoolPolicy, target: TargetOutputs) -> None:
        self._policy, self._target = policy, target
        self._made: dict[str, dict[str, _Made]] = {}
        """By service address and request."""
        self._counts = _Counts()
        self.ordered = False
        """True if drafts were ordered behind the latest step."""
        self.only = False
        """True if requests that they are not for go without in the next step, unless they are drawn for."""

    def queries(
        self, service: SpeculatorService, entries: Sequence[StepEntry], choice: Choice
    ) -> dict[str, DraftQuery]:
        """Return what a service is to draft for ahead, for the choice of the next step."""
        chosen = choice.speculators & frozenset(service.members)
        if not chosen or not service.drafts_ahead or service.description is None or service.busy:
            return {}
        wanting = [
            replace(entry, limits=_next_limits(entry, choice))
            for entry in entries
            if entry.final
            and entry.state.request.speculation is not Speculation.OFF
            and not service.refusals.knows(entry.request_id)
        ]
        return service.asked(wanting, choice.speculators)

    async def ask(
        self,
        service: SpeculatorService,
        asked: Mapping[str, DraftQuery],
        trees: Mapping[str, TokenTree],
        step: tuple[int, str],
        usual_s: float,
    ) -> None:
        """Exchange one message with a service; keep its drafts.

        Args:
            service: to draft ahead.
            asked: its work.
            trees: those that the verifier works on.
            step: number of the message, and the trace context.
            usual_s: seconds that the verifier usually takes; 0 if that is not known.

        Raises:
            UnavailableError: if it does not answer, or another process does.
        """
        assert service.stream is not None, "residents are not called"
        orders = {name: _order(service, query) for name, query in asked.items()}
        request = self._message(service, orders, trees, step, max(0.0, usual_s - service.wire_s))
        service.busy, started = True, time.perf_counter()
        try:
            reply = await exchange_drafts(
                service.address, service.stream, request, service.description, self._policy.hung_s
            )
        finally:
            service.busy = False
        compute_s = service.note_reply(time.perf_counter() - started, reply)
        self._counts.idle_s += max(0.0, usual_s - compute_s)
        self._keep(service, orders, reply)

    def take(
        self, service: SpeculatorService, asked: Mapping[str, DraftQuery], share: TreeShare
    ) -> tuple[dict[str, list[tuple[int, TokenTree]]], dict[str, DraftQuery]]:
        """Return the sound trees that were made ahead for these queries, and the queries to draft for now.

        Requests that are drawn for are drafted for in any case: which outcomes were drafted for hangs on the time
        that others took, so on tokens drawn with the same random numbers.
        """
        made, found, left = self._made.pop(service.address, {}), dict[str, list[tuple[int, TokenTree]]](), {}
        for name, query in asked.items():
            mine = made.pop(name, None)
            drafts = mine.find(service, query) if mine is not None else None
            if mine is not None:
                counter = self._counts.misses if drafts is None else self._counts.hits
                counter.update(query.speculators)
                self._count_waste(mine, hit=drafts is not None)
            if drafts is None:
                if mine is None or not self.only or query.entry.state.drawn_for:
                    left[name] = query
                continue
            result = speculator_pb2.DraftResult(
                request_id=name,
                status=int(EntryStatus.OK),  # type: ignore[arg-type]  # the enums share their numbers
                drafts=drafts,
                held_len=service.held.get(name, 0),
            )
            found[name] = service.accept(asked, result, self._policy.vocab_size, share)
        for mine in made.values():
            self._count_waste(mine, hit=False)
        return found, left

    def step(self) -> AheadStep:
        """Return what became of drafts made ahead since the last call, and begin anew."""
        counts, self._counts = self._counts, _Counts()
        return AheadStep(self.ordered, counts.hits, counts.misses, counts.wasted, counts.idle_s)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop the drafts of requests that ended."""
        for service in self._made.values():
            for name in request_ids:
                service.pop(name, None)

    def _message(
        self,
        service: SpeculatorService,
        orders: Mapping[str, _AheadOrder],
        trees: Mapping[str, TokenTree],
        step: tuple[int, str],
        seconds: float,
    ) -> speculator_pb2.DraftRequest:
        entries = []
        for name, order in orders.items():
            entry, tree = service.encode(order.query, self._target, 0), trees[name]
            if entry.node_budget:  # else the service reads the context first
                entry.pending.token_ids.extend(tree.token_ids.tolist())
                entry.pending.parents.extend(tree.parents.tolist())
                entry.pending.scores.extend(tree.scores.tolist())
                entry.pending.max_positions = order.max_positions
            entries.append(entry)
        if service.reads_references:
            references = {name: o.query.entry.state.request.references for name, o in orders.items()}
            add_references(entries, references)
        number, traceparent = step
        return speculator_pb2.DraftRequest(
            step_id=number,
            entries=entries,
            client=self._policy.client,
            traceparent=traceparent,
            ahead_us=round(seconds * 1e6),
        )

    def _keep(
        self, service: SpeculatorService, orders: Mapping[str, _AheadOrder], reply: speculator_pb2.DraftReply
    ) -> None:
        """Keep the drafts of a reply."""
        service.losses = 0
        made = self._made[service.address] = {}
        for result in reply.entries:
            name = result.request_id
            order = orders.get(name)
            if order is None or order.query.entry.state.finish is not None:
                continue
            if result.status == int(EntryStatus.RESYNC):
                service.held[name] = 0
                service.statistics.resyncs += 1
                continue
            service.held[name] = result.held_len
            drafts = {tuple(each.token_ids): each.drafts for each in result.ahead[:_MOST_OUTCOMES]}
            made[name] = _Made(order, drafts)

    def _count_waste(self, made: _Made, hit: bool) -> None:
        for speculator in made.order.query.speculators:
            self._counts.wasted[speculator] += len(made.drafts) - hit


def _next_limits(entry: StepEntry, choice: Choice) -> TreeLimits:
    return replace(entry.limits, nodes=choice.nodes, min_path_probability=choice.node_threshold)


def _order(service: SpeculatorService, query: DraftQuery) -> _AheadOrder:
    """Return the order of a query; its limits are those that the service is sent."""
    entry, held = query.entry, len(query.entry.state.tokens)
    limits = replace(entry.limits, nodes=_nodes(service, entry.limits))
    positions = int(min(held + entry.reach, service.longest_context))
    return _AheadOrder(DraftQuery(replace(entry, limits=limits), query.speculators), held, positions)


def _nodes(service: SpeculatorService, limits: TreeLimits) -> int:
    """Return the nodes that are asked for: of a chain no more than its depth."""
    most = service.description.max_nodes if service.description else 0
    return min(limits.nodes, most, limits.depth if limits.width == 1 else most)


def _terms(speculators: SpeculatorSet, limits: TreeLimits) -> _Terms:
    """Return terms; a chain has no more nodes than its depth."""
    nodes = min(limits.nodes, limits.depth) if limits.width == 1 else limits.nodes
    return _Terms(speculators, replace(limits, nodes=nodes))
