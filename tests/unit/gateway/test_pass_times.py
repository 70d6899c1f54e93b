"""What passes are believed to take, from what the verifier said and what they took."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.clients.verifier import pass_curve
from gateway.planning.pass_times import PassCurve, PassTimes
from specinfer.v1 import verifier_pb2

CURVE = PassCurve([(1, 0.008), (9, 0.010), (17, 0.012)])


def seconds(passes: PassTimes, batch: int, nodes: int) -> float:
    return float(passes.seconds_by_nodes(batch, nodes)[nodes])


def test_the_curve_of_passes_interpolates_and_never_falls() -> None:
    curve = PassCurve([(16, 0.008), (1, 0.004), (8, 0.003)])
    assert curve.at(1) == curve.at(4) == curve.at(8) == pytest.approx(0.003), "the pass of one was disturbed"
    assert curve.at(12) == pytest.approx(0.0055)
    assert curve.between(12, 13).tolist() == pytest.approx([0.0055, 0.0055 + 0.005 / 8])
    assert curve.at(16) == pytest.approx(0.008)
    assert curve.at(32) == pytest.approx(0.016), "in proportion"
    assert PassCurve([(4, 0.002)]).at(1) == PassCurve([(4, 0.002)]).at(4) == 0.002


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12))
def test_a_pass_takes_as_long_as_the_quickest_that_is_no_smaller(seconds: list[float]) -> None:
    curve = PassCurve(enumerate(seconds, start=1))
    ours = [curve.at(tokens) for tokens in range(1, len(seconds) + 1)]
    assert ours == pytest.approx([min(seconds[i:]) for i in range(len(seconds))])


def test_a_verifier_that_tells_zeros_is_borne() -> None:
    with pytest.raises(ValueError, match="needs a point"):
        pass_curve(verifier_pb2.DescribeVerifierReply())  # refused before: `verifier_check`
    zeros = verifier_pb2.DescribeVerifierReply(pass_costs=[verifier_pb2.PassCost(tokens=1)])
    passes = PassTimes(pass_curve(zeros))
    for tokens in (1, 9, 9, 1, 1):
        passes.observe(1, tokens, 0.0)
    assert seconds(passes, 1, 8) > 0


def taught(passes: PassTimes, steps: int, plain_ms: float, node_ms: float, seed: int = 0) -> PassTimes:
    """Trees of one to twelve nodes at batch 1, two plain passes in thirty, and noise of 8 %."""
    rng = random.Random(seed)
    for step in range(steps):
        nodes = rng.randint(1, 12) if step % 30 > 1 else 0
        ms = rng.lognormvariate(0, 0.08) * (plain_ms + node_ms * nodes)
        passes.observe(1, 1 + nodes, ms / 1000)
    return passes


@pytest.mark.parametrize(("plain_ms", "node_ms"), [(8.0, 1.0), (8.0, 0.05), (16.0, 0.5), (3.0, 0.3)])
def test_what_nodes_add_is_learnt_apart_from_the_pace(plain_ms: float, node_ms: float) -> None:
    """The verifier said 8 ms and a quarter of one for every node."""
    passes = taught(PassTimes(CURVE), 600, plain_ms, node_ms)
    assert seconds(passes, 1, 0) == pytest.approx(plain_ms / 1000, rel=0.1)
    for nodes in (4, 8, 12):
        assert seconds(passes, 1, nodes) == pytest.approx((plain_ms + nodes * node_ms) / 1000, rel=0.1)
    added = 1000 * (seconds(passes, 1, 12) - seconds(passes, 1, 4)) / 8
    assert added == pytest.approx(node_ms, rel=0.3, abs=0.05)


def test_a_machine_that_changes_is_followed() -> None:
    passes = taught(PassTimes(CURVE), 300, 8.0, 0.25)
    taught(passes, 60, 16.0, 0.25)
    assert seconds(passes, 1, 0) == pytest.approx(0.016, rel=0.15)
    taught(passes, 120, 8.0, 1.0)
    assert seconds(passes, 1, 12) == pytest.approx(0.020, rel=0.15)


def test_a_machine_that_slows_down_between_looks_is_slower_for_plain_passes_too() -> None:
    passes = taught(PassTimes(CURVE), 300, 8.0, 1.0)
    for _ in range(28):
        passes.observe(1, 5, 0.024)
    assert seconds(passes, 1, 4) == pytest.approx(0.024, rel=0.05)
    assert seconds(passes, 1, 0) == pytest.approx(0.016, rel=0.15)


def test_what_is_learnt_at_one_batch_size_holds_at_others() -> None:
    passes = taught(PassTimes(CURVE), 600, 8.0, 1.0)
    said = CURVE.at(9) - CURVE.at(4)
    assert seconds(passes, 4, 5) - seconds(passes, 4, 0) == pytest.approx(4 * said, rel=0.25)


def test_passes_of_one_kind_tell_only_the_pace() -> None:
    passes = PassTimes(CURVE)
    for _ in range(300):
        passes.observe(1, 9, 0.030)
    assert seconds(passes, 1, 8) == pytest.approx(0.030, rel=0.01)
    assert seconds(passes, 1, 0) == pytest.approx(0.024, rel=0.01), "all passes take three times as long"


def test_one_outlier_changes_little_and_nodes_are_never_free() -> None:
    passes = taught(PassTimes(CURVE), 300, 8.0, 0.25)
    before = seconds(passes, 1, 8)
    passes.observe(1, 9, 10.0)
    assert seconds(passes, 1, 8) < 1.4 * before
    taught(passes, 300, 8.0, -0.3)
    assert seconds(passes, 1, 8) > seconds(passes, 1, 0)
