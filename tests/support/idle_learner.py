"""A learner that reports no events, for tests of declared metrics."""

from types import SimpleNamespace
from typing import Any

from specinfer.training.online.learner import LearningCounts


def idle_learner() -> Any:
    """Return a fake learner that reports no events."""
    return SimpleNamespace(
        version=0, held_out_rate=0.0, replay=SimpleNamespace(tokens=0), counts=LearningCounts()
    )
