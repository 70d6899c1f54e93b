"""A verifier runs passes before it serves."""

import pytest

from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob
from specinfer.verification.pass_costs import warm_up
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama")


class RecordingEngine(VerifierEngine):
    """An engine that records its jobs and outcomes."""

    jobs_seen: list[VerifyJob]
    outcomes_seen: list[Verdict]

    def verify(self, jobs: "list[VerifyJob]") -> list[Verdict]:  # type: ignore[override]
        outcomes = super().verify(jobs)
        self.jobs_seen, self.outcomes_seen = [*self.jobs_seen, *jobs], [*self.outcomes_seen, *outcomes]
        return outcomes


LIMITS = [EngineLimits(), EngineLimits(max_nodes=2), EngineLimits(max_context_len=3)]


@pytest.mark.parametrize("limits", LIMITS)
def test_trees_are_verified_ahead_and_not_cached(limits: EngineLimits) -> None:
    engine = RecordingEngine(runner_of(MODEL), limits=limits)
    engine.jobs_seen, engine.outcomes_seen = [], []
    warm_up(engine, clock=lambda: 0.0)
    assert {outcome.status for outcome in engine.outcomes_seen} == {EntryStatus.OK}
    assert any(job.tree is not None and len(job.tree) > 1 for job in engine.jobs_seen)
    assert {job.sampling.greedy for job in engine.jobs_seen} == {True, False}
    cache = engine.runner.cache
    cache.check()
    assert engine.cached_requests == 0
    assert cache.free_tokens == cache.capacity_tokens
    assert cache.pool.shared_tokens == 0


def test_few_steps_of_a_second_are_run() -> None:
    engine, readings = RecordingEngine(runner_of(MODEL)), iter(range(100))
    engine.jobs_seen, engine.outcomes_seen = [], []
    warm_up(engine, clock=lambda: float(next(readings)))
    assert len(engine.jobs_seen) == 2
