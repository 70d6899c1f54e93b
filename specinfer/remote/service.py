"""Track a speculator service's replica: its caches, messages and answers.

A replica runs one or more speculators, which the pool numbers; the pool owns the connections. Invariant:
`cached_len` is never more than the service reported.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specinfer.drafters.refusals import Refusals
from specinfer.errors import MalformedTreeError
from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.step_report import DraftTime
from specinfer.remote.description import consent_of, scope_of
from specinfer.remote.drafts import CONTEXT_CHUNK, DraftStream, TreeShare, encode_top_k, sound_tree
from specinfer.remote.faults import DraftFaults, DraftStatistics, ServiceCounters
from specinfer.request.sampling import draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.entries import LatestDrafts, StepEntry
from specinfer.scheduling.target_outputs import TargetOutputs
from specinfer.tree import TokenTree, depth_limit
from specinfer.v1 import common_pb2, speculator_pb2, speculator_pb2_grpc
from specinfer.wire.sampling_codec import encode_sampling


class DraftQuery(NamedTuple):
    """One request's entry and the speculators asked to draft for it."""

    entry: StepEntry
    speculators: SpeculatorSet


@dataclass(slots=True)
class SpeculatorService:
    """A replica of a service and its statistics."""

    service: str
    """The service's name in the setting, common to all replicas."""
    address: str
    stub: speculator_pb2_grpc.SpeculatorStub | None
    """None for the verifier's resident speculators, which have no connection."""
    stream: DraftStream | None
    members: tuple[int, ...] = ()
    """Numbers of the replica's speculators, in Describe's order; empty before an answer."""
    drawing: SpeculatorSet = frozenset()
    """Numbers of speculators that may draw."""
    distrusted: SpeculatorSet = frozenset()
    """Numbers of untrusted speculators with draws, which only draft for greedy requests."""
    reads_references: bool = False
    """True if any speculator uses references, by the latest description."""
    description: speculator_pb2.DescribeSpeculatorReply | None = None
    """Latest description; None while the replica is unavailable."""
    cached_len: dict[str, int] = field(default_factory=dict)
    """Context tokens in the replica's cache, by request id."""
    features_len: dict[str, int] = field(default_factory=dict)
    """End position of the received features, by request id."""
    latest: LatestDrafts = field(default_factory=LatestDrafts)
    refusals: Refusals = field(default_factory=Refusals)
    losses: int = 0
    """Number of consecutive failed calls since the last answer."""
    busy: bool = False
    last_seconds: float = 0.0
    """Seconds from the latest message to its answer."""
    learning: common_pb2.LearningState | None = None
    """Latest state of learning in a reply; None before the first."""
    counters: ServiceCounters = field(default_factory=ServiceCounters)
    statistics: DraftStatistics = field(default_factory=DraftStatistics)
    faults: DraftFaults = field(init=False)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.faults = DraftFaults(self.address)

    def asked(self, entries: Sequence[StepEntry], chosen: SpeculatorSet) -> dict[str, DraftQuery]:
        now = self.clock()
        present = frozenset(s for s in self.members if s in chosen and not self.faults.left_out(s, now))
        asked = {}
        for entry in entries:
            wanted = present
            if not entry.state.sampling.greedy:
                wanted -= self.distrusted
                if not entry.state.drawn_for:
                    wanted -= self.drawing  # request is older: others have seen its seed
            if not entry.drafts or len(entry.state.tokens) > self.longest_context:
                continue
            if self.has_drafted(entry):
                continue
            willing = frozenset(self.refusals.willing(entry.request_id, wanted))
            if willing:
                asked[entry.request_id] = DraftQuery(entry, willing)
        return asked

    def has_drafted(self, entry: StepEntry) -> bool:
        """Return whether the replica has drafted for this context.

        In that case the verifier deferred the request, and the same drafts are used again.
        """
        cached_len = self.cached_len.get(entry.request_id, 0)
        return self.description is not None and entry.drafts and cached_len == len(entry.state.tokens)

    def will_draw(self, asked: Iterable[DraftQuery]) -> bool:
        """Return whether any of these queries may cause draws."""
        return any(
            entry.state.drawn_for
            and bool(speculators & self.drawing)
            and self.cached_len.get(entry.request_id, 0) + CONTEXT_CHUNK >= len(entry.state.tokens)
            for entry, speculators in asked
        )

    @property
    def longest_context(self) -> float:
        """Maximum context tokens; infinite if unlimited or unavailable."""
        return (self.description.max_context_len if self.description else 0) or math.inf

    def depth_limit(self, entry: StepEntry) -> int:
        """Return the entry's maximum depth, limited by the replica's context length."""
        depth, longest = entry.limits.depth, self.longest_context
        if longest == math.inf:
            return depth
        return min(depth, depth_limit(0, len(entry.state.tokens), int(longest)))

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers whose hidden states the replica reads."""
        return tuple(self.description.feature_layers) if self.description else ()

    @property
    def target_top_k(self) -> int:
        """Number of target predictions read per node; 0: none."""
        return self.description.target_top_k if self.description else 0

    def encode(
        self, asked: DraftQuery, relay: TargetOutputs, feature_bytes: int, scoped: bool = False
    ) -> speculator_pb2.DraftEntry:
        """Encode a request's entry, with at most `feature_bytes` bytes of features.

        With `scoped`, only requests of one caller share cached prompts.
        """
        entry, speculators = asked
        tokens, cached_len = entry.state.tokens, self.cached_len.get(entry.request_id, 0)
        if cached_len > len(tokens):
            cached_len = 0  # only if the service reported a wrong length: start over
        if cached_len == 0:
            self.features_len[entry.request_id] = 0  # features start over with the context
        start, features = relay.features.take(
            entry.request_id,
            self.features_len.get(entry.request_id, 0),
            self.feature_layers,
            feature_bytes,
        )
        delta = tokens[cached_len : cached_len + CONTEXT_CHUNK]
        complete = cached_len + len(delta) == len(tokens)
        max_nodes = self.description.max_nodes if self.description else 0
        chain = entry.limits.width == 1
        sampling = entry.state.sampling
        learns = cached_len == 0 and self.description is not None and self.description.learns
        return speculator_pb2.DraftEntry(
            request_id=entry.request_id,
            base_len=cached_len,
            delta_token_ids=delta,
            node_budget=min(entry.limits.nodes, max_nodes) if complete else 0,
            max_depth=self.depth_limit(entry),
            shape=speculator_pb2.TREE_SHAPE_SEQUENCE if chain else speculator_pb2.TREE_SHAPE_TREE,
            sampling=encode_sampling(sampling, not entry.state.drawn_for, with_adjustments=False),
            speculators=[place for place, s in enumerate(self.members) if s in speculators],
            min_path_probability=entry.limits.min_path_probability,
            tokens_per_second=entry.limits.tokens_per_second,
            draw_seed=draft_seed(sampling.seed, self.members[0]),
            target_features=features,
            features_start=start,
            target_top_k=encode_top_k(relay.top_k.take(entry.request_id, self.target_top_k)),
            learning=consent_of(entry.state.request) if learns else None,
            cache_scope=scope_of(entry.state.request, scoped) if cached_len == 0 else "",
        )

    def accept(
        self,
        asked: Mapping[str, DraftQuery],
        result: speculator_pb2.DraftResult,
        vocab_size: int,
        share: TreeShare,
        in_time: bool = True,
        features_until: int = 0,
    ) -> list[tuple[int, TokenTree]]:
        """Return a result's valid trees by speculator; update the statistics.

        `features_until` is the end position of the sent features.
        """
        request_id = result.request_id
        if request_id not in asked or asked[request_id].entry.state.finish is not None:
            self.statistics.count("stale", len(asked[request_id].speculators) if request_id in asked else 1)
            return []
        if result.status == int(EntryStatus.RESYNC):
            self.cached_len[request_id] = self.features_len[request_id] = 0
            self.statistics.resyncs += 1
            return []
        entry, speculators = asked[request_id]
        if result.status != int(EntryStatus.OK):
            self.cached_len[request_id] = min(self.cached_len.get(request_id, 0), result.cached_len)
            for speculator in speculators:
                self._failed(request_id, speculator, result.status, result.message)
            return []
        self.cached_len[request_id] = result.cached_len
        self.features_len[request_id] = features_until
        trees: dict[int, TokenTree] = {}
        wrong: set[int] = set()
        failed: set[int] = set()
        for draft in result.drafts:
            speculator = self._number(draft, speculators)
            if draft.status in (int(EntryStatus.ERROR), int(EntryStatus.EXHAUSTED)):
                wrong.add(speculator)
                failed.add(speculator)
                self._failed(request_id, speculator, draft.status, draft.message)
                continue
            try:
                if speculator not in speculators or speculator in trees:
                    reason = "must be a requested speculator, and occur once"
                    raise MalformedTreeError("draft.speculator", draft.speculator, reason)
                tree = sound_tree(draft.tree, speculator, entry, vocab_size, share)
                if tree.has_draws and not self._may_draw(speculator, entry):
                    reason = "must be points: speculators may not sample for this request"
                    raise MalformedTreeError("tree.proposals", "drawn", reason)
            except MalformedTreeError as error:
                wrong.add(speculator)
                self.note_malformed(speculator, error)
            else:
                self.faults.note_sound(speculator)
                trees[speculator] = tree
        for speculator in speculators - failed:
            self.refusals.served(request_id, speculator)
        self.statistics.count("ok" if in_time else "late", len(speculators - wrong))
        self.latest.note(entry, list(trees.items()))
        return list(trees.items())

    def _number(self, draft: speculator_pb2.Draft, asked: SpeculatorSet) -> int:
        """Return the number of a draft's speculator.

        An index out of range counts against the lowest requested speculator.
        """
        in_range = draft.speculator < len(self.members)
        return self.members[draft.speculator] if in_range else min(asked)

    def _may_draw(self, speculator: int, entry: StepEntry) -> bool:
        """Return whether a draft may contain draws. Greedy requests ignore q."""
        state = entry.state
        return state.sampling.greedy or (state.drawn_for and speculator in self.drawing)

    def note_failed(self, speculator: int, reason: str) -> None:
        self.statistics.count("failed")
        self.faults.note(speculator, self._name(speculator), reason, self.clock())

    def _failed(self, request_id: str, speculator: int, status: int, reason: str) -> None:
        self.note_failed(speculator, reason)
        if status == int(EntryStatus.EXHAUSTED):
            self.refusals.defer(request_id, speculator)
        else:
            self.refusals.refuse(request_id, speculator)

    def note_malformed(self, speculator: int, error: MalformedTreeError) -> None:
        """Count a malformed tree; `IN_A_ROW` consecutive trees cause a quarantine."""
        self.statistics.count("malformed")
        if self.faults.note_malformed(speculator, self._name(speculator), error, self.clock()):
            self.statistics.quarantines[speculator] += 1

    def _name(self, speculator: int) -> str:
        described = self.description.speculators if self.description else ()
        names = dict(zip(self.members, (member.name for member in described), strict=False))
        return names.get(speculator, f"number {speculator}")

    def draft_time(self, reply: speculator_pb2.DraftReply, read: int) -> DraftTime:
        """Return the latest answer's times; `read` as in `DraftTime`."""
        reported = zip(self.members, reply.speculator_us, strict=False)
        # reported seconds are limited by the measured seconds of the answer
        own_s = {s: min(us / 1e6, self.last_seconds) for s, us in reported if us}
        wire_s = max(0.0, self.last_seconds - sum(own_s.values()))
        return DraftTime(frozenset(self.members), own_s, wire_s, read)

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.cached_len.pop(request_id, None)
            self.features_len.pop(request_id, None)
        self.latest.forget(request_ids)
        self.refusals.forget(request_ids)

    def replaced(self) -> None:
        """Reset the records after another process has started at the address.

        Its caches are empty, and refusals of the previous process do not apply.
        """
        self.cached_len.clear()
        self.features_len.clear()
        self.latest.clear()
        self.refusals.clear()
        self.learning = None
