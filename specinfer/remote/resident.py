"""Speculators in the verifier's own process, which draft behind the verdicts of one step for the next.

What they are to draft goes with a step, the trees come with its verdicts and are used in the next one. To
planner, statistics and checks they are one service like others. A tree is used only for the context that it was
drafted for; whatever else became of the request, it is dropped.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from specinfer.planning.latency import DraftTime, SpeculatorSet
from specinfer.planning.planner import Choice
from specinfer.remote.drafts import TreeShare
from specinfer.remote.service import DraftQuery, SpeculatorService
from specinfer.sampling import draft_seed
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree, TreeLimits, most_depth
from specinfer.v1 import speculator_pb2, verifier_pb2


class _Order(NamedTuple):
    """Draft that was asked for with a step."""

    speculators: SpeculatorSet
    limits: TreeLimits
    max_positions: int


@dataclass(frozen=True, slots=True)
class _Drafted:
    """Drafts that came with a verdict."""

    order: _Order
    context_len: int
    drafts: Sequence[speculator_pb2.Draft]
    again: bool = False
    """True if a step put it off: it is used whatever is chosen now, as to drop draws may select by token."""


class DraftOrders(NamedTuple):
    """Orders to the verifier's own speculators that go with a step, by request."""

    drafts: Mapping[str, verifier_pb2.NextDraft] = MappingProxyType({})
    references: Mapping[str, Sequence[Sequence[int]]] = MappingProxyType({})
    """Texts that requests which start over may copy from."""


NO_ORDERS = DraftOrders()


class ResidentDrafts:
    """Drafts of the verifier's own speculators, from one step to the next."""

    def __init__(self, service: SpeculatorService) -> None:
        """Create it for the service that stands for them; the service has no connection of its own."""
        self.service = service
        self._orders: dict[str, _Order] = {}
        self._drafted: dict[str, _Drafted] = {}
        self._time: DraftTime | None = None

    def order(self, entries: Sequence[StepEntry], choice: Choice) -> DraftOrders:
        """Return what to draft behind the verdicts of a step, for the choice of the next one."""
        self._orders = {}
        service, references = self.service, {}
        if service.reads_references:
            starting = [entry for entry in entries if entry.base_len == 0]
            references = {entry.request_id: entry.state.request.references for entry in starting}
        if service.description is None or not choice.speculators & frozenset(service.members):
            return DraftOrders(references=references) if references else NO_ORDERS
        most = min(choice.nodes, service.description.max_nodes)
        wanting = [
            replace(
                entry, limits=replace(entry.limits, nodes=most, min_path_probability=choice.node_threshold)
            )
            for entry in entries
            if entry.final and entry.state.request.speculation is not Speculation.OFF
        ]
        messages = {}
        for name, (entry, speculators) in service.asked(wanting, choice.speculators).items():
            order = _Order(speculators, entry.limits, len(entry.state.tokens) + entry.reach)
            self._orders[name] = order
            messages[name] = _message(service, entry, order)
        return DraftOrders(messages, references)

    def arrived(self, reply: verifier_pb2.VerifyReply) -> float:
        """Keep the drafts of a reply for the next step; return the seconds that they took.

        Those of entries that were put off are kept, too: they would be drafted again with the same draws.
        """
        orders, self._orders = self._orders, {}
        before, self._drafted, self._time = self._drafted, {}, None
        for verdict in reply.entries:
            name = verdict.request_id
            if verdict.status == int(EntryStatus.EXHAUSTED) and name in before:
                self._drafted[name] = replace(before[name], again=True)
            if verdict.status == int(EntryStatus.OK) and name in orders:
                held = verdict.held_len + 1  # the bonus token
                self._drafted[name] = _Drafted(orders[name], held, verdict.next_drafts)
        if not orders:
            return 0.0
        seconds = reply.draft_us / 1e6
        own = {s: us / 1e6 for s, us in zip(self.service.members, reply.speculator_us, strict=False) if us}
        rest = max(0.0, seconds - sum(own.values()))
        members = frozenset(self.service.members)
        self._time = DraftTime(members, own, rest, reply.draft_read_tokens, resident=True)
        self.service.last_seconds = seconds
        self.service.counters.answered += 1
        return seconds

    @property
    def empty(self) -> bool:
        """True if the step before brought nothing: neither drafts nor their time."""
        return not self._drafted and self._time is None

    def take(
        self, entries: Sequence[StepEntry], chosen: SpeculatorSet, vocab_size: int, share: TreeShare
    ) -> tuple[dict[str, list[tuple[int, TokenTree]]], list[DraftTime]]:
        """Return the sound trees for these entries of chosen speculators, and the time that they took."""
        found: dict[str, list[tuple[int, TokenTree]]] = {}
        asked = bool(chosen & frozenset(self.service.members))
        for entry in entries if self._drafted else ():
            mine = self._drafted.get(entry.request_id)
            if mine is None or not entry.final or mine.context_len != len(entry.state.tokens):
                continue
            if not (asked or mine.again):
                continue
            trees = self._accept(entry, mine, vocab_size, share)
            if trees := [(number, tree) for number, tree in trees if number in chosen or mine.again]:
                found[entry.request_id] = trees
        time, self._time = self._time, None
        return found, [time] if time is not None and asked else []

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop the drafts of requests that ended."""
        for name in request_ids:
            self._drafted.pop(name, None)
        self.service.forget(request_ids)

    def _accept(
        self, entry: StepEntry, mine: _Drafted, vocab_size: int, share: TreeShare
    ) -> list[tuple[int, TokenTree]]:
        """Return the trees of a request that keep to what was asked for."""
        order = mine.order
        depth = min(order.limits.depth, most_depth(0, mine.context_len, order.max_positions))
        as_asked = replace(entry, limits=replace(order.limits, depth=depth))
        result = speculator_pb2.DraftResult(
            request_id=entry.request_id,
            status=int(EntryStatus.OK),  # type: ignore[arg-type]  # the enums share their numbers
            drafts=mine.drafts,
            held_len=mine.context_len,
        )
        query = {entry.request_id: DraftQuery(as_asked, order.speculators)}
        return self.service.accept(query, result, vocab_size, share)


def _message(service: SpeculatorService, entry: StepEntry, order: _Order) -> verifier_pb2.NextDraft:
    chain = order.limits.width == 1
    return verifier_pb2.NextDraft(
        node_budget=order.limits.nodes,
        max_depth=order.limits.depth,
        max_positions=order.max_positions,
        shape=speculator_pb2.TREE_SHAPE_SEQUENCE if chain else speculator_pb2.TREE_SHAPE_TREE,
        min_path_probability=order.limits.min_path_probability,
        draw_seed=draft_seed(entry.state.sampling.seed, service.members[0]),
        speculators=[place for place, number in enumerate(service.members) if number in order.speculators],
        sees_noise=not entry.state.drawn_for,
    )
