"""Drafters of this process, called directly instead of over gRPC (`specinfer.remote`).

Drafters of one group share contexts and draft one after another, like the drafters of a speculator service. They have
the same numbers and random streams as in services, so outputs are equal.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from specinfer.drafters.engine import SpeculatorEngine
from specinfer.engine.draft_group import DraftGroup, DraftInputs, checks
from specinfer.errors import SpecInferError
from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.step_report import DraftTime, tokens_read
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.statistics import Summed
from specinfer.scheduling.target_outputs import NOTHING_WANTED, TargetOutputs, WantedOutputs
from specinfer.tree import TokenTree

FEATURE_BYTES = 2**24
"""Maximum bytes of hidden states that a request's group reads per step."""
_MAX_READ = 1024
"""Maximum context tokens that a group reads per step, divided among requests."""
_MIN_READ = 16
"""Minimum share of a request in `_MAX_READ`."""


@dataclass(slots=True)
class MemberCounts(Summed):
    """Counts of one drafter's drafts in a step."""

    nodes: int = 0
    """Number of drafted nodes, roots excluded."""
    failed: int = 0
    malformed: int = 0
    """Number of malformed trees."""


@dataclass(kw_only=True)
class LocalGroup(DraftGroup):
    """Drafters of one engine in this process."""

    engine: SpeculatorEngine
    names: Sequence[str]
    counts: dict[int, MemberCounts]
    """Counts of the latest step by drafter, common to the groups of a pool."""

    @property
    def available(self) -> bool:
        return True

    @property
    def max_nodes(self) -> int:
        return self.engine.max_nodes

    @property
    def longest_context(self) -> float:
        return self.engine.description.max_context_len or math.inf

    @property
    def feature_layers(self) -> tuple[int, ...]:
        return self.engine.description.feature_layers

    @property
    def target_top_k(self) -> int:
        return self.engine.description.target_top_k

    @property
    def reads_references(self) -> bool:
        return self.engine.description.reads_references

    def name_of(self, speculator: int) -> str:
        return self.names[self.members.index(speculator)]

    def count(self, speculator: int) -> MemberCounts:
        return self.counts.setdefault(speculator, MemberCounts())

    def note_failed(self, speculator: int, reason: str) -> None:
        self.count(speculator).failed += 1
        super().note_failed(speculator, reason)

    def sound(self, speculators: SpeculatorSet) -> SpeculatorSet:
        """Return all chosen members: only the gateway's planner leaves out drafters for a time."""
        return speculators & frozenset(self.members)

    def note_malformed(self, speculator: int, error: SpecInferError) -> None:
        self.count(speculator).malformed += 1
        self.faults.note(
            speculator, self.name_of(speculator), f"malformed tree: {error.for_logs}", self.clock()
        )


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
        self.counts: dict[int, MemberCounts] = {}
        """Counts of the latest step by drafter."""
        self._groups: list[LocalGroup] = []
        start = 0
        for engine, names in engines:
            members = tuple(range(start, start + len(names)))
            drawing = frozenset(
                n for n, it in zip(members, engine.drafters, strict=True) if it.description.draws
            )
            group = LocalGroup(
                address="this process",
                members=members,
                drawing=drawing,
                engine=engine,
                names=names,
                counts=self.counts,
            )
            self._groups.append(group)
            start += len(names)
        self.groups: list[SpeculatorSet] = [frozenset(group.members) for group in self._groups]
        self.reads_references = any(group.reads_references for group in self._groups)
        self.outputs, self._check = TargetOutputs(hidden_size), checks(vocab_size)

    @property
    def draws(self) -> bool:
        """True if any drafter draws its drafts for sampled requests."""
        return any(group.drawing for group in self._groups)

    def draft(
        self, entries: Sequence[StepEntry], chosen: SpeculatorSet
    ) -> tuple[dict[str, list[tuple[int, TokenTree]]], list[DraftTime]]:
        """Draft; return (speculator, tree) pairs by request id, and groups' times."""
        by_request: dict[str, list[tuple[int, TokenTree]]] = {}
        times: list[DraftTime] = []
        self.counts.clear()
        # only decoding requests draft: a first token should not wait until drafters have read the prompt
        decoding = [entry for entry in entries if len(entry.delta) == 1]
        for group in self._groups:
            for entry in entries:
                if group.has_drafted(entry) and (kept := group.latest.of(entry)):
                    by_request.setdefault(entry.request_id, []).extend(kept)
            asked = group.asked(decoding, chosen)
            if not asked:
                continue
            max_read = max(_MIN_READ, _MAX_READ // len(asked))
            inputs = DraftInputs(self.outputs, FEATURE_BYTES, lambda request: request.caller, max_read)
            jobs = {name: group.entry(query, inputs) for name, query in asked.items()}
            started = time.perf_counter()
            outcomes = group.engine.draft(list(jobs.values()))
            seconds = time.perf_counter() - started
            for outcome in outcomes:
                job, features = jobs[outcome.request_id], self.outputs.features
                until = features.until(job.features_start, job.features, group.feature_layers)
                trees = group.accept(asked, outcome, self._check, features_until=until)
                for number, tree in trees:
                    group.count(number).nodes += len(tree) - 1
                    by_request.setdefault(outcome.request_id, []).append((number, tree))
            own_seconds = {n: s for n, s in zip(group.members, group.engine.seconds, strict=True) if s}
            read = tokens_read([len(job.delta) for job in jobs.values()])
            wire_s = max(0.0, seconds - sum(own_seconds.values()))
            times.append(DraftTime(frozenset(group.members), own_seconds, wire_s, read))
        return by_request, times

    def wanted(self, entries: Sequence[StepEntry]) -> WantedOutputs:
        """Return the outputs of the target that the groups' drafters read."""
        if not any(group.feature_layers or group.target_top_k for group in self._groups):
            return NOTHING_WANTED
        return self.outputs.wanted(entries, self._groups)

    def keep(
        self, wanted: WantedOutputs, trees: Mapping[str, TokenTree], verdicts: Mapping[str, Verdict]
    ) -> None:
        """Store the target's outputs of a pass until the next draft."""
        self.outputs.arrived(wanted, trees, verdicts)

    def release(self, request_ids: Sequence[str]) -> None:
        self.outputs.forget(request_ids)
        for group in self._groups:
            group.engine.release(request_ids)
            group.forget(request_ids)
