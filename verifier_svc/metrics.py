"""Prometheus metrics of the verifier."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from verifier_svc.jobs import VerifyJob, VerifyOutcome


class VerifierMetrics:
    """Counts what the engine did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._entries = Counter(
            "specinfer_verifier_entries", "Entries by outcome.", ["status"], registry=registry
        )
        self._nodes = Counter(
            "specinfer_verifier_nodes", "Tree nodes verified, roots excluded.", registry=registry
        )
        self._accepted = Counter("specinfer_verifier_accepted", "Tree nodes accepted.", registry=registry)
        self._step = Histogram(
            "specinfer_verifier_step_seconds",
            "Time of one step.",
            buckets=[0.001 * 2**i for i in range(14)],
            registry=registry,
        )
        self._held = Gauge("specinfer_verifier_requests", "Requests in the cache.", registry=registry)
        self._free = Gauge(
            "specinfer_verifier_kv_free_tokens", "Tokens that fit into free blocks.", registry=registry
        )

        self.failed_steps = Counter(
            "specinfer_verifier_failed_steps",
            "Steps that failed by a fault of the verifier.",
            registry=registry,
        )
        self.fenced_steps = Counter(
            "specinfer_verifier_fenced_steps",
            "Steps refused because their sender's lease was over.",
            registry=registry,
        )
        self._shared = Gauge(
            "specinfer_verifier_shared_tokens", "Prompt tokens found instead of computed.", registry=registry
        )

    def observe(self, jobs: Sequence[VerifyJob], outcomes: Sequence[VerifyOutcome], seconds: float) -> None:
        """Counts one step."""
        self._step.observe(seconds)
        for job, outcome in zip(jobs, outcomes, strict=True):
            self._entries.labels(outcome.status.name.lower()).inc()
            if job.tree is not None and outcome.verdict is not None:
                self._nodes.inc(len(job.tree) - 1)
                self._accepted.inc(len(outcome.verdict.accepted))

    def observe_cache(self, requests: int, free_tokens: int, shared_tokens: int) -> None:
        """Shows what the cache holds."""
        self._shared.set(shared_tokens)
        self._held.set(requests)
        self._free.set(free_tokens)
