"""New draft weights are used only if they are better for all callers together and worse for none."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specinfer.training.online.judgement import MIN_TEXTS, Trial, judge, loses
from specinfer.training.online.trials import matched
from specinfer.tree.builder import point_tree


def trials(caller: int, served: int, offered: int, texts: int = 20) -> list[Trial]:
    """Return trials on texts of 60 tokens, with step counts near `served` and `offered`."""
    draw = random.Random(caller)
    noise = [draw.randint(-2, 2) for _ in range(texts)]
    return [
        Trial(caller, 60, served + deviation, served + deviation, offered + deviation) for deviation in noise
    ]


def test_better_weights_are_accepted() -> None:
    verdict = judge(trials(1, 30, 25))
    assert verdict.better
    assert verdict.offered > verdict.served == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize(("served", "offered"), [(30, 30), (25, 30)])
def test_weights_that_are_no_better_are_refused(served: int, offered: int) -> None:
    assert not judge(trials(1, served, offered)).better


def test_too_few_texts_accept_no_weights() -> None:
    assert "16 are needed" in judge(trials(1, 30, 20, MIN_TEXTS - 1)).why_not
    assert judge(trials(1, 30, 20, MIN_TEXTS)).better


def test_a_gain_of_many_texts_of_one_caller_does_not_pay_for_anothers_loss() -> None:
    verdict = judge([*trials(1, 40, 20, 60), *trials(2, 25, 27, 12)])
    assert verdict.offered > verdict.served
    assert "a caller would lose" in verdict.why_not


def test_callers_with_few_texts_are_protected_together() -> None:
    gains = trials(1, 60, 20)
    light = [trial for caller in range(2, 14) for trial in trials(caller, 25, 30, 2)]
    verdict = judge([*gains, *light])
    assert "a caller would lose" in judge([*gains * 9, *light]).why_not or not verdict.better
    assert judge([*gains, *(trial for caller in range(2, 14) for trial in trials(caller, 30, 25, 2))]).better


def test_small_losses_do_not_add_up() -> None:
    """Each offer loses less than the limit for one caller, but the third one exceeds it compared with the start."""
    gains = [trial._replace(caller=1) for trial in trials(1, 40, 30)]
    poor = [Trial(2, 600, 250, steps, steps + 4) for steps in (250, 254, 258)]
    verdicts = [judge([*gains, *[trial] * 8]).better for trial in poor]
    assert verdicts == [True, False, False]
    assert judge([*gains, *[Trial(2, 600, 258, 258, 262)] * 8]).better


def test_each_caller_has_the_same_weight() -> None:
    """A caller with nine tenths of the texts gains a little, and nine others lose as much each: no gain in total."""
    much = trials(1, 30, 29, 90)
    verdict = judge([*much, *(trial for caller in range(2, 11) for trial in trials(caller, 29, 30, 3))])
    assert verdict.offered < verdict.served
    assert not verdict.better


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(8, 90), st.integers(1, 90), st.integers(1, 90))))
def test_no_weights_are_better_and_worse(rows: list[tuple[int, int, int, int]]) -> None:
    trials = [Trial(caller, tokens, served, served, offered) for caller, tokens, served, offered in rows]
    assert not (judge(trials).better and loses(trials))


def test_worse_weights_are_reverted_and_noise_is_ignored() -> None:
    assert loses(trials(1, 25, 30))
    assert not loses(trials(1, 30, 30))


def test_a_tree_matches_the_longest_path() -> None:
    tree = point_tree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 2, 3, 1], [1.0, *[0.5] * 5], range(1, 6))
    assert [matched(tree, tokens) for tokens in ([2, 3, 4, 7], [2, 3, 5], [1, 5], [7], [])] == [3, 2, 2, 0, 0]
