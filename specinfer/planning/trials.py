"""Decide whether a trial of another row is worth its cost. Pure.

A trial runs a row of the planner's table for a few steps to measure its speed. Its cost is the time lost
against the fastest known row. `TrialCredit` earns a little with every step and pays for trials, which limits
the total loss.
"""

from math import sqrt
from typing import NamedTuple

from specinfer.planning.choice import SpeculatorSet

_OPTIMISM = 1.0
"""Standard errors added to the tokens for an optimistic speed."""
_MIN_GAIN = 0.01
"""Minimum relative gain of speed that justifies a trial."""
_USUAL_GAIN = 0.3
"""Relative gain below which a trial costs more credit.

Its price is then `_USUAL_GAIN / gain` times its cost.
"""
_CREDIT = 3.0
"""Initial credit, in steps of the fastest row."""
_MAX_CREDIT = 12.0
"""Maximum credit, in steps of the fastest row."""
_EARN_STEPS = 16.0
"""Steps that earn one step of credit, at first."""
_MAX_EARN_STEPS = 128.0
"""Maximum steps that earn one step of credit."""
_EARN_AGE = 16.0
"""Steps of a batch class per further step for the same credit."""
_MAX_COST = 48.0
"""Maximum cost of a trial, in steps of the fastest row."""
_COST_PER_GAIN = 30.0
"""Maximum (cost in steps / possible relative gain) of a trial."""


class TableRow(NamedTuple):
    """A way to run the next step, and its expected speed."""

    speculators: SpeculatorSet
    nodes: int
    tokens: float
    """Expected new tokens of the step."""
    seconds: float
    """Expected seconds of the step."""
    time_error: float
    """Relative standard error of the seconds."""
    min_s: float
    """Optimistic expected seconds."""
    measured: bool
    """True if steps of the row were timed."""
    variance: float
    """Variance of the tokens; large if few such trees were verified."""

    @property
    def speed(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def optimistic_speed(self, best: "TableRow") -> float:
        """Return tokens per second if tokens exceed the mean."""
        return (self.tokens + _OPTIMISM * self._error(best)) / self.min_s

    def cautious_speed(self, best: "TableRow", errors: float) -> float:
        """Return tokens per second, `errors` standard errors below the mean."""
        return (self.tokens - errors * self._error(best)) / (self.seconds * (1 + errors * self.time_error))

    def _error(self, best: "TableRow") -> float:
        """Return the standard error of the tokens.

        Two rows of one speculator set share the variance of the smaller tree. It cannot change their order,
        so it is subtracted.
        """
        common = best.variance if best.speculators == self.speculators else 0.0
        return sqrt(max(self.variance - common, 0.0))


class TrialCredit:
    """Credit that pays for trials, in steps of the fastest row."""

    def __init__(self) -> None:
        self._credit = _CREDIT
        self._last_step = 0
        """Number of the step at which credit was last earned."""
        self._ages: dict[int, int] = {}
        """Number of steps so far, by batch class."""

    def earn(self, batch_class: int, step: int) -> None:
        """Add the credit for the steps since the last call.

        `step` is the number of the current step.
        """
        steps, self._last_step = step - self._last_step, step
        age = self._ages[batch_class] = self._ages.get(batch_class, 0) + steps
        earned = steps / min(_EARN_STEPS + age / _EARN_AGE, _MAX_EARN_STEPS)
        self._credit = min(self._credit + earned, _MAX_CREDIT)

    def pay(self, trial: TableRow, best: TableRow, batch: int, steps: int, reading_steps: float) -> bool:
        """Pay for a trial if it is worth its cost; return whether.

        Args:
            trial: row to try.
            best: fastest known row.
            batch: requests of a step.
            steps: steps of the trial.
            reading_steps: time in which the trial's speculators read context, in steps of `best`.
        """
        gain = trial.optimistic_speed(best) / best.speed - 1
        if gain <= _MIN_GAIN:
            return False
        min_speed = max(trial.cautious_speed(best, _OPTIMISM), batch / trial.seconds)
        cost = reading_steps + steps * max(1 - min_speed / best.speed, 0.0) * trial.seconds / best.seconds
        price = min(cost * max(1.0, _USUAL_GAIN / gain), _MAX_CREDIT)
        if price > self._credit or cost > min(_COST_PER_GAIN * gain, _MAX_COST):
            return False
        self._credit -= price
        return True
