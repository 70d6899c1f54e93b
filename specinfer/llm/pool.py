"""Drafters in this process, called directly, in the place of `specinfer.remote` over a network.

Drafters of one group share contexts and draft one after another, as those of one service do. Their numbers and
random streams are those that services would have, so texts are the same.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from specinfer.drafters import TargetTopK
from specinfer.drafters.engine import SpeculatorEngine
from specinfer.drafters.entries import DraftEntry, DraftOutcome
from specinfer.errors import SpecInferError
from specinfer.planning.latency import DraftTime, SpeculatorSet, tokens_read
from specinfer.sampling import draft_seed
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.target_outputs import TargetOutputs, WantedOutputs
from specinfer.statuses import EntryStatus
from specinfer.tree import TokenTree

log = logging.getLogger(__name__)
_FEATURE_BYTES = 2**24
"""Most bytes of one request's hidden states handed to a group at once."""


@dataclass(slots=True)
class DrafterGroup:
    """Drafters that share contexts."""

    engine: SpeculatorEngine
    members: tuple[int, ...]
    """Numbers of its drafters in the pool, in the order of the engine."""
    held: dict[str, int] = field(default_factory=dict)
    """Context tokens that the engine holds, by request."""
    features_held: dict[str, int] = field(default_factory=dict)
    """Context positions up to which the group has received hidden states, by request."""
    failed: set[int] = field(default_factory=set)
    """Members whose failures were logged; later ones are only counted."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states it reads."""
        return self.engine.description.feature_layers

    @property
    def target_top_k(self) -> int:
        """Predictions of the target that it reads at each node; 0: none."""
        return self.engine.description.target_top_k


class LocalPool:
    """All drafters of an `LLM`."""

    def __init__(self, engines: Sequence[tuple[SpeculatorEngine, Sequence[str]]], hidden_size: int) -> None:
        """Number the drafters of these engines, each given with the names of its drafters.

        Args:
            hidden_size: numbers in a hidden state of the target.
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
        self.outputs = TargetOutputs(hidden_size)
        self.failures = 0
        """Number of failed drafts."""

    @property
    def drafts_ahead(self) -> bool:
        """False: all draft when the step begins."""
        return False

    @property
    def draws(self) -> bool:
        """True if any drafter draws for requests that are sampled."""
        return bool(self.drawing)

    def draft(
        self, entries: Sequence[StepEntry], chosen: SpeculatorSet
    ) -> tuple[dict[str, list[tuple[int, TokenTree]]], list[DraftTime]]:
        """Draft with the chosen members; return trees by request, and each group's time."""
        found: dict[str, list[tuple[int, TokenTree]]] = {}
        times: list[DraftTime] = []
        asked = [entry for entry in entries if entry.drafts]
        for group in self._groups:
            wanted = chosen & frozenset(group.members)
            if not wanted or not asked:
                continue
            jobs = [job for entry in asked if (job := self._entry(group, entry, wanted)) is not None]
            if not jobs:
                continue
            started = time.perf_counter()
            outcomes = group.engine.draft(jobs)
            seconds = time.perf_counter() - started
            for outcome in outcomes:
                if trees := self._accept(group, outcome):
                    found.setdefault(outcome.request_id, []).extend(trees)
            own = {n: s for n, s in zip(group.members, group.engine.seconds, strict=True) if s}
            read = tokens_read([len(job.delta) for job in jobs])
            times.append(
                DraftTime(frozenset(group.members), own, max(0.0, seconds - sum(own.values())), read)
            )
        return found, times

    def wanted(self, entries: Sequence[StepEntry]) -> WantedOutputs:
        """Return the outputs of the target that the pass is to return, for members that read them."""
        return self.outputs.wanted(entries, self._groups)

    def keep(
        self, wanted: WantedOutputs, trees: Mapping[str, TokenTree], verdicts: Mapping[str, VerdictEntry]
    ) -> None:
        """Keep the outputs of the target in a pass until the next draft."""
        self.outputs.arrived(wanted, trees, verdicts)

    def release(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self.outputs.forget(request_ids)
        for group in self._groups:
            group.engine.release(request_ids)
            for name in request_ids:
                group.held.pop(name, None)
                group.features_held.pop(name, None)

    def _entry(self, group: DrafterGroup, entry: StepEntry, wanted: SpeculatorSet) -> DraftEntry | None:
        """Return the group's part of a step for one request; None if no member may draft for it."""
        state, name = entry.state, entry.request_id
        if not state.sampling.greedy and not state.drawn_for:
            wanted -= self.drawing  # its noise is known to drafters
        if not wanted:
            return None
        held = group.held.get(name, 0)
        if held == 0:
            group.features_held[name] = 0
        start, features = self.outputs.features.take(
            name, group.features_held[name], group.feature_layers, _FEATURE_BYTES
        )
        group.features_held[name] = self.outputs.features.until(start, features, group.feature_layers)
        return DraftEntry(
            name,
            held,
            state.tokens[held:],
            entry.limits,
            state.sampling,
            [place for place, number in enumerate(group.members) if number in wanted],
            draft_seed(state.sampling.seed, group.members[0]),
            not state.drawn_for,
            features,
            start,
            self._top_k(name, group.target_top_k),
            state.request.references if held == 0 and group.engine.description.reads_references else (),
        )

    def _top_k(self, request_id: str, k: int) -> TargetTopK | None:
        predicted = self.outputs.top_k.take(request_id, k)
        if predicted is None:
            return None
        tree = predicted.tree
        return TargetTopK(tree.token_ids.astype("int64"), tree.parents, predicted.top_k[:, :k])

    def _accept(self, group: DrafterGroup, outcome: DraftOutcome) -> list[tuple[int, TokenTree]]:
        """Return the trees of an outcome; a failed draft costs its request one step of that member."""
        group.held[outcome.request_id] = outcome.held_len if outcome.status is EntryStatus.OK else 0
        found: list[tuple[int, TokenTree]] = []
        if outcome.status is EntryStatus.ERROR:
            self._failed(group.members[0], group, outcome.message)
        for place, draft in outcome.drafts:
            number = group.members[place]
            if isinstance(draft, SpecInferError):
                self._failed(number, group, draft.for_logs)
            else:
                found.append((number, draft))
        return found

    def _failed(self, number: int, group: DrafterGroup, why: str) -> None:
        self.failures += 1
        if number not in group.failed:
            group.failed.add(number)
            log.warning("a draft of %s failed, later ones are only counted: %s", self.names[number], why)
