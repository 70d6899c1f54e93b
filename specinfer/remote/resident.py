"""Request drafts of the verifier's own speculators, and grants of several steps.

The gateway plans once; the verifier drafts with its resident speculators, verifies, and repeats the plan
within a grant (docs/protocol.md). Planner and statistics treat resident speculators as one service.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from specinfer.errors import MalformedTreeError
from specinfer.planning.choice import Choice, SpeculatorSet
from specinfer.planning.step_report import DraftTime
from specinfer.remote.service import SpeculatorRecord
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.request import Speculation
from specinfer.v1 import speculator_pb2, verifier_pb2

GRANT_S = 0.016
"""Maximum seconds of a grant, equal to the delivery interval (`gateway.session.persist`)."""
_MAX_STEPS = 16
_SHAPES = {
    Speculation.OFF: speculator_pb2.TREE_SHAPE_UNSPECIFIED,
    Speculation.TREE: speculator_pb2.TREE_SHAPE_TREE,
    Speculation.SEQUENCE: speculator_pb2.TREE_SHAPE_SEQUENCE,
    Speculation.ALWAYS: speculator_pb2.TREE_SHAPE_TREE,
}


class HostOrder(NamedTuple):
    """Fields of a step's message to the verifier, except entries and trees."""

    grant: verifier_pb2.Grant | None = None
    """None: the verifier makes one step with the message's trees."""
    plans: Mapping[str, verifier_pb2.TreePlan] = MappingProxyType({})
    """Limits of the trees that the verifier drafts, by request id."""
    references: Mapping[str, Sequence[Sequence[int]]] = MappingProxyType({})
    """Reference texts [token ids] of requests with base_len 0, by request id."""


NO_ORDER = HostOrder()


@dataclass(kw_only=True)
class ResidentDrafts(SpeculatorRecord):
    """The verifier's resident speculators, planned like those of a service."""

    def references(self, entries: Sequence[StepEntry]) -> Mapping[str, Sequence[Sequence[int]]]:
        """Return references of requests with base_len 0; {} if no speculator uses them."""
        if not self.reads_references:
            return {}
        return {entry.request_id: entry.state.request.references for entry in entries if not entry.base_len}

    def note(self, drafts: verifier_pb2.ResidentDrafts) -> tuple[DraftTime, dict[int, int]]:
        """Count a step's drafts; return their time, and nodes by speculator."""
        seconds, own_seconds, nodes = drafts.microseconds / 1e6, dict[int, float](), dict[int, int]()
        for number, speculator in zip(self.members, drafts.speculators, strict=False):
            nodes[number] = speculator.nodes
            if speculator.microseconds:
                own_seconds[number] = speculator.microseconds / 1e6
                self.statistics.count("ok")
                if not speculator.malformed:
                    self.faults.note_sound(number)
            for _ in range(speculator.failed):
                self.note_failed(number, "the reason is in the verifier's log")
            for _ in range(speculator.malformed):
                self.note_malformed(number, MalformedTreeError("tree", "", "dropped by the verifier"))
        self.answered += 1
        rest = max(0.0, seconds - sum(own_seconds.values()))
        members = frozenset(self.members)
        return DraftTime(members, own_seconds, rest, drafts.read_tokens, resident=True), nodes


def grant_of(
    choice: Choice, chosen: SpeculatorSet, entries: Sequence[StepEntry], repeats: bool
) -> tuple[verifier_pb2.Grant, dict[str, verifier_pb2.TreePlan]]:
    """Return a step's grant, and tree plans by request id.

    A request whose prompt is read in this step gets no drafts, so that its first token is not delayed.

    Args:
        choice: the planner's choice.
        chosen: the resident speculators of the choice.
        entries: all requests of the step.
        repeats: whether the plan may be repeated without a message.
    """
    decoding = all(entry.final and len(entry.delta) == 1 and entry.base_len for entry in entries)
    grant = verifier_pb2.Grant(
        steps=_MAX_STEPS if repeats and decoding else 1,
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
