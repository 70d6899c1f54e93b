"""Compiles requests' constraints, and obtains masks of allowed tokens during passes.

The mask threads start a request's next mask when the previous step's verdict is known, and a step takes a request
only when that mask is ready. So a request with expensive masks waits while others run.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from specinfer.errors import ConstraintError, ExhaustedError, InvalidInputError
from specinfer.text.constraints.compiler import Compiler
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.constraints.masks import (
    BUDGET_S,
    THREADS,
    MaskState,
    MaskThreads,
    RequestMasks,
    wait_for_any,
)
from specinfer.verification.adjustments import RequestAdjustment, generated_of
from specinfer.verification.jobs import VerifyJob

_COMPILING_S, _COMPILING_ALONE_S = 0.01, 2.0
"""Seconds to wait for compilations, in steps with several jobs, or one.

A typical compilation takes a millisecond; a longer one ends the entry with EXHAUSTED, and the gateway retries.
"""
_MIN_MASKS_S, _MASKS_S = 0.002, BUDGET_S / THREADS
"""Seconds to wait for masks: at least, and per constrained request.

A step waits before its pass, and again after it. Longer waits gain nothing: `BUDGET_S` limits a request's masks, and
no step waits for expensive requests.
"""
_MASKS_ALONE_S = 0.05
"""Seconds to wait for a mask if no request is ready."""
_LIKELY = 0.5
"""Masks are computed ahead for nodes with at least this score."""
_REMEMBERED = 1024
"""Maximum number of requests in `_opened`."""


class Constraining:
    """Compiles constraints, starts masks, and limits the time of waiting."""

    def __init__(
        self, compiler: Compiler | None, threads: MaskThreads | None, clock: Callable[[], float]
    ) -> None:
        """Create the object; without `compiler`, constraints are refused."""
        self.threads = threads or MaskThreads()
        self._compiler, self._clock = compiler, clock
        self._opened: OrderedDict[str, tuple[Constraint, RequestMasks]] = OrderedDict()
        """Request that no step has taken yet -> constraint, masks; oldest first."""
        self._late: list[Future[MaskState | None]] = []
        self._line: list[str] = []
        """Ids of waiting requests with expensive masks; the first is next."""
        self._turn: str | None = None
        """Id of the request with expensive masks that this step may take."""
        self._waiting = self._constrained = 0
        """Numbers of waiting expensive requests, and of constrained requests in the pass."""
        self._compiling_until = 0.0

    def begin_step(self, jobs: Sequence[VerifyJob]) -> None:
        present = {job.request_id for job in jobs}
        self._line = [request_id for request_id in self._line if request_id in present]
        self._turn, self._late, self._waiting = next(iter(self._line), None), [], 0
        self._compiling_until = self._clock() + (_COMPILING_ALONE_S if len(jobs) == 1 else _COMPILING_S)
        self._wait()

    def open(self, job: VerifyJob) -> RequestMasks | None:
        """Return masks for a request that starts over; None: no constraint."""
        constraint = job.constraint
        if constraint is None or job.base_len:
            return None
        known = self._opened.get(job.request_id)
        if known is not None and known[0] == constraint:
            return known[1]
        if self._compiler is None:
            raise ConstraintError(f"{constraint.field}: this verifier's tokenizer allows no constraints")
        try:
            matcher = self._compiler.ready(constraint, max(0.0, self._compiling_until - self._clock()))
        except InvalidInputError as error:
            raise ConstraintError(error.for_logs) from error
        if matcher is None:
            raise ExhaustedError("the constraint is being compiled")
        masks = self.threads.open(constraint, matcher, self._compiler.is_expensive(constraint))
        self._opened[job.request_id] = constraint, masks
        while len(self._opened) > _REMEMBERED:
            self._opened.popitem(last=False)
        return masks

    def check(
        self, job: VerifyJob, opened: RequestMasks | None, adjustment: RequestAdjustment | None
    ) -> None:
        """Check that this step may take a job.

        A step takes at most one request with expensive masks: reading its tokens is expensive, too.

        Args:
            opened: masks of a request that starts over.
            adjustment: adjustments of a known request.
        """
        if job.tree is None:
            return
        if opened is not None:
            self._check(job.request_id, opened, generated_of(job.prompt_len, 0, job.delta))
        elif adjustment is not None and adjustment.masks is not None:
            self._check(job.request_id, adjustment.masks, adjustment.generated(job.base_len, job.delta))

    def _check(self, request_id: str, masks: RequestMasks, generated: Sequence[int]) -> None:
        if not masks.made(generated):
            self._late.append(masks.want(generated))
            raise ExhaustedError("the constraint's next mask is being computed")
        if not masks.expensive:
            return
        if request_id not in self._line:
            self._line.append(request_id)
        self._turn = self._turn or request_id
        if self._turn != request_id:
            self._waiting += 1
            raise ExhaustedError("another request with an expensive constraint comes first")
        self._line.remove(request_id)

    def wait_for_late(self, jobs: Sequence[VerifyJob]) -> bool:
        """Wait briefly if a mask is late; return whether one was."""
        late = self._late
        if late:
            wait_for_any(late, _MASKS_ALONE_S)
            self.begin_step(jobs)
        return bool(late)

    def begin_pass(self, jobs: Sequence[VerifyJob], adjustments: Sequence[RequestAdjustment | None]) -> None:
        """Start masks for probable nodes of the pass."""
        self.threads.deferred += len(self._late) + self._waiting
        self._constrained = sum([known is not None and known.masks is not None for known in adjustments])
        for job, adjustment in zip(jobs, adjustments, strict=True):
            if job.tree is None or adjustment is None or adjustment.masks is None:
                continue
            for node, score in enumerate(job.tree.scores.tolist()):
                if node and score >= _LIKELY:
                    adjustment.masks.want(job.tree.token_ids[job.tree.path_to(node)].tolist(), ahead=True)

    def end_pass(self) -> None:
        self._wait()

    def _wait(self) -> None:
        self.threads.wait_for(max(_MIN_MASKS_S, _MASKS_S * self._constrained))

    def settle(self, masks: RequestMasks, bonus: int) -> None:
        """Start the mask for a request's next step, whose root is `bonus`."""
        if masks.very_expensive and self._compiler is not None:
            self._compiler.note_expensive(masks.constraint)
        masks.end_step()
        masks.want([bonus])

    def note_scheduled(self, request_id: str) -> None:
        """Forget a request's masks here: the engine now stores them."""
        self._opened.pop(request_id, None)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Cancel the masks of requests that no step has taken."""
        for request_id in request_ids:
            opened = self._opened.pop(request_id, None)
            if opened is not None:
                opened[1].cancel()
