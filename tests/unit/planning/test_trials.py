"""The credit that limits the total cost of the planner's trials."""

from hypothesis import given
from hypothesis import strategies as st

from specinfer.planning.trials import TableRow, TrialCredit

PLAIN = TableRow(frozenset(), 0, 1.0, 0.010, 0.0, 0.010, True, 0.0)
TREES = frozenset({0})


def tree_row(tokens: float, seconds: float, variance: float = 1.0, error: float = 0.1) -> TableRow:
    return TableRow(TREES, 4, tokens, seconds, error, (1 - error) * seconds, True, variance)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 200),
            st.floats(1.0, 5.0),
            st.floats(0.005, 0.1),
            st.integers(1, 40),
            st.floats(0.0, 200.0),
        ),
        max_size=60,
    )
)
def test_trials_cost_no_more_than_the_credit_earned(
    plans: list[tuple[int, float, float, int, float]],
) -> None:
    """The credit is three steps at first, plus one in sixteen; a trial costs at most 48 steps."""
    credit, step, lost = TrialCredit(), 0, 0.0
    for later, tokens, seconds, steps, reading_steps in plans:
        step += later
        credit.earn(0, step)
        trial = tree_row(tokens, seconds)
        if credit.pay(trial, PLAIN, 1, steps, reading_steps):
            cautious = max(trial.cautious_speed(PLAIN, 1.0), 1 / seconds)
            cost = reading_steps + steps * max(1 - cautious / PLAIN.speed, 0.0) * seconds / PLAIN.seconds
            assert cost <= min(48, 30 * (trial.optimistic_speed(PLAIN) / PLAIN.speed - 1)) + 1e-9
            lost += min(cost, 12.0)
        assert lost <= 3 + step / 16 + 1e-6


def test_a_trial_with_a_possible_gain_below_one_percent_is_never_paid() -> None:
    credit = TrialCredit()
    for step in range(0, 10_000, 100):
        credit.earn(0, step)
        assert not credit.pay(tree_row(1.0, 0.020, variance=0.0), PLAIN, 1, 3, 0.0)
        assert not credit.pay(tree_row(2.01, 0.020, variance=0.0, error=0.0), PLAIN, 1, 3, 0.0)


def test_credit_is_earned_more_slowly_with_age() -> None:
    """After 100,000 steps of a batch class, 1,000 steps earn 1,000 / 128; of another class 1,000 / 16."""
    cheap, expensive = tree_row(1.9, 0.020), tree_row(1.0, 0.030, variance=9.0)
    assert cheap.optimistic_speed(PLAIN) > PLAIN.speed

    def trials_after(batch_class: int) -> int:
        credit = TrialCredit()
        credit.earn(0, 100_000)
        for _ in range(100):
            credit.pay(expensive, PLAIN, 1, 3, 0.0)
        paid = 0
        for step in range(100_010, 101_010, 10):
            credit.earn(batch_class, step)
            paid += credit.pay(expensive, PLAIN, 1, 3, 0.0)
        return paid

    assert trials_after(1) > 3 * trials_after(0) > 0
