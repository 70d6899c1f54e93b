"""Masks of requests' constraints, made in threads within a time budget.

    masks = threads.open(constraint, matcher)
    masks.want([5])     begin the mask after the committed tokens and token 5
    masks.made([5])     True once it is made; waits until `threads.until` if allowed
    masks.mask([5])     the mask
    masks.read([5])     token 5 is committed

Most masks take less than a millisecond; those of an ambiguous grammar take fifty. Budgets are per request and
step. A request whose masks cost more than its budget is expensive until later steps have compensated
for it. Masks of expensive requests are made one after another in a thread of their own, and no step waits for
them. Invariant: whether a mask is ready affects when a token comes, never which.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from specinfer.constraints.constraint import Constraint
from specinfer.constraints.matcher import Bool, Matcher
from specinfer.errors import ConstraintError, FaultError, SpecInferError
from specinfer.system.threads import LAST, background_threads

BUDGET_S = 0.002
"""Processor time for the masks of a request in each step."""
MAX_OVER_S = 10.0
"""Maximum processor seconds beyond a request's budgets; then it ends."""
THREADS = 2
"""Number of threads for masks of requests that are not expensive."""
_VERY_EXPENSIVE = 20


class MaskLateError(SpecInferError):
    """A mask is not ready, and no step may wait for it."""


class MaskState(NamedTuple):
    """State after a path: its matcher, and its mask unless complete."""

    matcher: Matcher
    mask: Bool | None


class MaskThreads:
    """Threads for the masks of all requests of an engine."""

    def __init__(self, budget_s: float = BUDGET_S, max_over_s: float = MAX_OVER_S) -> None:
        """Create threads with a budget per request and step."""
        self.budget_s, self.max_over_s = budget_s, max_over_s
        self.until = 0.0
        """Time of `time.monotonic` up to which the present step waits for masks."""
        self.seconds = 0.0
        """Processor time of all masks since the start."""
        self.deferred = self.cut = 0
        """Entries deferred for masks; verdicts cut before a late mask."""
        self._counting = threading.Lock()
        self._shared = background_threads(THREADS, "masks")
        self._alone = background_threads(1, "dear-masks", LAST)

    def wait_for(self, seconds: float) -> None:
        """Limit the present step's wait for all masks, from now on."""
        self.until = time.monotonic() + seconds

    def open(self, constraint: Constraint, matcher: Matcher, expensive: bool = False) -> "RequestMasks":
        """Return a request's masks; `expensive` if its constraint is expensive."""
        return RequestMasks(self, constraint, matcher, 2 * self.budget_s if expensive else 0.0)

    def submit(self, expensive: bool, work: Callable[[], MaskState | None]) -> "Future[MaskState | None]":
        return (self._alone if expensive else self._shared).submit(work)

    def count(self, seconds: float) -> None:
        with self._counting:
            self.seconds += seconds


class RequestMasks:
    """A request's masks, after its committed tokens and allowed paths.

    Matchers are copied for every mask, so no two threads use one.
    """

    def __init__(
        self, threads: MaskThreads, constraint: Constraint, matcher: Matcher, debt_s: float = 0.0
    ) -> None:
        self._threads, self.constraint = threads, constraint
        self._base, self._unread = matcher, tuple[int, ...]()
        """Matcher of the oldest useful state, and the committed tokens after it."""
        self._states: dict[tuple[int, ...], Future[MaskState | None]] = {}
        """State after each path from the base; None if cancelled."""
        self._debt_s = debt_s
        self._counting = threading.Lock()

    @property
    def expensive(self) -> bool:
        """True while its masks have cost more than its budgets."""
        return self._debt_s > self._threads.budget_s

    @property
    def very_expensive(self) -> bool:
        """True if other requests with its constraint will be expensive, too."""
        return self._debt_s > _VERY_EXPENSIVE * self._threads.budget_s

    def want(self, path: Sequence[int], ahead: bool = False) -> "Future[MaskState | None]":
        """Start the mask after a path; `ahead` cancels it beyond the budget."""
        key = (*self._unread, *path)
        known = self._states.get(key)
        if known is not None and (ahead or not _cancelled(known)):
            return known
        matcher, rest = self._nearest(key)
        future = self._threads.submit(self.expensive, lambda: self._make(matcher, rest, ahead))
        self._states[key] = future
        return future

    def made(self, path: Sequence[int]) -> bool:
        """Return whether the mask after a path is made.

        It waits for the mask of a request that is not expensive.
        """
        future = self.want(path)
        left = self._threads.until - time.monotonic()
        if not future.done() and left > 0 and not self.expensive:
            wait([future], left)
        return future.done() and not _cancelled(future)

    def mask(self, path: Sequence[int]) -> Bool | None:
        """Return the mask [V] after a path; None after the text's end.

        Raises:
            MaskLateError: if it is not made in time.
            ConstraintError: if the constraint is too complex or too expensive, or does not allow the path.
        """
        if not self.made(path):
            raise MaskLateError("its masks are being made")
        self._check_debt()
        return self._state(path).mask

    def read(self, tokens: Sequence[int]) -> None:
        """Read tokens that were committed."""
        self._unread = (*self._unread, *tokens)
        state = self._states.get(self._unread)
        if state is None or not _sound(state):
            return
        mask_state = state.result()
        assert mask_state is not None
        read, self._unread = self._unread, ()
        self._base = mask_state.matcher
        previous, self._states = self._states, {}  # a new one: keys of both kinds may be equal, as in "ll"
        for key, future in previous.items():
            if key[: len(read)] == read:
                self._states[key[len(read) :]] = future
            else:
                future.cancel()

    def cancel(self) -> None:
        """Cancel masks that have not begun. They may be wanted again."""
        for future in self._states.values():
            future.cancel()

    def end_step(self) -> None:
        """Give the request the budget of another step."""
        with self._counting:
            self._debt_s = max(0.0, self._debt_s - self._threads.budget_s)

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the text's end, if reached.

        All but the last are a path with a mask, and the last may follow it.
        """
        for count in range(len(tokens)):
            if self._state(tokens[:count]).mask is None:
                return count
        matcher = self._state(tokens[:-1]).matcher.copy()
        try:
            matcher.read(tokens[-1:])
        except ConstraintError as error:
            raise self._named(error) from error
        self._count(matcher.seconds)
        return len(tokens) if matcher.finished else None

    def _state(self, path: Sequence[int]) -> MaskState:
        state = self._states[(*self._unread, *path)].result()
        assert state is not None, "a cancelled state is of no use"
        return state

    def _nearest(self, key: tuple[int, ...]) -> tuple[Matcher, tuple[int, ...]]:
        """Copy the matcher nearest to a path; return it and the rest."""
        parent = self._states.get(key[:-1]) if key else None
        if parent is not None and _sound(parent) and (state := parent.result()) is not None:
            return state.matcher.copy(), key[-1:]
        return self._base.copy(), key

    def _make(self, matcher: Matcher, path: Sequence[int], ahead: bool) -> MaskState | None:
        """Read a path and make the mask after it, in a thread."""
        if ahead and self._debt_s >= self._threads.budget_s:
            return None
        before = matcher.seconds
        try:
            return _states(matcher, path)
        except ConstraintError as error:
            raise self._named(error) from error
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001  # what panics in the parser is no `Exception`
            raise FaultError("a mask cannot be made", error) from None
        finally:
            self._count(matcher.seconds - before)

    def _named(self, error: ConstraintError) -> ConstraintError:
        return ConstraintError(f"{self.constraint.field}: {error}")

    def _count(self, seconds: float) -> None:
        self._threads.count(seconds)
        with self._counting:
            self._debt_s += seconds

    def _check_debt(self) -> None:
        threads = self._threads
        if self._debt_s > threads.max_over_s:
            budget = f"the budget of {threads.budget_s * 1000:g} ms in each step"
            reason = f"took {threads.max_over_s:g} s of the processor beyond {budget}"
            raise ConstraintError(f"{self.constraint.field}: too complex: its masks {reason}")


def wait_for_any(masks: Sequence["Future[MaskState | None]"], seconds: float) -> None:
    """Wait until one of these masks is made."""
    wait(masks, seconds, FIRST_COMPLETED)


def _states(matcher: Matcher, path: Sequence[int]) -> MaskState:
    for token in path:
        if matcher.finished:
            break
        matcher.read([token])
    if matcher.finished:
        return MaskState(matcher, None)
    mask = matcher.mask()
    if not mask.any():
        raise ConstraintError("needs text of which the model has no tokens")
    return MaskState(matcher, mask)


def _cancelled(future: "Future[MaskState | None]") -> bool:
    """Return whether a mask was cancelled; one that failed was not."""
    if future.cancelled():
        return True
    return future.done() and future.exception() is None and future.result() is None


def _sound(future: "Future[MaskState | None]") -> bool:
    return future.done() and not _cancelled(future) and future.exception() is None
