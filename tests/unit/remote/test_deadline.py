"""The deadline of drafts depends on the time of steps."""

import pytest

from specinfer.remote.policy import MIN_S, TIMES, PoolPolicy, UsualStepTime, draft_deadline


@pytest.mark.parametrize(
    ("step_s", "deadline_s"),
    [(None, 3.0), (0.0, MIN_S), (0.001, MIN_S), (0.2, 0.2 * TIMES), (0.5, 0.5 * TIMES), (10.0, 3.0)],
)
def test_the_deadline_is_proportional_to_steps_within_limits(step_s: float | None, deadline_s: float) -> None:
    assert draft_deadline(step_s, 3.0) == pytest.approx(deadline_s)


def test_a_fixed_deadline_stays() -> None:
    assert PoolPolicy(97, "", deadline_s=0.05).deadline(10.0) == 0.05
    assert PoolPolicy(97, "", max_deadline_s=2.0).deadline(None) == 2.0
    assert PoolPolicy(97, "", max_deadline_s=2.0).deadline(0.1) == pytest.approx(0.1 * TIMES)


def test_drafting_and_pauses_do_not_count() -> None:
    times, now = UsualStepTime(), 0.0
    assert times.usual_s is None
    for step in range(20):
        times.begins(now)
        times.drafted(now + 0.5)  # drafting takes half a second
        now += 0.5 + (60.0 if step == 7 else 0.03)
    assert times.usual_s == pytest.approx(0.03)
