"""A verifier runs passes before it serves."""

import pytest

from specinfer.statuses import EntryStatus
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob, VerifyOutcome
from specinfer.verification.pass_costs import warm_up
from tests.support.tiny_models import runner_of, tiny_transformers

MODEL = tiny_transformers("llama")


class Watched(VerifierEngine):
    """An engine that keeps what it was asked and answered."""

    asked: list[VerifyJob]
    answered: list[VerifyOutcome]

    def verify(self, jobs: "list[VerifyJob]") -> list[VerifyOutcome]:  # type: ignore[override]
        outcomes = super().verify(jobs)
        self.asked, self.answered = [*self.asked, *jobs], [*self.answered, *outcomes]
        return outcomes


LIMITS = [EngineLimits(), EngineLimits(max_nodes=2), EngineLimits(max_context_len=3)]


@pytest.mark.parametrize("limits", LIMITS)
def test_trees_are_verified_ahead_and_nothing_of_them_stays(limits: EngineLimits) -> None:
    engine = Watched(runner_of(MODEL), limits=limits)
    engine.asked, engine.answered = [], []
    warm_up(engine, clock=lambda: 0.0)
    assert {outcome.status for outcome in engine.answered} == {EntryStatus.OK}
    assert any(job.tree is not None and len(job.tree) > 1 for job in engine.asked)
    assert {job.sampling.greedy for job in engine.asked} == {True, False}
    cache = engine.runner.cache
    cache.check()
    assert engine.cached_requests == 0
    assert cache.free_tokens == cache.capacity_tokens
    assert cache.pool.shared_tokens == 0


def test_where_a_step_takes_a_second_few_are_run() -> None:
    engine, looks = Watched(runner_of(MODEL)), iter(range(100))
    engine.asked, engine.answered = [], []
    warm_up(engine, clock=lambda: float(next(looks)))
    assert len(engine.asked) == 2
