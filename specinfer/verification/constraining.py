"""Constraints of a verifier's requests: compiled beside the steps, their masks made while passes run.

A step takes a request only once the mask behind its committed tokens is made, and that begins with the verdict of
the step before. So a request whose masks are dear waits beside the steps of others.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from specinfer.constraints.compiler import Compiler
from specinfer.constraints.constraint import Constraint
from specinfer.constraints.masks import BUDGET_S, THREADS, Behind, MaskThreads, RequestMasks, wait_for_any
from specinfer.errors import ConstraintError, ExhaustedError, InvalidInputError
from specinfer.verification.adjustments import RequestAdjustment, generated_of
from specinfer.verification.jobs import VerifyJob

_COMPILING_S, _COMPILING_ALONE_S = 0.01, 2.0
"""Seconds for which a step waits for constraints to be compiled, beside other requests and for one alone.
Most take a millisecond; for others the gateway comes again."""
_LEAST_MASKS_S, _MASKS_S = 0.002, BUDGET_S / THREADS
"""Seconds for which a step waits for masks before its pass, and again behind it: at least, and for each request that
has some. Those of dear requests are not waited for, and the others' budgets need no longer."""
_MASKS_ALONE_S = 0.05
"""Seconds for which a step waits where all of its requests lack masks."""
_LIKELY = 0.5
"""Least score of a node whose mask is made before it is known whether it is needed."""
_REMEMBERED = 1024


class Constraining:
    """Opens the masks of requests, and decides how long a step waits for them."""

    def __init__(
        self, compiler: Compiler | None, threads: MaskThreads | None, clock: Callable[[], float]
    ) -> None:
        """Without a compiler constraints are refused."""
        self.threads = threads or MaskThreads()
        self._compiler, self._clock = compiler, clock
        self._opened: OrderedDict[str, tuple[Constraint, RequestMasks]] = OrderedDict()
        """Masks of requests that no step has taken yet."""
        self._late: list[Future[Behind | None]] = []
        self._line: list[str] = []
        """Requests with dear masks that are made, in the order in which steps take them."""
        self._turn: str | None = None
        self._waiting = self._constrained = 0
        """Dear requests whose turn it is not, and requests of the latest pass that have masks."""
        self._compiling_until = 0.0

    def begin_step(self, jobs: Sequence[VerifyJob]) -> None:
        """Begin a step of these jobs."""
        present = {job.request_id for job in jobs}
        self._line = [request_id for request_id in self._line if request_id in present]
        self._turn, self._late, self._waiting = next(iter(self._line), None), [], 0
        self._compiling_until = self._clock() + (_COMPILING_ALONE_S if len(jobs) == 1 else _COMPILING_S)
        self._wait()

    def open(self, job: VerifyJob) -> RequestMasks | None:
        """Return the masks of the constraint with which a request starts over; None if it has none.

        Raises:
            ConstraintError: if it cannot be compiled.
            ExhaustedError: while it is being compiled: the other jobs do not wait for it.
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
        masks = self.threads.open(constraint, matcher, self._compiler.is_dear(constraint))
        self._opened[job.request_id] = constraint, masks
        while len(self._opened) > _REMEMBERED:
            self._opened.popitem(last=False)
        return masks

    def check(
        self, job: VerifyJob, opened: RequestMasks | None, adjustment: RequestAdjustment | None
    ) -> None:
        """Check that a step may take a job: one that starts over with `opened`, or is held with its adjustment.

        A step takes one with dear masks, since reading its tokens is dear, too.

        Raises:
            ExhaustedError: while the mask of its root is being made: the other jobs do not wait for it.
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
        if not masks.dear:
            return
        if request_id not in self._line:
            self._line.append(request_id)
        self._turn = self._turn or request_id
        if self._turn != request_id:
            self._waiting += 1
            raise ExhaustedError("others with dear masks come first")
        self._line.remove(request_id)

    def wait_for_late(self, jobs: Sequence[VerifyJob]) -> bool:
        """Wait a little for the first mask that was late; return whether there is one."""
        late = self._late
        if late:
            wait_for_any(late, _MASKS_ALONE_S)
            self.begin_step(jobs)
        return bool(late)

    def begin_pass(self, jobs: Sequence[VerifyJob], adjustments: Sequence[RequestAdjustment | None]) -> None:
        """Make masks behind the likely nodes of the trees of a pass beside it, and count those that wait."""
        self.threads.put_off += len(self._late) + self._waiting
        self._constrained = sum([found is not None and found.masks is not None for found in adjustments])
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
        self.threads.wait_for(max(_LEAST_MASKS_S, _MASKS_S * self._constrained))

    def settle(self, masks: RequestMasks, bonus: int) -> None:
        """Begin the mask of the next step of a request, which goes on with this token."""
        if masks.very_dear and self._compiler is not None:
            self._compiler.note_dear(masks.constraint)
        masks.end_step()
        masks.want([bonus])

    def taken(self, request_id: str) -> None:
        """Note that a step has taken a request: whoever has it has its masks."""
        self._opened.pop(request_id, None)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Forget masks of requests that no step has taken."""
        for request_id in request_ids:
            opened = self._opened.pop(request_id, None)
            if opened is not None:
                opened[1].give_up()
