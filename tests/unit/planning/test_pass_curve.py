"""Seconds of passes, interpolated between the measured ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.session.verifier import pass_curve
from specinfer.planning.pass_curve import PassCurve
from specinfer.v1 import verifier_pb2


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
def test_a_pass_takes_as_long_as_the_fastest_pass_of_at_least_its_size(seconds: list[float]) -> None:
    curve = PassCurve(enumerate(seconds, start=1))
    ours = [curve.at(tokens) for tokens in range(1, len(seconds) + 1)]
    assert ours == pytest.approx([min(seconds[i:]) for i in range(len(seconds))], rel=0.01)
    assert ours == sorted(set(ours)), "an additional token is never free"


def test_a_pass_measured_as_zero_seconds_is_accepted() -> None:
    with pytest.raises(ValueError, match="at least one measured"):
        pass_curve(verifier_pb2.DescribeVerifierReply())  # `verifier_check` refuses such descriptions earlier
    zeros = verifier_pb2.DescribeVerifierReply(pass_costs=[verifier_pb2.PassCost(tokens=1)])
    assert pass_curve(zeros).at(1) > 0
