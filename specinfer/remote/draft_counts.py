"""Count a process's drafts as Prometheus metrics."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry

from specinfer.drafters.entries import DraftOutcome
from specinfer.errors import SpecInferError
from specinfer.service.metrics import TO_SECONDS_S, Declaring


class DraftCounts:
    """Counts nodes, failures and seconds by speculator."""

    def __init__(self, registry: CollectorRegistry, prefix: str, names: Sequence[str]) -> None:
        """Make the metrics `{prefix}_nodes`, `_failures` and `_draft_seconds`."""
        self._names, new = names, Declaring(registry, f"{prefix}_")
        self._nodes = new.counter("nodes", "Tree nodes drafted, roots excluded.", "speculator")
        self._failures = new.counter("failures", "Drafts that failed.", "speculator")
        seconds = "Drafting time of one speculator in a step."
        self._seconds = new.histogram("draft_seconds", seconds, TO_SECONDS_S, "speculator", list(names))
        for name in names:
            self._nodes.add(0, name)
            self._failures.add(0, name)

    def add(self, speculator: int, nodes: int, failures: int, seconds: float) -> None:
        name = self._names[speculator]
        self._seconds.observe(seconds, name)
        self._nodes.add(nodes, name)
        self._failures.add(failures, name)

    def observe(self, outcomes: Sequence[DraftOutcome], seconds: Sequence[float]) -> None:
        """Count a step's drafts; `seconds` per speculator, 0 without a draft."""
        for name, drafting in zip(self._names, seconds, strict=True):
            if drafting:
                self._seconds.observe(drafting, name)
        for outcome in outcomes:
            for speculator, draft in outcome.drafts:
                if isinstance(draft, SpecInferError):
                    self._failures.add(1, self._names[speculator])
                else:
                    self._nodes.add(len(draft) - 1, self._names[speculator])
