"""Rules of drafting for drafters that share contexts, here or at a service.

A group decides which requests its drafters are asked for and with which inputs, and which trees are used. Invariant:
`cached_len` is never more than the drafters reported.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from specinfer.drafters import TargetTopK
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.drafters.refusals import Refusals, is_momentary
from specinfer.engine.draft_faults import DraftFaults, DraftStatistics
from specinfer.errors import FaultError, MalformedTreeError, SpecInferError
from specinfer.planning.choice import SpeculatorSet
from specinfer.request.sampling import draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.entries import LatestDrafts, StepEntry
from specinfer.scheduling.request import GenerationRequest
from specinfer.scheduling.target_outputs import Predicted, TargetOutputs
from specinfer.tree import TokenTree, TreeLimits, check_draft, depth_limit

CONTEXT_CHUNK = 1024
"""Maximum context tokens of a request that a group reads per step."""
_NO_TREE = TreeLimits(0, 0)


class DraftQuery(NamedTuple):
    """One request's entry and the speculators asked to draft for it."""

    entry: StepEntry
    speculators: SpeculatorSet


class DraftInputs(NamedTuple):
    """Inputs of the entries of a group in one step."""

    outputs: TargetOutputs
    feature_bytes: int
    """Maximum bytes of features per entry."""
    scope: Callable[[GenerationRequest], str]
    """Maps a request to the scope in which prompts are shared."""
    max_read: int = 0
    """Maximum new context tokens per entry; 0: `CONTEXT_CHUNK`."""


@dataclass(kw_only=True)
class DraftRecord:
    """Speculators of one place, and their faults and counts."""

    address: str
    members: tuple[int, ...] = ()
    """Numbers of the place's speculators in the pool; empty before they are described."""
    drawing: SpeculatorSet = frozenset()
    """Numbers of speculators that may draw."""
    distrusted: SpeculatorSet = frozenset()
    """Numbers of untrusted speculators with draws, which only draft for greedy requests."""
    statistics: DraftStatistics = field(default_factory=DraftStatistics)
    faults: DraftFaults = field(init=False)
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.faults = DraftFaults(self.address)

    def sound(self, speculators: SpeculatorSet) -> SpeculatorSet:
        """Return the chosen members that are not quarantined."""
        now = self.clock()
        return frozenset(s for s in self.members if s in speculators and not self.faults.left_out(s, now))

    def name_of(self, speculator: int) -> str:
        return f"number {speculator}"

    def note_failed(self, speculator: int, reason: str) -> None:
        self.statistics.count("failed")
        self.faults.note(speculator, self.name_of(speculator), reason, self.clock())

    def note_malformed(self, speculator: int, error: SpecInferError) -> None:
        """Count a malformed tree; `IN_A_ROW` consecutive trees cause a quarantine."""
        self.statistics.count("malformed")
        if self.faults.note_malformed(speculator, self.name_of(speculator), error, self.clock()):
            self.statistics.quarantines[speculator] += 1


@dataclass(kw_only=True)
class DraftGroup(DraftRecord, ABC):
    """Drafters with common contexts, and the requests that they have read."""

    cached_len: dict[str, int] = field(default_factory=dict)
    """Context tokens in the drafters' cache, by request id."""
    features_len: dict[str, int] = field(default_factory=dict)
    """End position of the received features, by request id."""
    latest: LatestDrafts = field(default_factory=LatestDrafts)
    refusals: Refusals = field(default_factory=Refusals)

    @property
    @abstractmethod
    def available(self) -> bool:
        """True if the drafters can be asked."""

    @property
    @abstractmethod
    def max_nodes(self) -> int:
        """Maximum nodes of a drafted tree."""

    @property
    @abstractmethod
    def longest_context(self) -> float:
        """Maximum context tokens; infinite if unlimited or unavailable."""

    @property
    @abstractmethod
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the group reads, ascending."""

    @property
    @abstractmethod
    def target_top_k(self) -> int:
        """Number of target predictions read per node; 0: none."""

    @property
    @abstractmethod
    def reads_references(self) -> bool:
        """True if any drafter uses references, by the latest description."""

    def asked(self, entries: Sequence[StepEntry], chosen: SpeculatorSet) -> dict[str, DraftQuery]:
        """Return the requests that the chosen speculators should draft for, by id."""
        present, asked = self.sound(chosen), dict[str, DraftQuery]()
        for entry in entries:
            wanted = present
            if not entry.state.sampling.greedy:
                wanted -= self.distrusted
                if not entry.state.drawn_for:
                    wanted -= self.drawing  # drafters see this request's noise: draws would depend on it
            if not entry.drafts or len(entry.state.tokens) > self.longest_context or self.has_drafted(entry):
                continue
            willing = frozenset(self.refusals.willing(entry.request_id, wanted))
            if willing:
                asked[entry.request_id] = DraftQuery(entry, willing)
        return asked

    def has_drafted(self, entry: StepEntry) -> bool:
        """Return whether the group has drafted for this context.

        In that case the verifier deferred the request, and the same drafts are used again.
        """
        cached_len = self.cached_len.get(entry.request_id, 0)
        return self.available and entry.drafts and cached_len == len(entry.state.tokens)

    def will_draw(self, asked: Iterable[DraftQuery]) -> bool:
        """Return whether any of these queries may cause draws."""
        return any(
            entry.state.drawn_for
            and bool(speculators & self.drawing)
            and self.cached_len.get(entry.request_id, 0) + CONTEXT_CHUNK >= len(entry.state.tokens)
            for entry, speculators in asked
        )

    def entry(self, asked: DraftQuery, inputs: DraftInputs) -> DraftEntry:
        """Return a request's entry, without nodes while the context is incomplete."""
        entry, speculators = asked
        state, request_id = entry.state, entry.request_id
        cached_len = self.cached_len.get(request_id, 0)
        if cached_len > len(state.tokens):
            cached_len = 0  # only if the drafters reported a wrong length: start over
        if cached_len == 0:
            self.features_len[request_id] = 0  # features start over with the context
        outputs, layers = inputs.outputs, self.feature_layers
        start, features = outputs.features.take(
            request_id, self.features_len.get(request_id, 0), layers, inputs.feature_bytes
        )
        delta = state.tokens[cached_len : cached_len + (inputs.max_read or CONTEXT_CHUNK)]
        predicted = outputs.top_k.take(request_id, self.target_top_k)
        return DraftEntry(
            request_id,
            cached_len,
            delta,
            self._limits(entry) if cached_len + len(delta) == len(state.tokens) else _NO_TREE,
            state.sampling,
            [place for place, number in enumerate(self.members) if number in speculators],
            draft_seed(state.sampling.seed, self.members[0]),
            not state.drawn_for,
            features,
            start,
            None if predicted is None else _top_k(predicted),
            state.request.references if cached_len == 0 and self.reads_references else (),
            inputs.scope(state.request) if cached_len == 0 else "",
        )

    def accept(
        self,
        asked: Mapping[str, DraftQuery],
        outcome: DraftOutcome,
        check: Callable[[TokenTree, StepEntry], None],
        in_time: bool = True,
        features_until: int = 0,
    ) -> list[tuple[int, TokenTree]]:
        """Return an outcome's valid trees by speculator; update caches and counts.

        Args:
            asked: the requests whose outcomes are awaited.
            outcome: the drafters' answer for one request.
            check: raises `MalformedTreeError` for trees that may not be used.
            in_time: whether the trees are used; late trees are only counted.
            features_until: end position of the features in the entry.
        """
        request_id = outcome.request_id
        if request_id not in asked or asked[request_id].entry.state.finish is not None:
            self.statistics.count("stale", len(asked[request_id].speculators) if request_id in asked else 1)
            return []
        entry, speculators = asked[request_id]
        if outcome.status is EntryStatus.RESYNC:
            self.cached_len[request_id] = self.features_len[request_id] = 0
            self.statistics.resyncs += 1
            return []
        if outcome.status is not EntryStatus.OK:
            self.cached_len[request_id] = min(self.cached_len.get(request_id, 0), outcome.cached_len)
            momentary = outcome.status is EntryStatus.EXHAUSTED
            for speculator in speculators:
                self._failed(request_id, speculator, momentary, outcome.message)
            return []
        self.cached_len[request_id] = outcome.cached_len
        self.features_len[request_id] = features_until
        trees, wrong, failed = dict[int, TokenTree](), set[int](), set[int]()
        for place, draft in outcome.drafts:
            speculator = self.members[place] if place < len(self.members) else min(speculators)
            if isinstance(draft, SpecInferError) and not isinstance(draft, MalformedTreeError):
                failed.add(speculator)
                self._failed(request_id, speculator, is_momentary(draft), draft.for_logs)
                continue
            try:
                trees[speculator] = self._checked(draft, place, speculator, asked[request_id], trees, check)
            except MalformedTreeError as error:
                wrong.add(speculator)
                self.note_malformed(speculator, error)
            except Exception as error:  # noqa: BLE001  # drafters are extensions: only the draft is lost
                wrong.add(speculator)
                self.note_malformed(speculator, FaultError("a tree could not be checked", error))
            else:
                self.faults.note_sound(speculator)
        for speculator in speculators - failed:
            self.refusals.served(request_id, speculator)
        self.statistics.count("ok" if in_time else "late", len(speculators - wrong - failed))
        self.latest.note(entry, list(trees.items()))
        return list(trees.items())

    def forget(self, request_ids: Sequence[str]) -> None:
        for request_id in request_ids:
            self.cached_len.pop(request_id, None)
            self.features_len.pop(request_id, None)
        self.latest.forget(request_ids)
        self.refusals.forget(request_ids)

    def _limits(self, entry: StepEntry) -> TreeLimits:
        """Return the entry's limits of a tree, within those of the group."""
        limits, longest = entry.limits, self.longest_context
        depth = limits.depth
        if longest != math.inf:
            depth = min(depth, depth_limit(0, len(entry.state.tokens), int(longest)))
        return replace(limits, nodes=min(limits.nodes, self.max_nodes), depth=depth)

    def _checked(
        self,
        draft: TokenTree | SpecInferError,
        place: int,
        speculator: int,
        asked: DraftQuery,
        trees: Mapping[int, TokenTree],
        check: Callable[[TokenTree, StepEntry], None],
    ) -> TokenTree:
        """Return a valid tree, with its speculator's number in all proposals."""
        entry, speculators = asked
        if isinstance(draft, SpecInferError):
            raise draft
        if place >= len(self.members) or speculator not in speculators or speculator in trees:
            reason = "must be a requested speculator, and occur once"
            raise MalformedTreeError("draft.speculator", place, reason)
        check(draft, entry)
        if draft.has_draws and not self._may_draw(speculator, entry):
            reason = "must be points: speculators may not sample for this request"
            raise MalformedTreeError("tree.proposals", "drawn", reason)
        return draft

    def _may_draw(self, speculator: int, entry: StepEntry) -> bool:
        """Return whether a draft may contain draws. Greedy requests ignore q."""
        state = entry.state
        return state.sampling.greedy or (state.drawn_for and speculator in self.drawing)

    def _failed(self, request_id: str, speculator: int, momentary: bool, reason: str) -> None:
        self.note_failed(speculator, reason)
        note = self.refusals.defer if momentary else self.refusals.refuse
        note(request_id, speculator)


def _top_k(predicted: Predicted) -> TargetTopK:
    return TargetTopK(predicted.tree.token_ids.astype("int64"), predicted.tree.parents, predicted.top_k)


def checks(vocab_size: int) -> Callable[[TokenTree, StepEntry], None]:
    """Return the check of a tree against its request, for a target's vocabulary."""
    return lambda tree, entry: check_draft(tree, entry.delta[-1], entry.limits, vocab_size)
