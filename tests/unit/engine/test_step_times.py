"""Seconds of a step by phase, with drafts of the host and with several steps of one plan."""

import pytest

from specinfer.engine.step import Verified, step_times
from specinfer.planning.choice import PLAIN
from specinfer.planning.feedback import FinishedStep, StepTimes

WHOLE = StepTimes(began=1.0, started=1.002, drafted=1.005, merged=1.006, verified=1.018, done=1.020)


def verified(draft_s: float, host_s: float = 0.0) -> Verified:
    return Verified({}, {}, pass_s=0.001, host_s=host_s, draft_s=draft_s)


def phases(times: StepTimes) -> list[float]:
    return FinishedStep(PLAIN, [], {}, {}, {}, [], 0.001, times).phases


@pytest.mark.parametrize(("draft_s", "booked"), [(0.0, 0.0), (0.004, 0.004), (99.0, 0.012)])
def test_drafts_of_the_host_are_moved_from_verifying_to_drafting(draft_s: float, booked: float) -> None:
    (times,) = step_times(WHOLE, [verified(draft_s)])
    assert phases(times) == pytest.approx([0.003 + booked, 0.001, 0.012 - booked, 0.002])


def test_steps_of_one_plan_have_their_own_seconds_and_share_the_rest() -> None:
    hosted = [verified(0.002, 0.005), verified(0.001, 0.009)]
    actual = step_times(WHOLE, hosted)
    rest_s = (0.020 - 0.014) / 2
    assert [phases(times)[0] for times in actual] == pytest.approx([0.002, 0.001])
    assert [phases(times)[2] for times in actual] == pytest.approx([0.003 + rest_s, 0.008 + rest_s])
    assert sum(sum(phases(times)) for times in actual) == pytest.approx(WHOLE.done - WHOLE.began)
