"""Exports Prometheus metrics of the verifier.

The engine thread counts a step after its reply was sent, which takes 25 us.
"""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry, Counter, Gauge

from specinfer.engine.host import HostStep
from specinfer.engine.local_pool import MemberCounts
from specinfer.model.parallel.executor import RankMemory, StageSeconds
from specinfer.remote.draft_counts import DraftCounts
from specinfer.request.statuses import EntryStatus
from specinfer.service.metrics import (
    COUNTS,
    TO_SECONDS_S,
    StepHistogram,
    declare_build_info,
    declare_model_info,
)
from specinfer.v1 import verifier_pb2

_PASS_SIZES = ((1, "1"), (4, "2-4"), (16, "5-16"), (64, "17-64"), (256, "65-256"))
_LARGEST = "257+"


class CacheView(NamedTuple):
    """The cache's present use, and its counts since the start."""

    requests: int
    capacity_tokens: int
    free_tokens: int
    queried_tokens: int
    """Number of prompt tokens looked up."""
    shared_tokens: int
    """Number of prompt tokens with cached keys and values."""
    restored_tokens: int
    """Number of prompt tokens read from the prefix directory."""
    dropped_tokens: int
    """Number of context tokens dropped by `--kv-window`."""


class CacheMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, documentation: str) -> Counter:
            return Counter(f"specinfer_{name}", documentation, registry=registry)

        self._usage = Gauge(
            "specinfer_kv_cache_usage_ratio",
            "Share of the cache's blocks in use, 0 to 1.",
            registry=registry,
        )
        self._capacity = Gauge("specinfer_kv_cache_tokens", "Size of the cache in tokens.", registry=registry)
        self._queries = counter(
            "prefix_cache_queries", "Prompt tokens, in whole blocks, looked up in the cache."
        )
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._restored = counter(
            "prefix_cache_restored_tokens", "Prompt tokens read from --prefix-cache-directory."
        )
        self._dropped = counter("verifier_window_dropped_tokens", "Context tokens dropped by --kv-window.")
        self._requests = Gauge("specinfer_verifier_requests", "Requests in the cache.", registry=registry)
        self._queried = self._shared = self._restored_before = self._dropped_before = 0

    def observe(self, cache: CacheView) -> None:
        """Set the gauges; increase the counters to these counts."""
        self._requests.set(cache.requests)
        self._capacity.set(cache.capacity_tokens)
        self._usage.set(1 - cache.free_tokens / cache.capacity_tokens)
        self._queries.inc(cache.queried_tokens - self._queried)
        self._hits.inc(cache.shared_tokens - self._shared)
        self._restored.inc(cache.restored_tokens - self._restored_before)
        self._dropped.inc(cache.dropped_tokens - self._dropped_before)
        self._queried, self._shared = cache.queried_tokens, cache.shared_tokens
        self._restored_before = cache.restored_tokens
        self._dropped_before = cache.dropped_tokens


class VerifierMetrics:
    def __init__(self, registry: CollectorRegistry, drafters: Sequence[str] = ()) -> None:
        """Register the metrics; `drafters` are the resident speculators' names."""

        def counter(name: str, documentation: str, *labels: str) -> Counter:
            return Counter(f"specinfer_{name}", documentation, labels, registry=registry)

        entries = counter("verifier_entries", "Entries by status.", "status")
        self._entries = {status: entries.labels(status.name.lower()) for status in EntryStatus}
        self._nodes = counter("verifier_nodes", "Tree nodes verified, roots excluded.")
        self._accepted = counter("verifier_accepted", "Tree nodes accepted.")
        self._pass = StepHistogram(
            "specinfer_verifier_pass_seconds",
            "Time of one pass of the model, by its number of tokens and nodes.",
            TO_SECONDS_S,
            registry,
            "tokens",
            [*(name for _, name in _PASS_SIZES), _LARGEST],
        )
        self._step = StepHistogram(
            "specinfer_verifier_step_seconds",
            "Time of one step with messages and acceptance.",
            TO_SECONDS_S,
            registry,
        )
        self._batch = StepHistogram(
            "specinfer_verifier_batch_size", "Requests in a step.", COUNTS[1:], registry
        )
        self.cache = CacheMetrics(registry)
        self.messages = counter("verifier_messages", "Step messages; a grant has several steps.")
        self.failed_steps = counter("verifier_failed_steps", "Steps that failed by a fault of the verifier.")
        self.fenced_steps = counter(
            "verifier_fenced_steps", "Steps refused because the sender's lease was over."
        )
        self._mask_seconds = counter("verifier_mask_seconds", "Processor time of constraint masks.")
        self._masks_late = counter(
            "verifier_masks_late",
            "Late masks: the entry was deferred (`put_off`) or its verdict shortened (`cut`).",
            "effect",
        )
        for effect in ("put_off", "cut"):
            self._masks_late.labels(effect)
        self._memory = Gauge(
            "specinfer_verifier_memory_bytes",
            "Memory of a rank: weights or cache, if the executor reports it.",
            ["rank", "part"],
            registry=registry,
        )
        self._stages = counter(
            "verifier_stage_seconds",
            "Time of pipeline ranks in passes: busy or idle (the bubble).",
            "state",
        )
        for state in ("busy", "idle"):  # so that both are exported, as 0, before the first pass
            self._stages.labels(state)
        self._drafts = DraftCounts(registry, "specinfer_resident", drafters) if drafters else None
        self._observed, self._masks = StageSeconds(), (0.0, 0, 0)
        self._model = declare_model_info(registry)
        declare_build_info(registry)

    def describe(self, model: verifier_pb2.DescribeVerifierReply) -> None:
        """Export the model's name, type and executor as labels."""
        self._model.labels(
            model.model,
            model.dtype,
            model.weights,
            model.executor,
            model.device,
        ).set(1)

    def observe(self, step: HostStep) -> None:
        self._step.observe(step.verify_s)
        self._batch.observe(len(step.jobs))
        for tokens, pass_s in step.passes:
            self._pass.observe(pass_s, _size_name(tokens))
        for status, count in Tally([verdict.status for verdict in step.verdicts.values()]).items():
            self._entries[status].inc(count)
        verified = [
            (len(step.trees[name]) - 1, len(verdict.accepted))
            for name, verdict in step.verdicts.items()
            if name in step.trees and verdict.status is EntryStatus.OK
        ]
        self._nodes.inc(sum([nodes for nodes, _ in verified]))
        self._accepted.inc(sum([accepted for _, accepted in verified]))
        if self._drafts is not None and step.draft_times:
            own_seconds = {
                number: seconds for times in step.draft_times for number, seconds in times.own_s.items()
            }
            for number, seconds in own_seconds.items():
                counts = step.drafted.get(number, MemberCounts())
                self._drafts.add(number, counts.nodes, counts.failed + counts.malformed, seconds)

    def show_memory(self, ranks: Sequence[RankMemory]) -> None:
        """Export the bytes of weights and cache of each rank."""
        for number, rank in enumerate(ranks):
            self._memory.labels(str(number), "weights").set(rank.weight_bytes)
            self._memory.labels(str(number), "cache").set(rank.cache_bytes)

    def observe_stages(self, total: StageSeconds) -> None:
        """Increase the counters to these seconds since the start."""
        self._stages.labels("busy").inc(total.busy - self._observed.busy)
        self._stages.labels("idle").inc(max(0.0, total.idle - self._observed.idle))
        self._observed = total

    def observe_masks(self, seconds: float, deferred: int, cut: int) -> None:
        """Increase the counters of masks to these totals since the start."""
        totals = (seconds, deferred, cut)
        new = [now - before for now, before in zip(totals, self._masks, strict=True)]
        self._masks = totals
        self._mask_seconds.inc(max(0.0, new[0]))
        self._masks_late.labels("put_off").inc(new[1])
        self._masks_late.labels("cut").inc(new[2])

    def refused(self, entries: int) -> None:
        """Count entries that were refused before their step: invalid, unknown or duplicate."""
        self._entries[EntryStatus.ERROR].inc(entries)


def _size_name(tokens: int) -> str:
    return next((name for limit, name in _PASS_SIZES if tokens <= limit), _LARGEST)
