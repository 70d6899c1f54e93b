"""Constraints of a verifier's requests: compilation, and masks during passes.

A step takes a request only after the mask of its next token is made, which begins with the verdict of the
previous step. So a request with expensive masks waits while others run.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint
from specinfer.constraints.masks import BUDGET_S, THREADS, MaskState, MaskThreads, RequestMasks, wait_for_any
from specinfer.errors import ConstraintError, ExhaustedError, InvalidInputError
from specinfer.verification.adjustments import RequestAdjustment, generated_of
from specinfer.verification.jobs import VerifyJob

_COMPILING_S, _COMPILING_ALONE_S = 0.01, 2.0
"""Seconds for which a step waits for compilations, with others or alone.

Typical ones take a millisecond; for others the gateway repeats its call.
"""
_MIN_MASKS_S, _MASKS_S = 0.002, BUDGET_S / THREADS
"""Seconds of waiting for masks before a pass, and again after it.

The first is the minimum, the second counts for each constrained request. Masks of expensive requests are not
waited for, and the others' budgets need no longer.
"""
_MASKS_ALONE_S = 0.05
"""Seconds for which a step without any ready request waits."""
_LIKELY = 0.5
"""Minimum score of a node for a mask in advance."""
_REMEMBERED = 1024


class Constraining:
    """Opens the masks of requests, and limits the wait for them."""

    def __init__(
        self, compiler: Compiler | None, threads: MaskThreads | None, clock: Callable[[], float]
    ) -> None:
        """Without a compiler constraints are refused."""
        self.threads = threads or MaskThreads()
        self._compiler, self._clock = compiler, clock
        self._opened: OrderedDict[str, tuple[Constraint, RequestMasks]] = OrderedDict()
        """Masks of requests that no step has taken yet."""
        self._late: list[Future[MaskState | None]] = []
        self._line: list[str] = []
        """Requests with pending expensive masks, in the order of steps."""
        self._turn: str | None = None
        self._waiting = self._constrained = 0
        """Expensive requests that wait, and constrained requests of the latest pass."""
        self._compiling_until = 0.0

    def begin_step(self, jobs: Sequence[VerifyJob]) -> None:
        present = {job.request_id for job in jobs}
        self._line = [request_id for request_id in self._line if request_id in present]
        self._turn, self._late, self._waiting = next(iter(self._line), None), [], 0
        self._compiling_until = self._clock() + (_COMPILING_ALONE_S if len(jobs) == 1 else _COMPILING_S)
        self._wait()

    def open(self, job: VerifyJob) -> RequestMasks | None:
        """Return the masks of a request that starts over, if constrained.

        Raises:
            ConstraintError: if it cannot be compiled.
            ExhaustedError: while it is being compiled; other jobs continue.
        """
        constraint = job.constraint
        if constraint is None or job.base_len:
            return None
        known = self._opened.get(job.request_id)
        if known is not None and known[0] == constraint:
            return known[1]
        if self._compiler is None:
            raise ConstraintError(f"{constraint.field}: not supported by this verifier")
        try:
            matcher = self._compiler.ready(constraint, max(0.0, self._compiling_until - self._clock()))
        except InvalidInputError as error:
            raise ConstraintError(error.for_logs) from error
        if matcher is None:
            raise ExhaustedError("its constraint is being compiled")
        masks = self.threads.open(constraint, matcher, self._compiler.is_expensive(constraint))
        self._opened[job.request_id] = constraint, masks
        while len(self._opened) > _REMEMBERED:
            self._opened.popitem(last=False)
        return masks

    def check(
        self, job: VerifyJob, opened: RequestMasks | None, adjustment: RequestAdjustment | None
    ) -> None:
        """Check that a step may take a job, `opened` or known.

        A step takes one with expensive masks, as reading its tokens is expensive, too.

        Raises:
            ExhaustedError: while its root's mask is being made; other jobs continue.
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
            raise ExhaustedError("its masks are being made")
        if not masks.expensive:
            return
        if request_id not in self._line:
            self._line.append(request_id)
        self._turn = self._turn or request_id
        if self._turn != request_id:
            self._waiting += 1
            raise ExhaustedError("others with dear masks come first")
        self._line.remove(request_id)

    def wait_for_late(self, jobs: Sequence[VerifyJob]) -> bool:
        """Wait briefly for a late mask; return whether there is one."""
        late = self._late
        if late:
            wait_for_any(late, _MASKS_ALONE_S)
            self.begin_step(jobs)
        return bool(late)

    def begin_pass(self, jobs: Sequence[VerifyJob], adjustments: Sequence[RequestAdjustment | None]) -> None:
        """Start masks of likely nodes during a pass; count waiting requests."""
        self.threads.deferred += len(self._late) + self._waiting
        self._constrained = sum([known is not None and known.masks is not None for known in adjustments])
        for job, adjustment in zip(jobs, adjustments, strict=True):
            if job.tree is None or adjustment is None or adjustment.masks is None:
                continue
            for node, score in enumerate(job.tree.scores.tolist()):
                if node and score >= _LIKELY:
                    adjustment.masks.want(job.tree.token_ids[job.tree.path_to(node)].tolist(), ahead=True)

    def end_pass(self) -> None:
        """Wait for the masks of a pass from now on."""
        self._wait()

    def _wait(self) -> None:
        self.threads.wait_for(max(_MIN_MASKS_S, _MASKS_S * self._constrained))

    def settle(self, masks: RequestMasks, bonus: int) -> None:
        """Start the next step's mask of a request, after this bonus token."""
        if masks.very_expensive and self._compiler is not None:
            self._compiler.note_expensive(masks.constraint)
        masks.end_step()
        masks.want([bonus])

    def note_scheduled(self, request_id: str) -> None:
        """Note that a step has taken a request, with its masks."""
        self._opened.pop(request_id, None)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Forget masks of requests that no step has taken."""
        for request_id in request_ids:
            opened = self._opened.pop(request_id, None)
            if opened is not None:
                opened[1].cancel()
