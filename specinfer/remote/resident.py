"""Speculators in the verifier's own process, and grants: what the verifier may do between two messages.

The gateway plans once; the verifier drafts with its own speculators, verifies, and repeats the plan for as long as a
grant allows (docs/protocol.md). To planner and statistics its speculators are one service like others.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from specinfer.errors import MalformedTreeError
from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.planning.step_report import DraftTime
from specinfer.remote.service import SpeculatorService
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.v1 import speculator_pb2, verifier_pb2

GRANT_S = 0.016
"""Most seconds of steps between two messages: deliveries to clients are as far apart (`gateway.session.persist`)."""
_MOST_STEPS = 16
_SHAPES = {
    Speculation.OFF: speculator_pb2.TREE_SHAPE_UNSPECIFIED,
    Speculation.TREE: speculator_pb2.TREE_SHAPE_TREE,
    Speculation.SEQUENCE: speculator_pb2.TREE_SHAPE_SEQUENCE,
}


class HostOrder(NamedTuple):
    """Content of a step's message beside its entries and trees."""

    grant: verifier_pb2.Grant | None = None
    """None: one step, of the trees of the message."""
    plans: Mapping[str, verifier_pb2.TreePlan] = MappingProxyType({})
    """Trees that the verifier makes, by request."""
    references: Mapping[str, Sequence[Sequence[int]]] = MappingProxyType({})
    """Texts that requests which start over may copy from."""


NO_ORDER = HostOrder()


class ResidentDrafts:
    """The verifier's own speculators, as a service of the pool."""

    def __init__(self, service: SpeculatorService) -> None:
        """Create it for the service that stands for them; the service has no connection of its own."""
        self.service = service

    def chosen(self, speculators: SpeculatorSet) -> SpeculatorSet:
        """Return those of a choice that are here, and not left out for their faults."""
        now = self.service.clock()
        own = speculators & frozenset(self.service.members)
        return frozenset(s for s in own if not self.service.faults.left_out(s, now))

    def references(self, entries: Sequence[StepEntry]) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return the texts that starting requests may copy from, if these speculators read any."""
        if not self.service.reads_references:
            return {}
        return {entry.request_id: entry.state.request.references for entry in entries if not entry.base_len}

    def note(self, drafts: verifier_pb2.ResidentDrafts) -> tuple[DraftTime, dict[int, int]]:
        """Count the drafts of a step; return their time, and the proposed nodes by speculator."""
        service = self.service
        seconds, own, nodes = drafts.microseconds / 1e6, dict[int, float](), dict[int, int]()
        for number, each in zip(service.members, drafts.speculators, strict=False):
            nodes[number] = each.nodes
            if each.microseconds:
                own[number] = each.microseconds / 1e6
                service.statistics.count("ok")
                if not each.malformed:
                    service.faults.note_sound(number)
            for _ in range(each.failed):
                service.note_failed(number, "the verifier's log says why")
            for _ in range(each.malformed):
                service.note_malformed(number, MalformedTreeError("tree", "", "dropped by the verifier"))
        service.last_seconds = seconds
        service.counters.answered += 1
        rest = max(0.0, seconds - sum(own.values()))
        members = frozenset(service.members)
        return DraftTime(members, own, rest, drafts.read_tokens, resident=True), nodes


def grant_of(
    choice: Choice, chosen: SpeculatorSet, entries: Sequence[StepEntry], repeats: bool
) -> tuple[verifier_pb2.Grant, dict[str, verifier_pb2.TreePlan]]:
    """Return the grant of a step, and the tree of each request that the verifier makes.

    A request whose prompt is read in this step has no drafts in it, so that its first token does not wait for them.

    Args:
        choice: the planner's.
        chosen: the verifier's own speculators of that choice.
        entries: all requests of the step.
        repeats: whether the plan may be repeated without a message.
    """
    decoding = all(entry.final and len(entry.delta) == 1 and entry.base_len for entry in entries)
    grant = verifier_pb2.Grant(
        steps=_MOST_STEPS if repeats and decoding else 1,
        microseconds=round(GRANT_S * 1e6),
        speculators=sorted(chosen),
        step_nodes=choice.step_nodes,
        node_threshold=choice.node_threshold,
    )
    return grant, {entry.request_id: _tree_plan(entry) for entry in entries if entry.final}


def _tree_plan(entry: StepEntry) -> verifier_pb2.TreePlan:
    limits, state = entry.limits, entry.state
    return verifier_pb2.TreePlan(
        node_budget=limits.nodes if len(entry.delta) == 1 else 0,
        max_depth=limits.depth,
        max_positions=len(state.tokens) + entry.reach,
        shape=_SHAPES[state.request.speculation],
        min_path_probability=limits.min_path_probability,
        tokens_per_second=limits.tokens_per_second,
        forced=entry.forced,
        drawn_for=state.drawn_for,
    )
