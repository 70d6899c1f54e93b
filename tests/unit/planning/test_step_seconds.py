"""Estimated seconds of choices that are not run follow the speed of the machine."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.planning.choice import Choice
from specinfer.planning.pass_curve import PassCurve
from specinfer.planning.step_report import StepReport
from specinfer.planning.step_seconds import StepSeconds

CURVE = PassCurve([(1, 0.034), (4, 0.036), (8, 0.051), (16, 0.092)])
TREES = Choice(frozenset({0}), 4)
PLAIN_S, TREES_S = 0.037, 0.075
"""Seconds of a plain step and of one with trees at the machine's usual speed."""
phases = st.lists(
    st.tuples(st.sampled_from([1.0, 1.3, 2.0, 3.0]), st.integers(5, 150)), min_size=1, max_size=30
)


def observe(seconds: StepSeconds, choice: Choice, slowness: float, step: int) -> None:
    """Observe a step of one request on a machine that is `slowness` times slower than usual."""
    rows, step_s = (5, TREES_S) if choice is TREES else (1, PLAIN_S)
    report = StepReport(choice, 1, rows, slowness * CURVE.at(rows), [], 0.0, {})
    seconds.observe(report, slowness * step_s, step)


def estimated(seconds: StepSeconds) -> float:
    return seconds.estimate(1, 1, TREES.speculators, [TREES.nodes])[0].seconds


@given(phases, st.integers(0, 2**32))
def test_an_estimate_of_a_choice_that_is_not_run_follows_the_machine(
    phases: Sequence[tuple[float, int]], seed: int
) -> None:
    """The speed changes at random, with noise."""
    seconds, rng, step = StepSeconds(CURVE), random.Random(seed), 12
    for first in range(step):
        observe(seconds, TREES, 1.0, first)
    for slowness, steps in phases:
        for _ in range(steps):
            observe(seconds, Choice(), slowness * rng.lognormvariate(0, 0.05), step)
            step += 1
        assert estimated(seconds) == pytest.approx(slowness * TREES_S, rel=0.25)


def test_one_slow_step_changes_no_other_estimate() -> None:
    seconds = StepSeconds(CURVE)
    for step in range(12):
        observe(seconds, TREES, 1.0, step)
    for step in range(12, 24):
        observe(seconds, Choice(), 1.0, step)
    observe(seconds, Choice(), 10.0, 24)
    assert estimated(seconds) == pytest.approx(TREES_S)
