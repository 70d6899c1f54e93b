"""Times of passes are estimated from what the verifier said and what they took."""

import random
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.session.verifier import pass_curve
from specinfer.planning.pass_times import PassCurve, PassTimes
from specinfer.v1 import verifier_pb2

CURVE = PassCurve([(1, 0.008), (9, 0.010), (17, 0.012)])
DISTURBED = [(1, 0.0524), (2, 0.0523), (4, 0.0538), (8, 0.0547), (16, 0.0613), (32, 0.0427), (64, 0.0633)]
"""Times of passes that a verifier measured while a neighbour was busy."""


def test_the_curve_of_passes_interpolates_and_always_rises() -> None:
    curve = PassCurve([(16, 0.008), (1, 0.004), (8, 0.003)])
    assert curve.at(1) == pytest.approx(0.003), "the pass of one was disturbed"
    assert curve.at(1) < curve.at(4) < curve.at(8) == pytest.approx(0.003, rel=0.001)
    assert curve.at(12) == pytest.approx(0.0055, rel=0.001)
    assert curve.between(12, 13).tolist() == pytest.approx([0.0055, 0.0055 + 0.005 / 8], rel=0.001)
    assert curve.at(12.5) == pytest.approx(0.0055 + 0.0025 / 8, rel=0.001), (
        "an expected number is no whole one"
    )
    assert curve.at(16) == pytest.approx(0.008, rel=0.001)
    assert curve.at(32) == pytest.approx(0.016, rel=0.001), "in proportion"
    assert PassCurve([(4, 0.002)]).at(1) == PassCurve([(4, 0.002)]).at(4) == 0.002


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12))
def test_a_pass_takes_as_long_as_the_quickest_that_is_no_smaller(seconds: list[float]) -> None:
    curve = PassCurve(enumerate(seconds, start=1))
    ours = [curve.at(tokens) for tokens in range(1, len(seconds) + 1)]
    assert ours == pytest.approx([min(seconds[i:]) for i in range(len(seconds))], rel=0.01)
    assert ours == sorted(set(ours)), "a token more is never free"


def test_a_verifier_that_tells_zeros_is_borne() -> None:
    with pytest.raises(ValueError, match="needs a point"):
        pass_curve(verifier_pb2.DescribeVerifierReply())  # refused before: `verifier_check`
    zeros = verifier_pb2.DescribeVerifierReply(pass_costs=[verifier_pb2.PassCost(tokens=1)])
    passes = PassTimes(pass_curve(zeros))
    for tokens in (1, 9, 9, 1, 1):
        passes.observe(tokens, 0.0)
    assert passes.seconds(9) > 0


def taught(passes: PassTimes, costs: dict[int, float], steps: int = 500, seed: int = 0) -> PassTimes:
    """Passes of these sizes in random order, with noise of 8 % and one in a hundred disturbed."""
    rng = random.Random(seed)
    for _ in range(steps):
        tokens = rng.choice(list(costs))
        passes.observe(
            tokens, costs[tokens] * rng.lognormvariate(0, 0.08) * (4.0 if rng.random() < 0.01 else 1.0)
        )
    return passes


def test_a_disturbed_start_is_unlearned() -> None:
    """It made nodes free: 1 to 32 tokens took 42.7 ms by that curve."""
    costs = {1: 0.0023, 4: 0.0024, 8: 0.0036, 16: 0.0061, 32: 0.011}
    for seed in range(5):
        passes = taught(PassTimes(PassCurve(DISTURBED)), costs, seed=seed)
        for tokens, seconds in costs.items():
            assert passes.seconds(tokens) == pytest.approx(seconds, rel=0.1)
        assert passes.seconds(24) == pytest.approx(0.0085, rel=0.2), "between them"
        assert passes.seconds(64) > 1.2 * passes.seconds(16), "beyond them"


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8),
    st.lists(st.floats(1.0, 2.0), min_size=7, max_size=7),
    st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_whatever_was_said_what_passes_take_is_found(
    said: list[float], steps: list[float], seed: int
) -> None:
    """Any start curve, any true costs that rise with the tokens."""
    told = PassCurve((1 << power, seconds) for power, seconds in enumerate(said))
    costs = {1 << power: cost for power, cost in enumerate(accumulate([0.003, *steps], lambda a, b: a * b))}
    passes = taught(PassTimes(told), costs, 800, seed)
    for tokens, seconds in costs.items():
        assert passes.seconds(tokens) == pytest.approx(seconds, rel=0.2)


def test_one_pass_puts_the_whole_curve_right() -> None:
    passes = PassTimes(PassCurve(DISTURBED))
    passes.observe(1, 0.0023)
    assert passes.seconds(64) == pytest.approx(0.0633 * 0.0023 / 0.0427, rel=0.01)


def test_a_machine_that_changes_is_followed() -> None:
    costs = {tokens: CURVE.at(tokens) for tokens in (1, 5, 9)}
    passes = taught(PassTimes(CURVE), costs)
    taught(passes, {tokens: 2 * cost for tokens, cost in costs.items()}, 120)
    for tokens, cost in costs.items():
        assert passes.seconds(tokens) == pytest.approx(2 * cost, rel=0.15)


def test_a_machine_that_slows_down_between_looks_is_slower_for_plain_passes_too() -> None:
    costs = {tokens: CURVE.at(tokens) for tokens in (1, 5, 9)}
    passes = taught(PassTimes(CURVE), costs)
    for _ in range(20):
        passes.observe(5, 1.5 * costs[5])
    assert passes.seconds(5) == pytest.approx(1.5 * costs[5], rel=0.05)
    assert passes.seconds(1) == pytest.approx(1.5 * costs[1], rel=0.15)


def test_the_pace_stays_while_only_disturbances_are_unusual() -> None:
    """One pass in a hundred takes four times as long; what was measured long ago must not drift with that."""
    passes = taught(PassTimes(CURVE), {9: CURVE.at(9)})
    taught(passes, {1: CURVE.at(1)}, 4000)
    assert passes.seconds(9) == pytest.approx(CURVE.at(9), rel=0.2)


def test_one_outlier_changes_little() -> None:
    passes = taught(PassTimes(CURVE), {tokens: CURVE.at(tokens) for tokens in (1, 5, 9)})
    before = passes.seconds(9)
    passes.observe(9, 10.0)
    assert passes.seconds(9) == pytest.approx(before, rel=0.1)
