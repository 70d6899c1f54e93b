"""Run the drafters of one service: read context deltas, return trees.

The speculators of a service share contexts and messages, and draft one after another. A speculator that copies from
the text and one with a model form a `SourceChain`.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from specinfer.drafters import Drafter, DrafterDescription, DraftJob, TargetTopK
from specinfer.drafters.contexts import Contexts
from specinfer.drafters.entries import Draft, DraftEntry, DraftOutcome, check_entry
from specinfer.drafters.source_chain import SourceChain
from specinfer.errors import FaultError, IncompatibleError, InvalidInputError, SpecInferError
from specinfer.request.sampling import GREEDY, Sampling, draft_seed
from specinfer.request.statuses import EntryStatus
from specinfer.system.log_lines import LogPace
from specinfer.tree import TokenTree, TreeLimits, depth_limit

log = logging.getLogger(__name__)
_NAME = "warm-up"
_SIZES = (4, 12)
_SAMPLED = Sampling(temperature=0.8, seed=1)
_FIRST_DELTA, _LATER_DELTA = 8, 2
"""Context tokens in the warm-up's first step, and in each later step."""


class SpeculatorEngine:
    """Store contexts and call drafters. Not thread-safe."""

    def __init__(
        self,
        drafters: Sequence[Drafter],
        max_nodes: int = 128,
        idle_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drafters, self.max_nodes = list(drafters), max_nodes
        self.description = combined([drafter.description for drafter in drafters])
        self._contexts = Contexts(idle_seconds, clock)
        self._readers = [i for i, drafter in enumerate(drafters) if drafter.description.feature_layers]
        self._clock, self._paces = clock, [LogPace() for _ in self.drafters]
        self._chain = SourceChain.of(drafters)
        self._model_s = 0.0, 0.0
        """Seconds of the latest two drafts of the chain's models; one may have read a prompt."""
        self.seconds = [0.0] * len(self.drafters)
        """Seconds of each drafter in the last step."""

    def check_tokenizer(self, fingerprint: str) -> None:
        """Check that the drafters work with the target's tokenizer."""
        theirs = self.description.tokenizer_fingerprint
        if theirs and theirs != fingerprint:
            raise IncompatibleError(
                f"the speculators need a model with tokenizer {theirs}, this model has {fingerprint}"
            )

    def draft(self, entries: Sequence[DraftEntry]) -> list[DraftOutcome]:
        """Draft for one step; return one outcome per entry, in order."""
        self.release(self._contexts.idle())
        outcomes: dict[int, DraftOutcome] = {}
        jobs: dict[int, DraftJob] = {}
        for index, entry in enumerate(entries):
            try:
                decoded = self._take(entry)
            except Exception as error:  # the other entries are still served
                log.exception("reading the entry of request %s failed; it gets no draft", entry.request_id)
                self.release([entry.request_id])
                reason = FaultError("internal error", error).for_logs
                decoded = DraftOutcome(entry.request_id, EntryStatus.EXHAUSTED, reason)
            if isinstance(decoded, DraftJob):
                jobs[index] = decoded
            else:
                outcomes[index] = decoded
        for index, drafts in self._ask_all(entries, jobs).items():
            job = jobs[index]
            outcomes[index] = DraftOutcome(
                job.request_id, EntryStatus.OK, drafts=tuple(drafts), cached_len=len(job.context)
            )
        return [outcomes[index] for index in range(len(entries))]

    def _take(self, entry: DraftEntry) -> DraftJob | DraftOutcome:
        """Append an entry's tokens to its context; return job or error."""
        request_id = entry.request_id
        if entry.base_len == 0 and self._contexts.cached_len(request_id):
            self.release([request_id])  # the request starts over
        cached_len = self._contexts.cached_len(request_id)
        try:
            check_entry(entry, self.description, self.max_nodes, len(self.drafters))
        except InvalidInputError as error:
            return DraftOutcome(request_id, EntryStatus.ERROR, error.for_logs, cached_len=cached_len)
        if cached_len != entry.base_len:
            self.release([request_id])
            return DraftOutcome(request_id, EntryStatus.RESYNC, cached_len=cached_len)
        context = self._contexts.append(request_id, entry.delta, entry.cache_scope)
        if entry.features:
            shape = len(self.description.feature_layers), self.description.feature_size
            self._contexts.features(request_id).add(entry.features_start, entry.features, shape)
        if entry.references:
            self._contexts.refer(request_id, entry.references)
        # the growth kernels lack min-p, which only improves drafts
        sampling = replace(entry.sampling, min_p=0.0) if entry.sampling.min_p else entry.sampling
        return DraftJob(
            *(request_id, context, entry.limits, sampling, entry.draw_seed, entry.sees_noise),
            references=self._contexts.references(request_id),
            cache_scope=self._contexts.cache_scope(request_id),
        )

    def release(self, request_ids: Sequence[str]) -> int:
        """Drop requests' state; return how many requests were known."""
        for request_id in request_ids:
            for drafter in self.drafters:
                drafter.release(request_id)
            if self._chain:
                self._chain.release(request_id)
        return sum([self._contexts.release(request_id) for request_id in request_ids])

    def replace(self, speculator: int, drafter: Drafter) -> None:
        """Replace a drafter; the new drafter's cache starts empty."""
        before = self.drafters[speculator].description
        if replace(drafter.description, model=before.model) != before:
            raise IncompatibleError(
                f"{drafter.description.model} has another tokenizer or reads other inputs than {before.model}"
            )
        self.drafters[speculator] = drafter

    @property
    def cached_requests(self) -> int:
        return len(self._contexts)

    def _ask_all(self, entries: Sequence[DraftEntry], jobs: Mapping[int, DraftJob]) -> dict[int, list[Draft]]:
        """Return all drafters' results by index of the entry."""
        drafts: dict[int, list[Draft]] = {index: [] for index in jobs}
        asked = {i: set(entries[i].speculators or range(len(self.drafters))) for i in jobs}
        self.seconds = [0.0] * len(self.drafters)
        chained = self._draft_copies(asked, jobs, drafts)
        for speculator in range(len(self.drafters)):
            started = time.perf_counter()
            own_jobs: dict[int, DraftJob] = {}
            for index in (i for i in jobs if speculator in asked[i]):
                own_job = self._own_job(jobs[index], speculator, entries[index].target_top_k)
                if isinstance(own_job, SpecInferError):
                    drafts[index].append((speculator, own_job))
                elif own_job is not None:
                    own_jobs[index] = own_job
            results = self._run(speculator, list(own_jobs.values()))
            for index, result in zip(own_jobs, results, strict=True):
                if self._chain and index in chained and isinstance(result, TokenTree):
                    result = self._chain.extend(speculator, own_jobs[index], result)
                if isinstance(result, SpecInferError) or len(result) > 1:
                    drafts[index].append((speculator, result))
            if any(speculator in each for each in asked.values()):
                self.seconds[speculator] += time.perf_counter() - started
        if self._chain and (model_s := sum([self.seconds[model] for model in self._chain.models])):
            self._model_s = self._model_s[1], model_s
        return drafts

    def _draft_copies(
        self, asked: Mapping[int, set[int]], jobs: Mapping[int, DraftJob], drafts: Mapping[int, list[Draft]]
    ) -> set[int]:
        """Draft sure copies; return the entries that ask a chain.

        `asked` loses the speculators that need not draft.
        """
        chain, started = self._chain, time.perf_counter()
        if chain is None:
            return set()
        models = {i: {m for m in each & chain.models if self._reads(m, jobs[i])} for i, each in asked.items()}
        chained = {i for i, each in asked.items() if chain.copier in each and models[i]}
        for index, tree in chain.draft_alone({i: jobs[i] for i in chained}, min(self._model_s)).items():
            asked[index] -= chain.models
            drafts[index].append((chain.copier, tree))
        for index in chained:
            asked[index].discard(chain.copier)
        if chained:
            self.seconds[chain.copier] = time.perf_counter() - started
        return chained

    def _own_job(
        self, job: DraftJob, speculator: int, top_k: TargetTopK | None
    ) -> DraftJob | FaultError | None:
        """Return a drafter's job; None if the context exceeds the drafter's maximum.

        With None, the drafter releases the request. The drafter's maximum context also limits the tree's depth.
        """
        try:
            job = self._with_target(_own_draws(job, speculator), speculator, top_k)
        except Exception as error:  # costs only this drafter's draft
            log.exception("reading the target's outputs for speculator %d failed; it gets no job", speculator)
            return FaultError("internal error", error)
        max_len = self.drafters[speculator].description.max_context_len
        if not max_len:
            return job
        if not self._reads(speculator, job):
            self.drafters[speculator].release(job.request_id)
            return None
        depth = min(job.limits.depth, depth_limit(0, len(job.context), max_len))
        return replace(job, limits=replace(job.limits, depth=depth))

    def _reads(self, speculator: int, job: DraftJob) -> bool:
        """Return whether a context is within the drafter's maximum."""
        max_len = self.drafters[speculator].description.max_context_len
        return not max_len or len(job.context) <= max_len

    def _with_target(self, job: DraftJob, speculator: int, top_k: TargetTopK | None) -> DraftJob:
        """Add the target's predictions and new hidden states to a drafter's job."""
        description = self.drafters[speculator].description
        if description.target_top_k and top_k is not None:
            rows = top_k.top_k[:, : description.target_top_k]
            job = replace(job, target_top_k=replace(top_k, top_k=rows))
        wanted = description.feature_layers
        if not wanted:
            return job
        buffer = self._contexts.features(job.request_id)
        places = [self.description.feature_layers.index(layer) for layer in wanted]
        features = buffer.take(speculator, places)
        buffer.drop(self._readers)
        return replace(job, features=features)

    def _run(self, speculator: int, jobs: list[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Draft for all jobs at once, or separately after a failure."""
        if not jobs:
            return []
        drafter = self.drafters[speculator]
        try:
            trees = drafter.draft(jobs)
            if len(trees) != len(jobs):
                raise SpecInferError(f"it returned {len(trees)} drafts for {len(jobs)} requests")
            if odd := [tree for tree in trees if not isinstance(tree, (TokenTree, SpecInferError))]:
                raise SpecInferError(f"it returned {type(odd[0]).__name__}, not a TokenTree")
            return trees
        except Exception as error:  # noqa: BLE001  # drafters are extensions, which may raise anything
            reason = f": {error.for_logs}" if isinstance(error, SpecInferError) else ""
            failed = FaultError(f"the drafter {type(drafter).__name__} failed{reason}", error)
            if self._paces[speculator].due(self._clock()):
                log.error("%s; a batch of %d requests decodes without it", failed.for_logs, len(jobs))
            for job in jobs:
                drafter.release(job.request_id)
            if len(jobs) == 1:
                return [failed]
        return [result for job in jobs for result in self._run(speculator, [job])]


def combined(descriptions: Sequence[DrafterDescription]) -> DrafterDescription:
    """Return a service's description: the smallest vocabulary, every drafter's inputs."""
    fingerprints = {d.tokenizer_fingerprint for d in descriptions} - {""}
    if len(fingerprints) > 1:
        shown = ", ".join(
            f"{d.model}: {d.tokenizer_fingerprint}" for d in descriptions if d.tokenizer_fingerprint
        )
        raise IncompatibleError(f"the drafters of a service need the same tokenizer: {shown}")
    sizes = {d.feature_size for d in descriptions} - {0}
    if len(sizes) > 1:
        raise IncompatibleError(f"the drafters of a service need hidden states of one size: {sorted(sizes)}")
    return DrafterDescription(
        vocab_size=min((d.vocab_size for d in descriptions if d.vocab_size), default=0),
        tokenizer_fingerprint=min(fingerprints, default=""),
        max_context_len=_longest([d.max_context_len for d in descriptions]),
        feature_layers=tuple(sorted({layer for d in descriptions for layer in d.feature_layers})),
        feature_size=min(sizes, default=0),
        target_top_k=max((d.target_top_k for d in descriptions), default=0),
        reads_references=any(d.reads_references for d in descriptions),
    )


def _longest(contexts: Sequence[int]) -> int:
    """Return the largest of the drafters' maximum contexts; 0: no limit."""
    return max(contexts, default=0) if all(contexts) else 0


def _own_draws(job: DraftJob, speculator: int) -> DraftJob:
    """Return a job with an independent random stream for this speculator."""
    if speculator == 0 or job.sampling.greedy:
        return job
    return replace(job, draw_seed=draft_seed(job.draw_seed, speculator))


def warm_up(engine: SpeculatorEngine) -> None:
    """Draft trees of several sizes, greedy and sampled, for a dummy request.

    A failure is only logged: later requests fail in the same way, and report it.
    """
    started = time.perf_counter()
    vocab = min([speculator.description.vocab_size or _FIRST_DELTA for speculator in engine.drafters])
    base, delta = 0, _FIRST_DELTA
    for sampling in (GREEDY, _SAMPLED):
        for nodes in _SIZES:
            tokens = [position % vocab for position in range(base, base + delta)]
            limits = TreeLimits(min(nodes, engine.max_nodes), nodes)
            entry = DraftEntry(_NAME, base, tokens, limits, sampling, sees_noise=False)
            (outcome,) = engine.draft([entry])
            if outcome.status is not EntryStatus.OK:
                log.warning("warm-up drafts failed, and requests' drafts may fail, too: %s", outcome.message)
                engine.release([_NAME])
                return
            base, delta = outcome.cached_len, _LATER_DELTA
    engine.release([_NAME])
    log.info("warm-up drafts took %.0f ms", 1000 * (time.perf_counter() - started))
