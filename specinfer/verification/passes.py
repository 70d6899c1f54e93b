"""Runs a step's passes: one, or after a fault one per entry."""

import logging
import time
from collections.abc import Sequence

from specinfer.errors import UnavailableError
from specinfer.model.batch import Segment
from specinfer.model.runner import ModelRunner
from specinfer.verification.acceptance import Target
from specinfer.verification.adjustments import RequestAdjustment
from specinfer.verification.jobs import VerifyJob
from specinfer.verification.target import Rows
from specinfer.verification.tree_verifier import TreeVerifier

log = logging.getLogger(__name__)


class Passes:
    """Runs and times the passes of a step."""

    def __init__(self, runner: ModelRunner, trees: TreeVerifier) -> None:
        self._runner, self._trees = runner, trees
        self.done: list[tuple[int, float]] = []
        """(Number of tokens and nodes, seconds) of each pass since `begin_step`."""
        self.faults = 0
        """Number of passes that failed for other reasons than unreadable offloaded layers."""

    def begin_step(self) -> None:
        """Reset `done`."""
        self.done = []

    def forward(self, segments: list[Segment]) -> list[Rows]:
        """Run one pass over all segments, or one each if it fails.

        So only entries that cause the fault fail. If an offloaded layer is unreadable, all entries fail.
        """
        if not segments:
            return []
        started = time.perf_counter()
        try:
            logits: list[Rows] = list(self._runner.forward(segments))
            tokens = sum([len(segment.delta) + len(segment.nodes) for segment in segments])
            self.done.append((tokens, time.perf_counter() - started))
            return logits
        except UnavailableError as error:
            log.error("a pass of %d entries failed, the gateway sends them again: %s", len(segments), error)
            return [error] * len(segments)
        except Exception as error:
            self.faults += 1
            if len(segments) == 1:
                log.exception("a pass of one entry failed; the entry gets an error")
                return [error]
            log.exception("a batched pass failed; serving its %d entries one by one", len(segments))
        return [result for segment in segments for result in self.forward([segment])]

    def targets(
        self,
        jobs: Sequence[VerifyJob],
        logits: Sequence[Rows],
        adjustments: Sequence[RequestAdjustment | None],
    ) -> list[Target | Exception | None]:
        """Return the jobs' targets for acceptance rules.

        A device may finish the pass only here, so the time is added to the pass's.
        """
        started = time.perf_counter()
        targets = self._trees.targets(jobs, logits, adjustments)
        if self.done:
            tokens, seconds = self.done[-1]
            self.done[-1] = tokens, seconds + time.perf_counter() - started
        return targets
