"""Compute masks of requests' constraints in threads, within a time budget.

    masks = threads.open(constraint, matcher)
    masks.want([5])     start computing the mask after the committed tokens and token 5
    masks.made([5])     True if the mask is ready; waits up to `threads.until` if allowed
    masks.mask([5])     the mask
    masks.read([5])     token 5 is committed

Most masks take less than 1 ms; masks of an ambiguous grammar take 50 ms. Budgets are per request and step. A request
whose masks cost more than the sum of its budgets so far is "expensive". One thread computes the masks of expensive
requests, and no step waits for them. Invariant: a late mask delays a token but never changes it.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import NamedTuple

from specinfer.errors import ConstraintError, FaultError, SpecInferError
from specinfer.system.threads import LAST, background_threads
from specinfer.text.constraints.constraint import Constraint
from specinfer.text.constraints.matcher import Bool, Matcher

BUDGET_S = 0.002
"""Processor seconds for a request's masks per step."""
MAX_OVER_S = 10.0
"""Maximum processor seconds beyond a request's budgets; then the request ends."""
THREADS = 2
"""Number of threads for masks of requests that are not expensive."""
_VERY_EXPENSIVE = 20


class MaskLateError(SpecInferError):
    """A mask is not ready in time for the step."""


class MaskState(NamedTuple):
    """Matcher and mask after a path; mask: None after complete text."""

    matcher: Matcher
    mask: Bool | None


class MaskThreads:
    """Threads for the masks of all requests of an engine."""

    def __init__(self, budget_s: float = BUDGET_S, max_over_s: float = MAX_OVER_S) -> None:
        self.budget_s, self.max_over_s = budget_s, max_over_s
        self.until = 0.0
        """Time (`time.monotonic`) until which the current step waits for masks."""
        self.seconds = 0.0
        """Processor seconds of all masks since the start."""
        self.deferred = 0
        """Number of requests deferred by late masks."""
        self._counting = threading.Lock()
        self._shared = background_threads(THREADS, "masks")
        self._alone = background_threads(1, "expensive-masks", LAST)

    def wait_for(self, seconds: float) -> None:
        """Let the current step wait for masks until `seconds` from now."""
        self.until = time.monotonic() + seconds

    def open(self, constraint: Constraint, matcher: Matcher, expensive: bool = False) -> "RequestMasks":
        """Return a request's masks; `expensive`: earlier requests exceeded the budget."""
        return RequestMasks(self, constraint, matcher, 2 * self.budget_s if expensive else 0.0)

    def submit(self, expensive: bool, work: Callable[[], MaskState | None]) -> "Future[MaskState | None]":
        return (self._alone if expensive else self._shared).submit(work)

    def count(self, seconds: float) -> None:
        with self._counting:
            self.seconds += seconds


class RequestMasks:
    """Masks of a request, after its context and after paths of nodes.

    Each mask has its own copy of the matcher, so threads share no matcher.
    """

    def __init__(
        self, threads: MaskThreads, constraint: Constraint, matcher: Matcher, debt_s: float = 0.0
    ) -> None:
        self._threads, self.constraint = threads, constraint
        self._base, self._unread = matcher, tuple[int, ...]()
        """Matcher, and the committed tokens that the matcher has not read."""
        self._states: dict[tuple[int, ...], Future[MaskState | None]] = {}
        """State after each path from `_base`; None if cancelled."""
        self._debt_s = debt_s
        self._counting = threading.Lock()

    @property
    def expensive(self) -> bool:
        """True while the request's masks have cost more than its budgets."""
        return self._debt_s > self._threads.budget_s

    @property
    def very_expensive(self) -> bool:
        """True if other requests should treat the constraint as expensive."""
        return self._debt_s > _VERY_EXPENSIVE * self._threads.budget_s

    def want(self, path: Sequence[int], ahead: bool = False) -> "Future[MaskState | None]":
        """Start computing the mask after a path; `ahead`: only within the budget."""
        key = (*self._unread, *path)
        known = self._states.get(key)
        if known is not None and (ahead or not _cancelled(known)):
            return known
        matcher, rest = self._nearest(key)
        future = self._threads.submit(self.expensive, lambda: self._make(matcher, rest, ahead))
        self._states[key] = future
        return future

    def made(self, path: Sequence[int]) -> bool:
        """Return whether the mask after a path is ready.

        Waits for the mask if the request is not expensive.
        """
        future = self.want(path)
        left = self._threads.until - time.monotonic()
        if not future.done() and left > 0 and not self.expensive:
            wait([future], left)
        return future.done() and not _cancelled(future)

    def mask(self, path: Sequence[int]) -> Bool | None:
        """Return the mask [V] after a path; None after the text's end."""
        if not self.made(path):
            raise MaskLateError("the masks of its constraint are being computed")
        self._check_debt()
        return self._state(path).mask

    def read(self, tokens: Sequence[int]) -> None:
        """Read committed tokens; drop the masks of other paths."""
        self._unread = (*self._unread, *tokens)
        state = self._states.get(self._unread)
        if state is None or not _sound(state):
            return
        mask_state = state.result()
        assert mask_state is not None
        read, self._unread = self._unread, ()
        self._base = mask_state.matcher
        previous, self._states = self._states, {}  # a new dict: an old key may equal a new one, as in "ll"
        for key, future in previous.items():
            if key[: len(read)] == read:
                self._states[key[len(read) :]] = future
            else:
                future.cancel()

    def cancel(self) -> None:
        """Cancel masks that have not begun; `want` may start them again."""
        for future in self._states.values():
            future.cancel()

    def end_step(self) -> None:
        """Credit one step's budget against the used processor time."""
        with self._counting:
            self._debt_s = max(0.0, self._debt_s - self._threads.budget_s)

    def end(self, tokens: Sequence[int]) -> int | None:
        """Count the tokens up to the text's end; None if not reached.

        All tokens but the last must be a path whose mask is ready and allows the last.
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
        """Return a copied matcher, and the tokens that it must still read."""
        parent = self._states.get(key[:-1]) if key else None
        if parent is not None and _sound(parent) and (state := parent.result()) is not None:
            return state.matcher.copy(), key[-1:]
        return self._base.copy(), key

    def _make(self, matcher: Matcher, path: Sequence[int], ahead: bool) -> MaskState | None:
        """Compute the mask after a path, in a worker thread."""
        if ahead and self._debt_s >= self._threads.budget_s:
            return None
        before = matcher.seconds
        try:
            return _states(matcher, path)
        except ConstraintError as error:
            raise self._named(error) from error
        except Exception:
            raise
        except BaseException as error:  # noqa: BLE001  # a panic of the parser is not an `Exception`
            raise FaultError(f"computing a mask of {self.constraint.field} failed", error) from None
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
            reason = f"took {threads.max_over_s:g} s of processor time beyond {budget}"
            raise ConstraintError(f"{self.constraint.field}: too complex: its masks {reason}")


def wait_for_any(masks: Sequence["Future[MaskState | None]"], seconds: float) -> None:
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
        raise ConstraintError("needs text that the model's tokens cannot write")
    return MaskState(matcher, mask)


def _cancelled(future: "Future[MaskState | None]") -> bool:
    """Return whether a mask was cancelled (not failed)."""
    if future.cancelled():
        return True
    return future.done() and future.exception() is None and future.result() is None


def _sound(future: "Future[MaskState | None]") -> bool:
    return future.done() and not _cancelled(future) and future.exception() is None
