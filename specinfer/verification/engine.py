"""The verifier's core: jobs with context deltas and trees in, verdicts out.

It has no gRPC. Each step appends the deltas, scores the trees and applies the acceptance rules; after the verdicts
are sent, it compacts the cache. An invalid or failing entry gets its own error; the rest of the batch is served.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from specinfer.errors import ExhaustedError, FaultError, SpecInferError
from specinfer.model.batch import Segment
from specinfer.model.cache.sequence import KVSequence
from specinfer.model.runner import ModelRunner
from specinfer.options.model_options import DEFAULT_RULE
from specinfer.request.statuses import EntryStatus
from specinfer.request.verdict import Verdict
from specinfer.system.log_lines import about
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.masks import MaskThreads
from specinfer.verification.acceptance import AcceptanceRule
from specinfer.verification.adjustments import RequestAdjustment, adjustment_of
from specinfer.verification.constraining import Constraining
from specinfer.verification.features import MESSAGE_BYTES, NO_FEATURES, FeatureSpan, features_of
from specinfer.verification.jobs import EngineLimits, VerifyJob, check_job
from specinfer.verification.tree_verifier import Passes, TreeVerifier

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CachedRequest:
    sequence: KVSequence
    last_used: float
    adjustment: RequestAdjustment | None = None
    cached_tokens: int = 0
    """Number of the latest delta's tokens that were in the cache already."""


class VerifierEngine:
    """The target with its requests' caches. Not thread-safe."""

    def __init__(
        self,
        runner: ModelRunner,
        acceptance: str | AcceptanceRule = DEFAULT_RULE,
        limits: EngineLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        compiler: Compiler | None = None,
        masks: MaskThreads | None = None,
    ) -> None:
        """Start without requests; without `compiler`, constraints are refused."""
        self.runner, self.limits = runner, limits or EngineLimits()
        self._trees = TreeVerifier(acceptance, self.runner.chooser)
        self._cached: dict[str, CachedRequest] = {}
        self._unsettled: list[tuple[KVSequence, list[int]]] = []
        """Sequences of the last step, and their accepted nodes, not committed yet."""
        self.evicted_tokens = 0
        """Context tokens dropped from windowed caches since the start."""
        self._passes, self._faults = Passes(runner, self._trees), 0
        self._clock, self._constraining = clock, Constraining(compiler, masks, clock)
        self.on_release: Callable[[Sequence[str]], None] = lambda _: None
        """Called with the ids of requests that the engine has forgotten."""

    def use_rule(self, acceptance: str | AcceptanceRule) -> None:
        """Set the rule for sampled requests, between steps."""
        self._trees.use(acceptance)

    def verify(self, jobs: Sequence[VerifyJob]) -> list[Verdict]:
        """Run one step; return one verdict per job, in order."""
        self.settle()
        self._forget_idle()
        self._passes.begin_step()
        verdicts: dict[int, Verdict] = {}
        segments: dict[int, Segment] = {}
        self._constraining.begin_step(jobs)
        self._admit_all(jobs, range(len(jobs)), verdicts, segments)
        if not segments and self._constraining.wait_for_late(jobs):
            again = [i for i, verdict in verdicts.items() if verdict.status is EntryStatus.EXHAUSTED]
            self._admit_all(jobs, again, verdicts, segments)
        ready = sorted(segments)
        asking = sum([job.features_from is not None for job in jobs])
        feature_bytes = MESSAGE_BYTES // max(asking, 1)
        adjustments = [self._cached[jobs[index].request_id].adjustment for index in ready]
        self._constraining.begin_pass([jobs[index] for index in ready], adjustments)
        logits = self._passes.forward([segments[index] for index in ready])
        self._constraining.end_pass()
        targets = self._passes.targets([jobs[index] for index in ready], logits, adjustments)
        for index, rows, target, adjustment in zip(ready, logits, targets, adjustments, strict=True):
            try:
                verified = self._trees.verify(jobs[index], rows, target, adjustment)
                verdicts[index] = self._conclude(jobs[index], verified, feature_bytes)
            except Exception as error:  # noqa: BLE001  # the other jobs are served
                verdicts[index] = self._faulty(jobs[index], error)
        return [verdicts[index] for index in range(len(jobs))]

    def _admit_all(
        self,
        jobs: Sequence[VerifyJob],
        indexes: Iterable[int],
        verdicts: dict[int, Verdict],
        segments: dict[int, Segment],
    ) -> None:
        """Add a segment to `segments` for each job, or an verdict."""
        room = self.limits.max_step_tokens
        for index in indexes:
            job = jobs[index]
            try:
                if job.base_len == 0:
                    self._drop([job.request_id])
                cached_len = self._cached_len(job.request_id)
                if cached_len != job.base_len:
                    verdicts[index] = Verdict(EntryStatus.RESYNC, cached_len=cached_len)
                    continue
                segment = self._admit(job, room)
                if not segment.delta:  # the cache has all tokens that `read_limit` allows
                    verdicts[index] = self._conclude(job, Verdict(EntryStatus.OK), 0)
                    continue
                segments[index] = segment
            except SpecInferError as error:
                verdicts[index] = self._refused(job, error)
            except Exception as error:  # noqa: BLE001  # the other jobs are served
                verdicts[index] = self._faulty(job, error)
            else:
                room -= len(segment.delta) + len(segment.nodes)

    def settle(self) -> None:
        """Commit the last step's accepted nodes to the cache; drop other nodes.

        `verify` calls it. An earlier call, between steps, saves the next step the time.
        """
        unsettled, self._unsettled = self._unsettled, []
        for sequence, kept in unsettled:
            try:
                self.runner.cache.commit(sequence, kept)
                self.evicted_tokens += self.runner.cache.slide(sequence, self.limits.max_step_tokens)
            except Exception:  # the other requests continue
                self._faults += 1
                log.exception("committing accepted nodes failed; the request is dropped and starts over")
                self.abandon(
                    [request_id for request_id, cached in self._cached.items() if cached.sequence is sequence]
                )

    def release(self, request_ids: Sequence[str]) -> int:
        """Forget requests and their caches; return the number of known requests."""
        self._constraining.forget(request_ids)
        known = self._drop(request_ids)
        if known:
            self.on_release(known)
        return len(known)

    def _drop(self, request_ids: Sequence[str]) -> list[str]:
        """Drop the caches of requests; return the ids of known requests."""
        self.settle()
        known = [request_id for request_id in request_ids if request_id in self._cached]
        for request_id in known:
            cached = self._cached.pop(request_id)
            self.runner.cache.release(cached.sequence)
            if cached.adjustment is not None and cached.adjustment.masks is not None:
                cached.adjustment.masks.cancel()
            log.debug("request %s is released", request_id, extra=about(request_id))
        if not self._cached:
            self.runner.cache.check()
        return known

    def release_all(self) -> int:
        """Forget all requests; return their number. Other requests may still share blocks."""
        return self.release(list(self._cached))

    def abandon(self, request_ids: Sequence[str]) -> None:
        """Forget requests after an internal fault, without committing accepted nodes."""
        broken = [
            self._cached[request_id].sequence for request_id in request_ids if request_id in self._cached
        ]
        self._unsettled = [item for item in self._unsettled if not any(item[0] is s for s in broken)]
        self.release(request_ids)

    def holds(self, request_id: str) -> bool:
        return request_id in self._cached

    @property
    def passes(self) -> list[tuple[int, float]]:
        """(Tokens and nodes, seconds) of each pass in the last step."""
        return self._passes.done

    @property
    def faults(self) -> int:
        """Number of internal faults since the start."""
        return self._faults + self._passes.faults

    @property
    def shortened(self) -> int:
        """Number of verdicts that were shortened because a mask was late."""
        return self._trees.shortened

    @property
    def masks(self) -> MaskThreads:
        """Threads that compute masks, and their counts."""
        return self._constraining.threads

    @property
    def cached_requests(self) -> int:
        return len(self._cached)

    def _cached_len(self, request_id: str) -> int:
        cached = self._cached.get(request_id)
        return cached.sequence.length if cached else 0

    def _admit(self, job: VerifyJob, room: int) -> Segment:
        """Check a job and reserve its cache; return its segment.

        `room` is the number of tokens and nodes that the step can still take.
        """
        check_job(job, room, self.runner.config.vocab_size, self.limits)
        cached, opened = self._cached.get(job.request_id), self._constraining.open(job)
        adjustment = cached.adjustment if cached is not None else None
        self._constraining.check(job, opened, adjustment)
        if cached is None:
            if len(self._cached) >= self.limits.max_requests:
                raise ExhaustedError(f"{len(self._cached)} requests are cached, the maximum of this verifier")
            adjustment = adjustment_of(job, self.runner.config.vocab_size, opened)
            cached = self._cached[job.request_id] = CachedRequest(
                self.runner.open(job.cache_scope), 0.0, adjustment
            )
            log.debug("request %s is first seen", job.request_id, extra=about(job.request_id))
        cached.last_used = self._clock()
        nodes, parents = job.tentative()
        # the last token is always computed, now or as a tree's root, as its logits may be needed
        cache, before = self.runner.cache, self.runner.cache.pool.restored_tokens
        known = cached.cached_tokens = cache.share(cached.sequence, job.delta[:-1], job.read_limit or None)
        part = job.part_to_read(known, cache.pool.restored_tokens - before)
        try:
            cache.reserve(cached.sequence, len(part), len(nodes), parents)
        except ExhaustedError:
            if known:  # else the retry's base_len would not match the cache
                self.release([job.request_id])
            raise
        if cached.adjustment is not None:
            cached.adjustment.read(job.base_len, job.delta[: known + len(part)])
        if opened is not None:
            self._constraining.note_scheduled(job.request_id)
        return Segment(cached.sequence, part, nodes, parents, want_last=job.tree is not None)

    def _conclude(self, job: VerifyJob, verdict: Verdict | SpecInferError, feature_bytes: int) -> Verdict:
        """Return the verdict with what the cache adds; forget a failed request."""
        if isinstance(verdict, SpecInferError):
            self.release([job.request_id])
            return Verdict.refused(verdict)
        cached = self._cached[job.request_id]
        sequence, adjustment = cached.sequence, cached.adjustment
        if adjustment is not None and job.tree is not None:
            adjustment.read(sequence.length, job.tree.token_ids[list(verdict.accepted)].tolist())
            if adjustment.masks is not None and not verdict.finished:
                self._constraining.settle(adjustment.masks, verdict.bonus)
        kept = [node - 1 for node in verdict.accepted]
        self._unsettled.append((sequence, kept))
        span = self._features(sequence, kept, job.features_from, feature_bytes)
        return replace(
            verdict,
            cached_len=sequence.length + len(kept),
            features_start=span.start,
            features=span.data,
            cached_tokens=cached.cached_tokens,
        )

    def features(self, request_id: str, since: int, max_bytes: int = MESSAGE_BYTES) -> FeatureSpan:
        """Return a request's hidden states from context position `since` on.

        Call it after a step and before `settle`. States of accepted nodes are included.
        """
        sequence = self._cached[request_id].sequence
        accepted = next((kept for other, kept in self._unsettled if other is sequence), [])
        return self._features(sequence, accepted, since, max_bytes)

    def _features(
        self, sequence: KVSequence, accepted: Sequence[int], since: int | None, max_bytes: int
    ) -> FeatureSpan:
        """Return hidden states of context and accepted nodes from position `since` on."""
        store = self.runner.features
        if since is None or not store.layers:
            return NO_FEATURES
        return features_of(store, self.runner.cache, sequence, accepted, since, max_bytes)

    def _refused(self, job: VerifyJob, error: SpecInferError) -> Verdict:
        cached = self._cached.get(job.request_id)
        if cached is not None and not cached.sequence.blocks:
            self._drop([job.request_id])  # this job has opened it
        return Verdict.refused(error, self._cached_len(job.request_id))

    def _faulty(self, job: VerifyJob, error: Exception) -> Verdict:
        """Forget a request after an internal fault; return a verdict with ERROR."""
        self._faults += 1
        if isinstance(error, SpecInferError):
            log.error("%s; its request is forgotten", error.for_logs, extra=about(job.request_id))
        else:
            log.exception("an entry failed; its request is forgotten", extra=about(job.request_id))
            error = FaultError("internal error", error)
        self.abandon([job.request_id])
        return Verdict.refused(error)

    def _forget_idle(self) -> None:
        limit = self._clock() - self.limits.idle_seconds
        idle = [request_id for request_id, cached in self._cached.items() if cached.last_used < limit]
        if idle:
            log.warning(
                "forgetting %d requests idle for %.0f s", self.release(idle), self.limits.idle_seconds
            )
