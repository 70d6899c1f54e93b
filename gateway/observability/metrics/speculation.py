"""Metrics of drafts, verification and acceptance by speculator."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry

from gateway.session.totals import Named
from specinfer.planning.calibration import Reliability
from specinfer.planning.feedback import FinishedStep
from specinfer.request.statuses import EntryStatus
from specinfer.scheduling.statistics import SpeculatorCounts
from specinfer.service.metrics import Declaring

OUTCOMES = ("ok", "late", "failed", "malformed", "stale")
"""Outcomes of draft calls, defined in `specinfer.engine.draft_faults`."""
VERIFIER = "verifier"
"""Value of label `service` for the verifier's RESYNC verdicts."""
_SPECULATOR = ("service", "speculator")
_BY_SERVICE = {
    "drafts": (
        "drafts",
        "Verified trees with nodes of a speculator; a node of two speculators counts for both.",
    ),
    "drafted": ("draft_tokens", "Verified nodes that a speculator proposed."),
    "accepted": ("accepted_tokens", "Accepted nodes that a speculator proposed."),
}
"""Metrics `spec_decode_num_*` (name, documentation) by field of `SpeculatorCounts`."""
_STAGES = {"proposed": "proposed", "kept": "drafted", "duplicate": "duplicate"}
"""Fields of `SpeculatorCounts` by stage of a node."""


class SpeculationMetrics:
    """Metrics of trees, drafts and their acceptance."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Declaring(registry)
        self._by_service = {
            field: new.counter(f"spec_decode_num_{name}", documentation, *_SPECULATOR)
            for field, (name, documentation) in _BY_SERVICE.items()
        }
        self._positions = new.counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Accepted nodes by depth; position 0 is the child of the root.",
            "position",
        )
        self._nodes = new.counter(
            "tree_nodes",
            "Nodes of a speculator: proposed; kept for verification; duplicate, kept and also proposed by another.",
            *("speculator", "stage"),
        )
        self._depth = new.histogram("accepted_depth", "Accepted nodes per verified tree.", range(17))
        self._wins = new.counter(
            "speculator_wins", "Trees in which a speculator proposed the whole accepted path.", "speculator"
        )
        self._outcomes = new.counter(
            "drafts",
            "Requested drafts by outcome: ok (may be empty), late, failed, malformed, stale (the request had ended).",
            *("service", "outcome"),
        )
        self._quarantines = new.counter(
            "speculator_quarantines", "Exclusions of a speculator for repeated malformed trees.", "speculator"
        )
        self._resyncs = new.counter(
            "resyncs",
            "Requests whose cached length at a service differed from the gateway's; `verifier` is the verifier.",
            "service",
        )
        self._resyncs.add(0, VERIFIER)
        self.scores = ScoreMetrics(registry)

    def count(self, step: FinishedStep, names: Sequence[Named]) -> None:
        """Count a step; `names[i]` is the name of speculator i."""
        counts = step.counts
        for number, did in counts.speculators.items():
            self._count_speculator(names[number], did)
        for depth, trees in enumerate(counts.depths):
            if trees:
                self._depth.observe(depth, times=trees)
        for position, accepted in enumerate(counts.positions):
            self._positions.add(accepted, str(position))
        if resyncs := sum([verdict.status is EntryStatus.RESYNC for verdict in step.verdicts.values()]):
            self._resyncs.add(resyncs, VERIFIER)

    def service(
        self, address: str, outcomes: Mapping[str, int], resyncs: int, quarantines: Mapping[str, int]
    ) -> None:
        """Add a service's new draft outcomes, resyncs, and quarantines by speculator."""
        for outcome, count in outcomes.items():
            self._outcomes.add(count, address, outcome)
        self._resyncs.add(resyncs, address)
        for name, count in quarantines.items():
            self._quarantines.add(count, name)

    def announce(self, names: Sequence[Named]) -> None:
        """Export 0 for counts of these speculators that do not exist yet."""
        for named in names:
            self.scores.announce(named)
            self._count_speculator(named, SpeculatorCounts())
            self._quarantines.add(0, named.speculator)
            self.service(named.service, dict.fromkeys(OUTCOMES, 0), 0, {})

    def _count_speculator(self, named: Named, did: SpeculatorCounts) -> None:
        for field, counter in self._by_service.items():
            counter.add(getattr(did, field), *named)
        for stage, field in _STAGES.items():
            self._nodes.add(getattr(did, field), named.speculator, stage)
        self._wins.add(did.wins, named.speculator)


class ScoreMetrics:
    """Gauges of speculators' acceptance and of their scores' reliability."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Declaring(registry)
        self._collapsed = new.gauge(
            "speculator_collapsed",
            "1: a speculator's last thousand drafts yielded no token, or less than a tenth of the usual.",
            *_SPECULATOR,
        )
        self._errors = new.gauge(
            "speculator_calibration_error",
            "Expected calibration error of a speculator's scores: `said` as received, `corrected` as used.",
            *(*_SPECULATOR, "scores"),
        )
        self._auc = new.gauge(
            "speculator_auc",
            "Probability that an accepted candidate has a higher score than a rejected one (area under the ROC curve).",
            *_SPECULATOR,
        )

    def announce(self, named: Named) -> None:
        """Export 0 for a speculator's collapse gauge before its first value."""
        self._collapsed.labels(*named)

    def collapse(self, named: Named, collapsed: bool) -> None:
        """Set whether a speculator's acceptance has collapsed."""
        self._collapsed.labels(*named).set(collapsed)

    def show(self, named: Named, said: Reliability, corrected: Reliability) -> None:
        """Set the reliability of a speculator's scores, if enough were counted."""
        for kind, scores in (("said", said), ("corrected", corrected)):
            if (error := scores.calibration_error) is not None:
                self._errors.labels(*named, kind).set(error)
        if (auc := corrected.auc) is not None:
            self._auc.labels(*named).set(auc)
