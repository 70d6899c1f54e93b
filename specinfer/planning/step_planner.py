"""Plans a session's next step: who is admitted, what is drafted, what each request gets."""

import logging
from collections.abc import Mapping
from typing import NamedTuple

from gateway.observability.observer import Observer
from specinfer.log_pace import LogPace
from specinfer.planning.planner import PLAIN, Choice, Planner
from specinfer.scheduling.entries import StepEntry
from specinfer.scheduling.scheduler import Scheduler
from specinfer.speculators.pool import SpeculatorPool

log = logging.getLogger(__name__)


class Step(NamedTuple):
    """What is to be done in one iteration."""

    choice: Choice
    entries: list[StepEntry]
    """Empty if there is nothing to do."""


class StepPlanner:
    """One session's."""

    def __init__(
        self, scheduler: Scheduler, pool: SpeculatorPool, planner: Planner, observer: Observer
    ) -> None:
        self._scheduler, self._pool, self._planner, self._observer = scheduler, pool, planner, observer
        self._pace = LogPace()

    def plan(self, now: float) -> Step:
        """The next step, at this time in seconds."""
        running, wanting = self._scheduler.admit(now)
        choice = self._choose(running, wanting, now)
        entries = self._scheduler.plan(now, choice.nodes, choice.node_threshold)
        self._observer.admitted(self._scheduler.take_admitted())
        return Step(choice, entries)

    def _choose(self, running: int, wanting: Mapping[str, int], now: float) -> Choice:
        """What the planner chooses; a fault of ours in it costs the step its drafts."""
        try:
            self._planner.enrol(self._pool.groups)
            return self._planner.choose(running, wanting)
        except Exception:
            if self._pace.due(now):
                log.exception("nothing can be chosen for steps, so they decode plainly")
            self._observer.metrics.steps.failed_steps.inc()
            return PLAIN
