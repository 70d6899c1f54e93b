"""Exports Prometheus metrics of the verifier.

The engine thread counts a step after its reply was sent, which takes 25 us.
"""

from collections import Counter as Tally
from collections.abc import Sequence
from typing import NamedTuple

from prometheus_client import CollectorRegistry

from specinfer.engine.host import HostStep
from specinfer.engine.local_pool import MemberCounts
from specinfer.model.parallel.layout import RankMemory, StageSeconds
from specinfer.remote.draft_counts import DraftCounts
from specinfer.request.statuses import EntryStatus
from specinfer.service.metrics import (
    COUNTS,
    TO_SECONDS_S,
    Declaring,
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
        new = Declaring(registry)
        self._usage = new.gauge("kv_cache_usage_ratio", "Share of the cache's blocks in use, 0 to 1.")
        self._capacity = new.gauge("kv_cache_tokens", "Size of the cache in tokens.")
        self._queries = new.counter(
            "prefix_cache_queries", "Prompt tokens, in whole blocks, looked up in the cache."
        )
        self._hits = new.counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._restored = new.counter(
            "prefix_cache_restored_tokens", "Prompt tokens read from --prefix-cache-directory."
        )
        self._dropped = new.counter(
            "verifier_window_dropped_tokens", "Context tokens dropped by --kv-window."
        )
        self._requests = new.gauge("verifier_requests", "Requests in the cache.")

    def observe(self, cache: CacheView) -> None:
        """Set the gauges; increase the counters to these counts."""
        self._requests.set(cache.requests)
        self._capacity.set(cache.capacity_tokens)
        self._usage.set(1 - cache.free_tokens / cache.capacity_tokens)
        self._queries.rise(cache.queried_tokens)
        self._hits.rise(cache.shared_tokens)
        self._restored.rise(cache.restored_tokens)
        self._dropped.rise(cache.dropped_tokens)


class VerifierMetrics:
    def __init__(self, registry: CollectorRegistry, drafters: Sequence[str] = ()) -> None:
        """Register the metrics; `drafters` are the resident speculators' names."""
        new = Declaring(registry, "specinfer_verifier_")
        self._entries = new.counter("entries", "Entries by status.", "status")
        for status in EntryStatus:
            self._entries.add(0, status.name.lower())
        self._nodes = new.counter("nodes", "Tree nodes verified, roots excluded.")
        self._accepted = new.counter("accepted", "Tree nodes accepted.")
        sizes = [*(name for _, name in _PASS_SIZES), _LARGEST]
        pass_ = "Time of one pass of the model, by its number of tokens and nodes."
        self._pass = new.histogram("pass_seconds", pass_, TO_SECONDS_S, "tokens", sizes)
        self._step = new.histogram("step_seconds", "Time of one step with messages and acceptance.")
        self._batch = new.histogram("batch_size", "Requests in a step.", COUNTS[1:])
        self.cache = CacheMetrics(registry)
        self.messages = new.counter("messages", "Step messages; a grant has several steps.")
        self.failed_steps = new.counter("failed_steps", "Steps that failed by a fault of the verifier.")
        self.fenced_steps = new.counter("fenced_steps", "Steps refused because the sender's lease was over.")
        self._mask_seconds = new.counter("mask_seconds", "Processor time of constraint masks.")
        self._masks_late = new.counter(
            "masks_late",
            "Late masks: the entry was deferred (`put_off`) or its verdict shortened (`cut`).",
            "effect",
        )
        self._memory = new.gauge(
            "memory_bytes", "Memory of a rank: weights or cache, if the executor reports it.", "rank", "part"
        )
        self._stages = new.counter(
            "stage_seconds", "Time of pipeline ranks in passes: busy or idle (the bubble).", "state"
        )
        self.observe_masks(0.0, 0, 0)
        self.observe_stages(StageSeconds())
        self._drafts = DraftCounts(registry, "specinfer_resident", drafters) if drafters else None
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
            self._entries.add(count, status.name.lower())
        verified = [
            (len(step.trees[name]) - 1, len(verdict.accepted))
            for name, verdict in step.verdicts.items()
            if name in step.trees and verdict.status is EntryStatus.OK
        ]
        self._nodes.add(sum([nodes for nodes, _ in verified]))
        self._accepted.add(sum([accepted for _, accepted in verified]))
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
        self._stages.rise(total.busy, "busy")
        self._stages.rise(total.idle, "idle")

    def observe_masks(self, seconds: float, deferred: int, cut: int) -> None:
        """Increase the counters of masks to these totals since the start."""
        self._mask_seconds.rise(seconds)
        self._masks_late.rise(deferred, "put_off")
        self._masks_late.rise(cut, "cut")

    def refused(self, entries: int) -> None:
        """Count entries that were refused before their step: invalid, unknown or duplicate."""
        self._entries.add(entries, EntryStatus.ERROR.name.lower())


def _size_name(tokens: int) -> str:
    return next((name for limit, name in _PASS_SIZES if tokens <= limit), _LARGEST)
