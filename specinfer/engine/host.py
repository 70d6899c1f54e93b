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

from specinfer.engine.local_pool import FEATURE_BYTES, LocalPool, MemberCounts
from specinfer.errors import FaultError
from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import SpeculatorSet
from specinfer.planning.feedback import Drafts
from specinfer.planning.step_report import DraftTime
from specinfer.planning.trees import give_matchers, trees_to_verify
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.target_outputs import NOTHING_WANTED, WantedOutputs
from specinfer.text.constraints.compiler import Compiler
from specinfer.tree import TokenTree
from specinfer.tree.cut import Keeps
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.features import NO_FEATURES, with_layers
from specinfer.verification.jobs import VerifyJob

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
    draft_times: Sequence[DraftTime]
    drafted: Mapping[int, MemberCounts]
    """Counts of this process's drafts, by the drafter's number."""
    passes: Sequence[tuple[int, float]]
    """(tokens and nodes, seconds) of each pass."""
    draft_s: float
    """Seconds of drafting and merging."""
    verify_s: float
    """Seconds of passes and acceptance."""
    verdicts: Mapping[str, Verdict]
    """One verdict per entry, in order, with the outputs that the caller wants."""

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
        made = self.verifier.verify(jobs)
        verdicts = {job.request_id: verdict for job, verdict in zip(jobs, made, strict=True)}
        self._keep_outputs(verdicts, trees, local_wanted)
        if plan.asked is not NOTHING_WANTED or local_wanted is not NOTHING_WANTED:
            verdicts = {name: self._narrowed(name, full, plan.asked) for name, full in verdicts.items()}
        done = self._clock()
        return HostStep(
            *(plan, jobs, trees, drafts, times, dict(self.pool.counts)),
            list(self.verifier.passes),
            drafted - started,
            done - drafted,
            verdicts,
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
        self.pool.counts.clear()
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
        self, verdicts: Mapping[str, Verdict], trees: Mapping[str, TokenTree], local_wanted: WantedOutputs
    ) -> None:
        """Store the outputs of the target that the next drafts read."""
        since = local_wanted.features.since
        if not since and not local_wanted.top_k:
            return
        own = dict[str, Verdict]()
        for name, verdict in verdicts.items():
            span = NO_FEATURES
            if name in since and verdict.status is EntryStatus.OK:
                span = self.verifier.features(name, since[name], FEATURE_BYTES)
            made = replace(verdict, features_start=span.start, features=span.data)
            own[name] = self._narrowed(name, made, local_wanted)
        self.pool.keep(local_wanted, trees, own)

    def _narrowed(self, request_id: str, verdict: Verdict, wanted: WantedOutputs) -> Verdict:
        """Return a verdict with only the target's outputs that `wanted` names."""
        k, runner = wanted.top_k.get(request_id, 0), self.verifier.runner
        top_k = tuple([row[:k] for row in verdict.top_k]) if k else ()
        layers = runner.features.layers, wanted.features.layers
        features = with_layers(verdict.features, *layers, runner.config.hidden_size)
        return replace(verdict, top_k=top_k, features=features)

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


def job_of(
    entry: StepEntry, tree: TokenTree | None, asked: WantedOutputs, local_wanted: WantedOutputs
) -> VerifyJob:
    """Return the verifier's job for one request of a step.

    Args:
        asked: outputs of the target that the caller wants.
        local_wanted: outputs that the drafters of this process read.
    """
    state, request, starts_over = entry.state, entry.state.request, entry.base_len == 0
    request_id = request.request_id
    return VerifyJob(
        request_id,
        entry.base_len,
        list(entry.delta),
        tree,
        state.sampling,
        request.logprobs,
        request.top_logprobs,
        max(asked.top_k.get(request_id, 0), local_wanted.top_k.get(request_id, 0)),
        asked.features.since.get(request_id),
        len(request.prompt) if starts_over else 0,
        request.constraint if starts_over else None,
        request.caller if starts_over else "",
        entry.read_limit,
    )
