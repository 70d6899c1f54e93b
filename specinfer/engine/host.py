"""Run planned steps with one process' drafters and verifier (the "host").

    step(plan)         draft, merge and verify (paper, sections 3 and 4)
    run(plan, grant)   repeat the step until a request ends, a verdict is not OK, or the grant is used up
    conclude(steps)    compact the cache and learn, while the answer is on its way

`LLM` calls the host directly, the verifier service for each of a gateway's messages. The host has no queue and no
planner. Invariant: the host reads the clock only between whole steps, so no draw is selected by its duration.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple

from specinfer.engine.jobs import as_asked, job_of, verdict_of
from specinfer.engine.local_pool import FEATURE_BYTES, LocalPool, MemberCounts
from specinfer.errors import FaultError
from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.feedback import Drafts
from specinfer.planning.step_report import DraftTime
from specinfer.planning.trees import give_matchers, trees_to_verify
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.entries import StepEntry, VerdictEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedOutputs
from specinfer.text.constraints.compiler import Compiler
from specinfer.tree import TokenTree
from specinfer.tree.cut import Keeps
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.features import NO_FEATURES, with_layers
from specinfer.verification.jobs import VerifyJob, VerifyOutcome

log = logging.getLogger(__name__)
_NO_TREES: Mapping[str, TokenTree] = MappingProxyType({})


class HostPlan(NamedTuple):
    entries: Sequence[StepEntry]
    speculators: SpeculatorSet
    """Numbers of this process's drafters that draft in the step."""
    keeps: Keeps
    """Rule by which the batch's merged trees are cut."""
    given: Mapping[str, TokenTree] = _NO_TREES
    """Merged trees from speculators of other processes, by request id."""
    verbatim: frozenset[str] = frozenset()
    """Ids of requests whose `given` tree is verified unchanged, without local drafts."""
    asked: WantedOutputs = NOTHING_WANTED
    """Outputs of the target that the caller wants."""

    def next(self) -> "HostPlan":
        """Return the next step's plan; call this after applying the verdicts."""
        return HostPlan([entry.following() for entry in self.entries], self.speculators, self.keeps)


class Grant(NamedTuple):
    """Limits of the steps that one message starts."""

    steps: int = 1
    seconds: float = 0.0
    """Seconds after which no further step starts."""


@dataclass(slots=True)
class HostStep:
    plan: HostPlan
    jobs: Sequence[VerifyJob]
    trees: Mapping[str, TokenTree]
    """Verified trees by request id."""
    drafts: Drafts
    outcomes: Sequence[VerifyOutcome]
    """One outcome per entry, in order, with all requested outputs."""
    draft_times: Sequence[DraftTime]
    drafted: Mapping[int, MemberCounts]
    """Counts of this process's drafts, by the drafter's number."""
    passes: Sequence[tuple[int, float]]
    """(tokens and nodes, seconds) of each pass."""
    draft_s: float
    """Seconds of drafting and merging."""
    verify_s: float
    """Seconds of passes and acceptance."""
    verdicts: Mapping[str, VerdictEntry]

    @property
    def pass_s(self) -> float:
        return sum([seconds for _, seconds in self.passes])


class Host:
    """Runs planned steps. Only one thread may use it at a time."""

    def __init__(
        self,
        pool: LocalPool,
        verifier: VerifierEngine,
        compiler: Compiler | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Join drafters and a verifier; without `compiler` drafts ignore constraints."""
        self.pool, self.verifier, self.compiler = pool, verifier, compiler
        self.calibration = Calibration()
        self.failed_drafts = 0
        """Steps that decoded plainly because drafting failed."""
        self.failed_steps = 0
        """Number of failed steps after the first step of a grant."""
        self._clock = clock

    def step(self, plan: HostPlan) -> HostStep:
        started = self._clock()
        drafts, times, trees = self._draft(plan)
        drafted = self._clock()
        local_wanted = self.pool.wanted(plan.entries)
        self._keep_features(plan.asked, local_wanted)
        jobs = [
            job_of(entry, trees.get(entry.request_id), plan.asked, local_wanted) for entry in plan.entries
        ]
        outcomes = self.verifier.verify(jobs)
        self._keep_outputs(outcomes, trees, local_wanted)
        if plan.asked is not NOTHING_WANTED or local_wanted is not NOTHING_WANTED:
            kept = self.verifier.runner.features.layers
            outcomes = [as_asked(made, plan.asked, kept) for made in outcomes]
        done = self._clock()
        return HostStep(
            *(plan, jobs, trees, drafts, outcomes, times, self.pool.counts),
            list(self.verifier.passes),
            drafted - started,
            done - drafted,
            {outcome.request_id: verdict_of(outcome) for outcome in outcomes},
        )

    def run(
        self, plan: HostPlan, grant: Grant, interrupted: Callable[[], bool] = lambda: False
    ) -> list[HostStep]:
        """Repeat a plan within a grant; apply all verdicts.

        Stop after a step if a request ended, a verdict is not OK, a caller waits (`interrupted`), or the next step
        would exceed the grant's seconds by more than half a step. If a step after the first fails by an internal
        fault, drop the requests and return the earlier steps.
        """
        steps: list[HostStep] = []
        began = self._clock()
        while True:
            started = self._clock()
            try:
                steps.append(step := self.step(plan))
            except Exception:
                if not steps:
                    raise
                log.exception(
                    "a later step of a grant failed; its %d requests are dropped", len(plan.entries)
                )
                self.failed_steps += 1
                self.verifier.abandon([entry.request_id for entry in plan.entries])
                return steps
            goes_on = self._apply(step)
            now = self._clock()
            late = now - began + (now - started) / 2 > grant.seconds
            if not goes_on or late or len(steps) >= grant.steps or interrupted():
                return steps
            plan = plan.next()

    def conclude(self, steps: Sequence[HostStep]) -> None:
        self.verifier.settle()
        for step in steps:
            try:
                self._learn(step)
            except Exception:  # learning changes the speed, not the output
                log.exception("learning from a step failed; the planner keeps its estimates")

    def release(self, request_ids: Sequence[str]) -> int:
        """Drop requests' state; return the number known to the verifier."""
        self.forget(request_ids)
        return self.verifier.release(request_ids)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drop requests' state in the drafters, not in the verifier."""
        self.pool.release(request_ids)

    def _draft(self, plan: HostPlan) -> tuple[Drafts, list[DraftTime], dict[str, TokenTree]]:
        """Return drafts, their times, and the trees to verify.

        If drafting fails, the step decodes plainly.
        """
        self.pool.counts = {}
        drafted_entries = [entry for entry in plan.entries if entry.request_id not in plan.verbatim]
        trees = {name: plan.given[name] for name in plan.verbatim if name in plan.given}
        given = {name: tree for name, tree in plan.given.items() if name not in plan.verbatim}
        if not drafted_entries:
            return {}, [], trees
        try:
            drafts, times = self.pool.draft(drafted_entries, plan.speculators)
            give_matchers([entry.state for entry in drafted_entries], self.compiler)
            merged = trees_to_verify(drafted_entries, drafts, self.calibration, plan.keeps, given)
        except Exception as error:  # noqa: BLE001  # the requests decode plainly
            what = f"drafting for {len(drafted_entries)} requests failed"
            log.error("%s; this step decodes plainly", FaultError(what, error).for_logs)
            self.failed_drafts += 1
            return (
                {},
                [],
                trees | {e.request_id: TokenTree.root_only(e.delta[-1]) for e in drafted_entries if e.final},
            )
        return drafts, times, trees | merged

    def _keep_features(self, asked: WantedOutputs, local_wanted: WantedOutputs) -> None:
        """Let the model return the hidden states that caller and drafters read."""
        layers = sorted({*asked.features.layers, *local_wanted.features.layers})
        self.verifier.runner.keep_features(layers)

    def _keep_outputs(
        self, outcomes: Sequence[VerifyOutcome], trees: Mapping[str, TokenTree], local_wanted: WantedOutputs
    ) -> None:
        """Store the outputs of the target that the next drafts read."""
        if local_wanted.features.since or local_wanted.top_k:
            verdicts = {outcome.request_id: self._own_outputs(outcome, local_wanted) for outcome in outcomes}
            self.pool.keep(local_wanted, trees, verdicts)

    def _own_outputs(self, outcome: VerifyOutcome, local_wanted: WantedOutputs) -> VerdictEntry:
        """Return a verdict with the outputs that this process's drafters read."""
        request_id = outcome.request_id
        since, span = local_wanted.features.since.get(request_id), NO_FEATURES
        if since is not None and outcome.status is EntryStatus.OK:
            span = self.verifier.features(request_id, since, FEATURE_BYTES)
            span = with_layers(span, self.verifier.runner.features.layers, local_wanted.features.layers)
        k = local_wanted.top_k.get(request_id, 0)
        return verdict_of(replace(outcome, top_k=tuple([row[:k] for row in outcome.top_k])), span)

    def _apply(self, step: HostStep) -> bool:
        """Append the verdicts' tokens; return whether all requests continue."""
        goes_on = True
        for entry in step.plan.entries:
            state, verdict = entry.state, step.verdicts[entry.request_id]
            tree = step.trees.get(entry.request_id)
            if verdict.status is not EntryStatus.OK or tree is None:
                goes_on = False
                continue
            state.verifier_len = verdict.cached_len
            state.extend(verdict.tokens(tree))
            goes_on = goes_on and state.own_end is None and not verdict.finished
        return goes_on

    def _learn(self, step: HostStep) -> None:
        for entry in step.plan.entries:
            request_id = entry.request_id
            verdict, tree = step.verdicts[request_id], step.trees.get(request_id)
            drafts = step.drafts.get(request_id, ())
            if tree is None or verdict.status is not EntryStatus.OK or (not drafts and len(tree) == 1):
                continue
            after = verdict.tokens(tree)
            for index, draft in drafts:
                self.calibration.observe(index, draft, after)
            if len(tree) > 1:
                self.calibration.observe_draws(tree, verdict.accepted)
