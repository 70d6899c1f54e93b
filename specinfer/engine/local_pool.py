"""Drafters of this process, called directly instead of over gRPC (`specinfer.remote`).

Drafters of one group share contexts and draft one after another, like the drafters of a speculator service. They have
the same numbers and random streams as in services, so outputs are equal. Malformed trees are dropped.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from specinfer.drafters import TargetTopK
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.drafters.refusals import Refusals
from specinfer.errors import ExhaustedError, FaultError, MalformedTreeError, SpecInferError
from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.step_report import DraftTime, tokens_read
from specinfer.request.sampling import draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.entries import LatestDrafts, StepEntry, VerdictEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, TargetOutputs, WantedOutputs
from specinfer.tree import TokenTree, TreeLimits, check_draft

log = logging.getLogger(__name__)
FEATURE_BYTES = 2**24
"""Maximum bytes of hidden states that a request's group reads per step."""
_MAX_READ = 1024
"""Maximum context tokens that a group reads per step, divided among requests."""
_MIN_READ = 16
"""Minimum share of a request in `_MAX_READ`."""
_NO_TREE = TreeLimits(0, 0)


@dataclass(slots=True)
class MemberCounts:
    """Counts of one drafter's drafts in a step."""

    nodes: int = 0
    """Number of drafted nodes, roots excluded."""
    failed: int = 0
    malformed: int = 0
    """Number of malformed trees."""

    def add(self, other: "MemberCounts") -> None:
        self.nodes += other.nodes
        self.failed += other.failed
        self.malformed += other.malformed


@dataclass(slots=True)
class DrafterGroup:
    """Drafters that share contexts."""

    engine: SpeculatorEngine
    members: tuple[int, ...]
    """Numbers of the group's drafters in the pool, in engine order."""
    cached_len: dict[str, int] = field(default_factory=dict)
    """Number of context tokens that the engine caches, by request id."""
    features_len: dict[str, int] = field(default_factory=dict)
    """Context position after the last hidden state read, by request id."""
    latest: LatestDrafts = field(default_factory=LatestDrafts)
    failed: set[int] = field(default_factory=set)
    """Members whose first failure was logged; later failures are only counted."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the group reads."""
        return self.engine.description.feature_layers

    @property
    def target_top_k(self) -> int:
        """Number of the target's top tokens that the group reads per node."""
        return self.engine.description.target_top_k


class LocalPool:
    def __init__(
        self, engines: Sequence[tuple[SpeculatorEngine, Sequence[str]]], hidden_size: int, vocab_size: int
    ) -> None:
        """Number the drafters of all engines, from 0.

        Args:
            engines: each engine with its drafters' names; one group per engine.
            hidden_size: size of the target's hidden states.
            vocab_size: size of the target's vocabulary.
        """
        self.names = [name for _, names in engines for name in names]
        self._groups: list[DrafterGroup] = []
        for engine, names in engines:
            start = sum(len(group.members) for group in self._groups)
            self._groups.append(DrafterGroup(engine, tuple(range(start, start + len(names)))))
        self.groups: list[SpeculatorSet] = [frozenset(group.members) for group in self._groups]
        self.drawing = frozenset(
            number
            for group in self._groups
            for number, drafter in zip(group.members, group.engine.drafters, strict=True)
            if drafter.description.draws
        )
        self.reads_references = any(group.engine.description.reads_references for group in self._groups)
        self.outputs, self._vocab_size = TargetOutputs(hidden_size), vocab_size
        self.counts: dict[int, MemberCounts] = {}
        """Counts of the latest step by drafter."""
        self.failures = 0
        """Number of failed drafts."""
        self._refusals = Refusals()

    @property
    def draws(self) -> bool:
        """True if any drafter draws its drafts for sampled requests."""
        return bool(self.drawing)

    def draft(
        self, entries: Sequence[StepEntry], chosen: SpeculatorSet
    ) -> tuple[dict[str, list[tuple[int, TokenTree]]], list[DraftTime]]:
        """Draft; return (speculator, tree) pairs by request id, and groups' times."""
        by_request: dict[str, list[tuple[int, TokenTree]]] = {}
        times: list[DraftTime] = []
        self.counts = {}
        # only decoding requests draft: a first token should not wait until drafters have read the prompt
        asked = [entry for entry in entries if entry.drafts and len(entry.delta) == 1]
        for group in self._groups:
            for entry in entries:
                if entry.drafts and (kept := group.latest.of(entry)):
                    by_request.setdefault(entry.request_id, []).extend(kept)
            wanted = chosen & frozenset(group.members)
            if not wanted or not asked:
                continue
            max_read = max(_MIN_READ, _MAX_READ // len(asked))
            jobs = {
                e.request_id: job
                for e in asked
                if (job := self._entry(group, e, wanted, max_read)) is not None
            }
            if not jobs:
                continue
            started = time.perf_counter()
            outcomes = group.engine.draft(list(jobs.values()))
            seconds = time.perf_counter() - started
            by_name = {entry.request_id: entry for entry in asked}
            for outcome in outcomes:
                trees = self._accept(group, jobs[outcome.request_id], outcome)
                group.latest.note(by_name[outcome.request_id], trees)
                if trees:
                    by_request.setdefault(outcome.request_id, []).extend(trees)
            own_seconds = {n: s for n, s in zip(group.members, group.engine.seconds, strict=True) if s}
            read = tokens_read([len(job.delta) for job in jobs.values()])
            times.append(
                DraftTime(
                    frozenset(group.members), own_seconds, max(0.0, seconds - sum(own_seconds.values())), read
                )
            )
        return by_request, times

    def wanted(self, entries: Sequence[StepEntry]) -> WantedOutputs:
        """Return the outputs of the target that the groups' drafters read."""
        if not any(group.feature_layers or group.target_top_k for group in self._groups):
            return NOTHING_WANTED
        return self.outputs.wanted(entries, self._groups)

    def keep(
        self, wanted: WantedOutputs, trees: Mapping[str, TokenTree], verdicts: Mapping[str, VerdictEntry]
    ) -> None:
        """Store the target's outputs of a pass until the next draft."""
        self.outputs.arrived(wanted, trees, verdicts)

    def release(self, request_ids: Sequence[str]) -> None:
        self.outputs.forget(request_ids)
        self._refusals.forget(request_ids)
        for group in self._groups:
            group.engine.release(request_ids)
            for request_id in request_ids:
                group.cached_len.pop(request_id, None)
                group.features_len.pop(request_id, None)
            group.latest.forget(request_ids)

    def _entry(
        self, group: DrafterGroup, entry: StepEntry, wanted: SpeculatorSet, max_read: int
    ) -> DraftEntry | None:
        """Return a group's entry; None if none of its drafters may draft.

        The entry has at most `max_read` new context tokens, and no nodes if the context is still incomplete.
        """
        state, request_id = entry.state, entry.request_id
        if not state.sampling.greedy and not state.drawn_for:
            wanted -= self.drawing  # drafters see this request's noise: draws would depend on it
        wanted = frozenset(self._refusals.willing(request_id, wanted))
        if not wanted:
            return None
        cached_len = group.cached_len.get(request_id, 0)
        if cached_len == len(state.tokens):
            return None
        if cached_len == 0:
            group.features_len[request_id] = 0
        start, features = self.outputs.features.take(
            request_id, group.features_len[request_id], group.feature_layers, FEATURE_BYTES
        )
        group.features_len[request_id] = self.outputs.features.until(start, features, group.feature_layers)
        delta = state.tokens[cached_len : cached_len + max_read]
        limits = replace(entry.limits, nodes=min(entry.limits.nodes, group.engine.max_nodes))
        return DraftEntry(
            request_id,
            cached_len,
            delta,
            limits if cached_len + len(delta) == len(state.tokens) else _NO_TREE,
            state.sampling,
            [place for place, number in enumerate(group.members) if number in wanted],
            draft_seed(state.sampling.seed, group.members[0]),
            not state.drawn_for,
            features,
            start,
            self._top_k(request_id, group.target_top_k),
            state.request.references if cached_len == 0 and group.engine.description.reads_references else (),
            state.request.caller if cached_len == 0 else "",
        )

    def _top_k(self, request_id: str, k: int) -> TargetTopK | None:
        predicted = self.outputs.top_k.take(request_id, k)
        if predicted is None:
            return None
        tree = predicted.tree
        return TargetTopK(tree.token_ids.astype("int64"), tree.parents, predicted.top_k[:, :k])

    def _accept(
        self, group: DrafterGroup, job: DraftEntry, outcome: DraftOutcome
    ) -> list[tuple[int, TokenTree]]:
        """Return an outcome's valid trees with their speculators' numbers; count failures.

        A request with a failed draft is verified without that speculator's tree.
        """
        group.cached_len[outcome.request_id] = outcome.cached_len if outcome.status is EntryStatus.OK else 0
        trees: list[tuple[int, TokenTree]] = []
        if outcome.status is EntryStatus.ERROR:  # refused for all members
            for place in job.speculators:
                self._refusals.refuse(job.request_id, group.members[place])
            self._failed(group.members[0], group, outcome.message)
        for place, draft in outcome.drafts:
            number = group.members[place]
            if isinstance(draft, SpecInferError):
                self._failed(number, group, draft.for_logs)
                momentary = isinstance(draft, (ExhaustedError, FaultError))
                note = self._refusals.defer if momentary else self._refusals.refuse
                note(job.request_id, number)
                continue
            self._refusals.served(job.request_id, number)
            if self._is_sound(group, place, job, draft):
                self._count(number).nodes += len(draft) - 1
                trees.append((number, draft))
        return trees

    def _is_sound(self, group: DrafterGroup, place: int, job: DraftEntry, tree: TokenTree) -> bool:
        """Return whether a tree is valid; count and log a malformed tree."""
        number = group.members[place]
        may_draw = job.sampling.greedy or (not job.sees_noise and number in self.drawing)
        try:
            check_draft(tree, job.delta[-1], job.limits, self._vocab_size)
            if tree.has_draws and not may_draw:
                reason = "must be points: speculators may not sample for this request"
                raise MalformedTreeError("tree.proposals", "drawn", reason)
        except MalformedTreeError as error:
            self._count(number).malformed += 1
            self._log(number, group, error.for_logs)
            return False
        except Exception as error:  # noqa: BLE001  # drafters are extensions: only the draft is lost
            self._count(number).malformed += 1
            self._log(number, group, f"its tree could not be checked: {type(error).__name__}")
            return False
        return True

    def _count(self, number: int) -> MemberCounts:
        return self.counts.setdefault(number, MemberCounts())

    def _failed(self, number: int, group: DrafterGroup, reason: str) -> None:
        self.failures += 1
        self._count(number).failed += 1
        self._log(number, group, reason)

    def _log(self, number: int, group: DrafterGroup, reason: str) -> None:
        if number not in group.failed:
            group.failed.add(number)
            log.warning(
                "speculator %s: draft failed (further failures are not logged): %s",
                self.names[number],
                reason,
            )
