"""A learner that nothing happened to, for tests of what is declared."""

from types import SimpleNamespace
from typing import Any

from speculator_svc.learning.learner import LearningCounts


def idle_learner() -> Any:
    """Stand in for a learner that nothing happened to."""
    return SimpleNamespace(
        version=0, held_out_rate=0.0, replay=SimpleNamespace(tokens=0), counts=LearningCounts()
    )
