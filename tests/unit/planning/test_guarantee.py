"""Speculation costs at most the promised part of plain decoding's speed over any minute."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.planning.guarantee import Guarantee
from tests.unit.planning.test_planner import planner_of, simulate

PART, PLAIN_S, BATCH = 0.02, 0.005, 4
SPEED = BATCH / PLAIN_S


class Serving:
    """Steps that speculate whenever they may, and the greatest loss of any minute."""

    def __init__(self, part: float = PART) -> None:
        self.guarantee = Guarantee(part)
        self._lost = deque[tuple[float, float]]()
        self.now = self.worst_s = self._sum = 0.0
        self.trees = 0

    def step(self, seconds: float, tokens: int) -> None:
        """One step: with trees it takes so long and brings so much, else it is plain."""
        drafted = not self.guarantee.exhausted
        if not drafted:
            seconds, tokens = PLAIN_S, BATCH
        self.guarantee.observe(BATCH, tokens, seconds, SPEED, drafted)
        self.trees += drafted
        self.now += seconds
        loss = seconds - tokens / SPEED
        self._lost.append((self.now, loss))
        self._sum += loss
        while self._lost[0][0] < self.now - 60:
            self._sum -= self._lost.popleft()[1]
        self.worst_s = max(self.worst_s, self._sum)


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    part=st.sampled_from([0.005, 0.02, 0.1]),
    phases=st.lists(st.tuples(st.floats(0.3, 2.5), st.integers(50, 3000)), min_size=1, max_size=8),
)
def test_no_minute_loses_more_than_promised(seed: int, part: float, phases: list[tuple[float, int]]) -> None:
    serving, rng = Serving(part), random.Random(seed)
    for gain, steps in phases:  # texts change: trees of each phase gain or lose
        for _ in range(steps):
            tokens = rng.choice([BATCH, 2 * BATCH])
            serving.step(tokens / SPEED / gain, tokens)
    assert serving.worst_s <= part * 60 + 2 * 2 * BATCH / SPEED / 0.3  # and the steps that cross the bounds


def test_where_trees_pay_they_are_not_held_back() -> None:
    serving = Serving()
    for _ in range(20_000):
        serving.step(0.009, 2 * BATCH)
    assert serving.trees == 20_000


def test_trees_come_back_when_the_bucket_is_empty() -> None:
    serving = Serving()
    for _ in range(30_000):  # trees take twice as long as they should
        serving.step(0.02, 2 * BATCH)
    held_back = serving.trees
    for _ in range(10_000):
        serving.step(0.005, 2 * BATCH)
    assert held_back < 300  # of 150 s, 2 % at most
    assert serving.trees - held_back > 2000


def test_plain_steps_that_took_less_than_expected_count() -> None:
    """Expectations may be twice too high while all steps have trees: what the latest plain steps took bounds them."""
    guarantee = Guarantee(PART)
    for _ in range(20):
        guarantee.observe(BATCH, BATCH, PLAIN_S, SPEED, False)
    for _ in range(1000):
        guarantee.observe(BATCH, BATCH, 1.5 * PLAIN_S, SPEED / 2, True)
    assert guarantee.exhausted


def test_what_a_machine_that_became_faster_took_before_does_not_count() -> None:
    guarantee = Guarantee(PART)
    for _ in range(20):
        guarantee.observe(BATCH, BATCH, 2 * PLAIN_S, SPEED / 2, False)
    for _ in range(1000):
        guarantee.observe(BATCH, BATCH, 1.5 * PLAIN_S, SPEED, True)
    assert guarantee.exhausted


def test_reading_prompts_counts_in_full_and_a_neighbours_pause_does_not() -> None:
    for draft_s, exhausted in ((5.0, True), (0.0, False)):
        guarantee = Guarantee(PART)
        guarantee.observe(BATCH, BATCH, 5.0, SPEED, True, draft_s)
        assert guarantee.exhausted == exhausted


def test_first_steps_of_a_process_hold_nothing_back_but_leave_nothing_to_lose() -> None:
    guarantee = Guarantee(PART)
    for _ in range(3):
        guarantee.observe(BATCH, BATCH, 1.0, SPEED, True, 1.0, once=True)
    assert not guarantee.exhausted
    for _ in range(50):  # trees that pay go on
        guarantee.observe(BATCH, 2 * BATCH, 1.5 * PLAIN_S, SPEED, True)
    assert not guarantee.exhausted
    for _ in range(3):
        guarantee.observe(BATCH, BATCH, 1.0, SPEED, True, 1.0, once=True)
    for _ in range(5):
        guarantee.observe(BATCH, BATCH, 1.5 * PLAIN_S, SPEED, True)
    assert guarantee.exhausted


def test_one_is_no_bound() -> None:
    serving = Serving(1.0)
    for _ in range(5000):
        serving.step(0.1, BATCH)
    assert serving.trees == 5000


def test_the_planner_decodes_plainly_while_the_guarantee_is_exhausted() -> None:
    planner = planner_of(1)
    simulate(planner, 40, 1, {0: 4}, {0: 1.0}, 0.1)
    names = {"r0": 0}
    assert planner.choose(1, names).speculators
    planner.guarantee.exhausted = True
    held = planner.choose(1, names)
    assert not held.speculators
    assert held.reason == "never slower"
    assert held.plain_speed == pytest.approx(1 / held.seconds)
