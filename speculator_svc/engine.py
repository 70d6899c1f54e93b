"""The speculator's domain: context deltas in, trees out. No gRPC here."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specinfer.entry_status import EntryStatus
from specinfer.errors import InvalidInputError, SpecInferError
from specinfer.sampling import SamplingParams
from specinfer.tree import TokenTree, TreeLimits
from speculator_svc.contexts import Contexts
from speculator_svc.drafters import Drafter, DraftJob

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DraftEntry:
    """One request's part of a step, as it came."""

    request_id: str
    base_len: int
    delta: Sequence[int]
    limits: TreeLimits
    sampling: SamplingParams


@dataclass(frozen=True, slots=True)
class DraftOutcome:
    """What became of an entry."""

    request_id: str
    status: EntryStatus
    message: str = ""
    tree: TokenTree | None = None
    held_len: int = 0


class SpeculatorEngine:
    """Keeps contexts and asks the drafter. One thread at a time may call it."""

    def __init__(
        self,
        drafter: Drafter,
        max_nodes: int = 128,
        idle_seconds: float = 300.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.drafter, self.max_nodes = drafter, max_nodes
        self._contexts = Contexts(idle_seconds, clock)

    def draft(self, entries: Sequence[DraftEntry]) -> list[DraftOutcome]:
        """Serves one step; one outcome per entry, in order."""
        self.release(self._contexts.idle())
        outcomes: dict[int, DraftOutcome] = {}
        jobs: dict[int, DraftJob] = {}
        for index, entry in enumerate(entries):
            if entry.base_len == 0 and self._contexts.held_len(entry.request_id):
                self.release([entry.request_id])  # whatever was held, this starts over
            held = self._contexts.held_len(entry.request_id)
            try:
                self._check(entry)
            except InvalidInputError as error:
                outcomes[index] = DraftOutcome(entry.request_id, EntryStatus.ERROR, str(error), held_len=held)
                continue
            if held != entry.base_len:
                outcomes[index] = DraftOutcome(entry.request_id, EntryStatus.RESYNC, held_len=held)
                self.release([entry.request_id])
                continue
            context = self._contexts.append(entry.request_id, entry.delta)
            jobs[index] = DraftJob(entry.request_id, context, entry.limits, entry.sampling)
        for index, tree in zip(jobs, self._run(list(jobs.values())), strict=True):
            outcomes[index] = self._conclude(jobs[index], tree)
        return [outcomes[index] for index in range(len(entries))]

    def release(self, request_ids: Sequence[str]) -> int:
        """Forgets requests; returns how many were known."""
        for request_id in request_ids:
            self.drafter.release(request_id)
        return sum([self._contexts.release(request_id) for request_id in request_ids])

    @property
    def held_requests(self) -> int:
        """Requests with a context."""
        return len(self._contexts)

    def _check(self, entry: DraftEntry) -> None:
        description = self.drafter.description
        if not entry.delta:
            raise InvalidInputError("delta_token_ids", [], "must not be empty")
        if description.vocab_size and not all(0 <= t < description.vocab_size for t in entry.delta):
            bad = next(t for t in entry.delta if not 0 <= t < description.vocab_size)
            raise InvalidInputError(
                "delta_token_ids", bad, f"not in the vocabulary of {description.vocab_size}"
            )
        if entry.limits.nodes > self.max_nodes:
            raise InvalidInputError("node_budget", entry.limits.nodes, f"at most {self.max_nodes}")
        longest = entry.base_len + len(entry.delta) + max(entry.limits.depth, 0)
        if description.max_context_len and longest > description.max_context_len:
            raise InvalidInputError(
                "context", longest, f"longer than the {description.max_context_len} served"
            )

    def _run(self, jobs: list[DraftJob]) -> list[TokenTree | SpecInferError]:
        """Drafts for all jobs at once; if that fails, one by one, so that only the culprit fails."""
        if not jobs:
            return []
        try:
            return self.drafter.draft(jobs)
        except (RuntimeError, ValueError, ArithmeticError, LookupError) as error:
            log.exception("drafting failed for a batch of %d", len(jobs))
            for job in jobs:
                self.drafter.release(job.request_id)
            if len(jobs) == 1:
                return [SpecInferError(f"the drafter failed: {error}")]
        return [result for job in jobs for result in self._run([job])]

    def _conclude(self, job: DraftJob, tree: TokenTree | SpecInferError) -> DraftOutcome:
        held = len(job.context)
        if isinstance(tree, SpecInferError):
            return DraftOutcome(job.request_id, EntryStatus.ERROR, str(tree), held_len=held)
        return DraftOutcome(job.request_id, EntryStatus.OK, "", tree if len(tree) > 1 else None, held)
