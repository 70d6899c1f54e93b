"""Count a process's drafts as Prometheus metrics."""

from collections import Counter as Tally
from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter

from specinfer.drafters.entries import DraftOutcome
from specinfer.errors import SpecInferError
from specinfer.service.metrics import TO_SECONDS_S, StepHistogram


class DraftCounts:
    """Counts nodes, failures and seconds by speculator."""

    def __init__(self, registry: CollectorRegistry, prefix: str, names: Sequence[str]) -> None:
        """Make the metrics `{prefix}_nodes`, `_failures` and `_draft_seconds`."""
        self._names = names
        nodes = Counter(
            f"{prefix}_nodes", "Tree nodes drafted, roots excluded.", ["speculator"], registry=registry
        )
        self._nodes = [nodes.labels(name) for name in names]
        failures = Counter(f"{prefix}_failures", "Drafts that failed.", ["speculator"], registry=registry)
        self._failures = [failures.labels(name) for name in names]
        self._seconds = StepHistogram(
            f"{prefix}_draft_seconds",
            "Drafting time of one speculator in a step.",
            TO_SECONDS_S,
            registry,
            "speculator",
            list(names),
        )

    def add(self, speculator: int, nodes: int, failures: int, seconds: float) -> None:
        self._seconds.observe(seconds, self._names[speculator])
        self._nodes[speculator].inc(nodes)
        self._failures[speculator].inc(failures)

    def observe(self, outcomes: Sequence[DraftOutcome], seconds: Sequence[float]) -> None:
        """Count a step's drafts; `seconds` per speculator, 0 without a draft."""
        for name, drafting in zip(self._names, seconds, strict=True):
            if drafting:
                self._seconds.observe(drafting, name)
        nodes, failures = Tally[int](), Tally[int]()
        for outcome in outcomes:
            for speculator, draft in outcome.drafts:
                if isinstance(draft, SpecInferError):
                    failures[speculator] += 1
                else:
                    nodes[speculator] += len(draft) - 1
        for counted, children in ((nodes, self._nodes), (failures, self._failures)):
            for speculator, count in counted.items():
                children[speculator].inc(count)
