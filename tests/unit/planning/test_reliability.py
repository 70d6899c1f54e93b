"""Calibration error and AUC of scores, against plain numpy."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specinfer.planning.calibration import Calibration, Reliability
from specinfer.tree import TreeBuilder

Outcomes = list[tuple[float, bool]]
OUTCOMES = st.lists(st.tuples(st.integers(0, 99), st.booleans()), min_size=100, max_size=150).map(
    lambda outcomes: [((percent + 0.5) / 100, hit) for percent, hit in outcomes]
)
"""Scores in the middle of a bin, so that binning loses nothing."""


def noted(outcomes: Outcomes) -> Reliability:
    reliability = Reliability()
    for score, hit in outcomes:
        reliability.note(score, hit)
    return reliability


@settings(max_examples=30)
@given(OUTCOMES)
def test_the_calibration_error_is_that_of_ten_bins(outcomes: Outcomes) -> None:
    scores, hits = (np.array(values, float) for values in zip(*outcomes, strict=True))
    bins = (10 * scores).astype(int)
    gaps = [
        abs(hits[bins == b].mean() - scores[bins == b].mean()) * (bins == b).mean() for b in np.unique(bins)
    ]
    assert noted(outcomes).calibration_error == pytest.approx(sum(gaps))


@settings(max_examples=30)
@given(OUTCOMES)
def test_auc_is_the_share_of_pairs_in_the_right_order(outcomes: Outcomes) -> None:
    accepted = np.array([score for score, hit in outcomes if hit])
    rejected = np.array([score for score, hit in outcomes if not hit])
    auc = noted(outcomes).auc
    if not len(accepted) or not len(rejected):
        assert auc is None
        return
    above = (accepted[:, None] > rejected) + 0.5 * (accepted[:, None] == rejected)
    assert auc == pytest.approx(above.mean())


@settings(max_examples=30)
@given(OUTCOMES, st.integers(0, 150))
def test_statistics_of_parts_are_merged(outcomes: Outcomes, cut: int) -> None:
    whole = noted(outcomes)
    actual = Reliability.of_all([noted(outcomes[:cut]), noted(outcomes[cut:])])
    assert actual.calibration_error == pytest.approx(whole.calibration_error)
    assert actual.auc == pytest.approx(whole.auc)


def test_few_candidates_give_no_values_and_scores_may_be_zero_or_one() -> None:
    few = noted([(0.5, True)] * 50 + [(0.5, False)] * 49)
    assert (few.calibration_error, few.auc) == (None, None)
    ends = noted([(0.0, False), (1.0, True)] * 50)
    assert (ends.calibration_error, ends.auc) == (0.0, 1.0)


def test_old_outcomes_have_little_weight() -> None:
    reliability = noted([(0.9, False)] * 4000 + [(0.9, True)] * 16_000)
    assert reliability.calibration_error == pytest.approx(0.1, abs=0.03)


def test_scores_that_are_too_high_are_corrected_in_the_same_order() -> None:
    """Scores 0.9 and 0.45 of candidates accepted 3 and 1 times in 10; the other speculator's scores are right."""
    calibration, rng = Calibration(), np.random.default_rng(0)
    overconfident, honest = TreeBuilder(0), TreeBuilder(0)
    overconfident.propose_points(0, [1, 2], [0.9, 0.45])
    honest.propose_points(0, [1, 2], [0.3, 0.1])
    assert calibration.reliability(0) is None
    for token in rng.choice([1, 2, 3], 4000, p=[0.3, 0.1, 0.6]).tolist():
        calibration.observe(0, overconfident.build(), [token])
        calibration.observe(1, honest.build(), [token])
    uncorrected, corrected = calibration.reliability(0) or pytest.fail("counted")
    assert uncorrected.calibration_error == pytest.approx((0.6 + 0.35) / 2, abs=0.03)
    assert corrected.calibration_error == pytest.approx(0, abs=0.06)
    true, _ = calibration.reliability(1) or pytest.fail("counted")
    assert true.calibration_error == pytest.approx(0, abs=0.03)
    # of all pairs of an accepted and a rejected candidate: 0.3 * 0.9 in order, 0.1 * 0.7 not, the rest equal
    expected = (0.3 * 0.9 + (0.3 * 0.7 + 0.1 * 0.9) / 2) / (0.4 * 1.6)
    for scores in (uncorrected, true):
        assert scores.auc == pytest.approx(expected, abs=0.03)
