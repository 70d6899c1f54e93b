"""Simulated days: what `--never-slower` promises holds while load, texts, speed and network change."""

import pytest

from benchmarks.planning.days import Minutes, day, markdown
from benchmarks.planning.world import Ran, World


def test_the_worst_minute_is_that_of_any_sixty_seconds() -> None:
    minutes = Minutes()
    for second in range(300):
        slow = 100 <= second < 130
        minutes.add(1.0, 0.5 if slow else 1.0)
    assert minutes.worst == pytest.approx(15 / 60, abs=0.01)
    assert minutes.lost_s == pytest.approx(15)


@pytest.mark.parametrize("batch", [1, 16])
def test_plain_decoding_takes_what_is_said_of_it(batch: int) -> None:
    world, ran = World(3, batch, 0), Ran()
    expected_s = 0.0
    for _ in range(3000):
        before = ran.tokens
        world.step(ran)
        expected_s += world.plain_s(ran.tokens - before)
    assert expected_s == pytest.approx(ran.seconds, rel=0.03)


def test_a_batch_grows_and_shrinks() -> None:
    world = World(1, 2, most=64)
    for batch in (64, 1, 8):
        world.batch = batch
        ran = Ran()
        world.step(ran)
        assert ran.tokens >= batch
        assert world.plain_s(batch) > 0


@pytest.mark.thorough
def test_a_promise_bounds_the_loss_in_texts_that_nobody_can_guess() -> None:
    """The day that lost 8.6 % of a minute when expectations alone were believed."""
    assert day(1, 5.0, 0.02)["worst_minute"] < 0.03


def test_the_report_has_a_row_for_each_promise() -> None:
    about = {"command": "c", "commit": "d", "time": "t", "cores": 2, "cpu": "x"}
    rows = {"no promise": [{"worst_minute": 0.05, "speed": 1.2}, {"worst_minute": 0.08, "speed": 0.9}]}
    text = markdown({"about": about, "minutes": 5, "rows": rows})
    assert "| no promise | 5.0%, 8.0% | 8.0% | 1.20, 0.90 |" in text
