"""Prometheus metrics of the gateway."""

from collections.abc import Sequence
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from gateway.planning.feedback import FinishedStep
from gateway.requests.step import Progress

_PHASES = ("draft", "merge", "verify", "commit")
_NODES = [0, *(2**i for i in range(12))]
_MILLISECONDS = [0.001 * 2**i for i in range(14)]


class GatewayMetrics:
    """Counts what the loop did."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._waiting = Gauge("specinfer_gateway_waiting", "Requests waiting.", registry=registry)
        self._running = Gauge("specinfer_gateway_running", "Requests running.", registry=registry)
        self._tokens = Counter("specinfer_gateway_tokens", "Tokens generated.", registry=registry)
        self._finished = Counter(
            "specinfer_gateway_finished", "Requests by finish reason.", ["reason"], registry=registry
        )
        self._drafted = Counter(
            "specinfer_gateway_drafted", "Nodes verified.", ["speculator"], registry=registry
        )
        self._accepted = Counter(
            "specinfer_gateway_accepted", "Nodes accepted.", ["speculator"], registry=registry
        )
        self._phase = Histogram(
            "specinfer_gateway_phase_seconds",
            "Time of each phase of an iteration.",
            ["phase"],
            buckets=_MILLISECONDS,
            registry=registry,
        )
        self._ttft = Histogram(
            "specinfer_gateway_ttft_seconds", "Time to first token.", buckets=_MILLISECONDS, registry=registry
        )
        self._choices = Counter(
            "specinfer_gateway_planner_steps",
            "Steps by why they were planned so.",
            ["reason"],
            registry=registry,
        )
        self._asked = Counter(
            "specinfer_gateway_planner_asked",
            "Steps that asked a speculator.",
            ["speculator"],
            registry=registry,
        )
        self._nodes = Histogram(
            "specinfer_gateway_step_nodes",
            "Tree nodes verified in a step.",
            buckets=_NODES,
            registry=registry,
        )
        self._expected_s, self._actual_s, self._expected_tokens, self._actual_tokens = (
            Counter(
                f"specinfer_gateway_planner_{name}", f"{name} of planned steps, summed.", registry=registry
            )
            for name in ("expected_seconds", "actual_seconds", "expected_tokens", "actual_tokens")
        )
        self.preemptions = Counter(
            "specinfer_gateway_preemptions", "Requests that had to wait for cache again.", registry=registry
        )
        self.failed_steps = Counter(
            "specinfer_gateway_failed_steps",
            "Steps that failed by a fault of the gateway.",
            registry=registry,
        )
        self.fenced_requests = Counter(
            "specinfer_gateway_fenced_requests",
            "Requests that another gateway had taken when this one wrote to them.",
            registry=registry,
        )
        self.redis_outages = Counter(
            "specinfer_gateway_redis_outages", "Times that Redis stopped answering.", registry=registry
        )
        self.redis_losses = Counter(
            "specinfer_gateway_redis_losses", "Times that Redis had lost its data.", registry=registry
        )
        self.adopted_requests = Counter(
            "specinfer_gateway_adopted_requests",
            "Requests that this gateway took over.",
            registry=registry,
        )
        self.verifier_failures = Counter(
            "specinfer_gateway_verifier_failures",
            "Iterations the verifier did not answer.",
            registry=registry,
        )

    def observe_queue(self, waiting: int, running: int) -> None:
        """Shows the queue."""
        self._waiting.set(waiting)
        self._running.set(running)

    def observe_step(self, step: FinishedStep, names: Sequence[str]) -> None:
        """Counts the phases of one iteration, what the planner chose, and how far it was off.

        `names` are those of the speculators by number.
        """
        for phase, (start, stop) in zip(_PHASES, pairwise(step.times[1:]), strict=True):
            self._phase.labels(phase).observe(stop - start)
        choice = step.choice
        self._choices.labels(choice.reason).inc()
        for speculator in choice.speculators:
            self._asked.labels(names[speculator]).inc()
        self._nodes.observe(sum(len(tree) - 1 for tree in step.trees.values()))
        if choice.seconds:
            self._expected_s.inc(choice.seconds)
            self._actual_s.inc(step.seconds)
            self._expected_tokens.inc(choice.tokens)
            self._actual_tokens.inc(sum(1 + len(verdict.accepted) for verdict in step.verdicts.values()))

    def observe_progress(self, item: Progress, names: Sequence[str]) -> None:
        """Counts new tokens, and a request's statistics when it ends."""
        self._tokens.inc(len(item.tokens))
        state = item.state
        if not item.final or state.finish is None:
            return
        self._finished.labels(state.finish.name.lower()).inc()
        if state.first_token_at is not None:
            self._ttft.observe(state.first_token_at - state.queued_at)
        for index, counts in state.stats.speculators.items():
            self._drafted.labels(names[index]).inc(counts.drafted)
            self._accepted.labels(names[index]).inc(counts.accepted)
