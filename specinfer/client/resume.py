"""Continue a stream of tokens at other gateways after failures. Pure.

`Resume` receives replies and failures, and returns new tokens and the next call to make. Clocks and random numbers are
arguments.

Invariant: each token is returned exactly once, in order. A gateway attaches exactly at the requested token, so each
reply is new as a whole, or dropped as a whole.
"""

from collections.abc import Callable
from dataclasses import dataclass

from specinfer.client.answer import read_logprobs, read_summary
from specinfer.client.errors import BrokenStreamError, Failure, RequestFailedError, StreamLostError
from specinfer.request.answer import Accepted, Item, Piece
from specinfer.v1 import generation_pb2


@dataclass(frozen=True, slots=True)
class Patience:
    """Duration and intervals of retries after a stream is lost."""

    patience_s: float = 60.0
    """Seconds without a new token after which retries end; 0: no retry."""
    for_room: bool = True
    """True: also retry if the queue or the quota is full."""
    first_wait_s: float = 0.1
    longest_wait_s: float = 5.0

    def wait_s(self, rounds: int, jitter: float) -> float:
        """Return the seconds before a retry: doubled per round over all addresses.

        `jitter` in [0, 1) subtracts up to half, so that clients do not retry simultaneously.
        """
        wait = min(self.longest_wait_s, self.first_wait_s * 2.0 ** min(rounds, 32))
        return wait * (1 - jitter / 2)


@dataclass(frozen=True, slots=True)
class NextCall:
    """Address and method of the next call."""

    address: int
    """Index into the addresses."""
    attach_from: int | None
    """Received tokens for `Attach`; None: call `Generate`, with the same id."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A retry: the failure, the seconds to wait, and the next call."""

    failure: Failure
    wait_s: float
    call: NextCall
    failures: int
    """Consecutive failures without a new token, including this one."""


class Resume:
    """The state of one stream."""

    def __init__(
        self,
        request_id: str,
        addresses: tuple[str, ...],
        patience: Patience,
        jitter: Callable[[], float],
        *,
        first_address: int = 0,
        attach_from: int | None = None,
    ) -> None:
        """Create the state of a stream.

        `attach_from` is the number of tokens after which an existing request continues; None: a new request.
        """
        self._request_id, self._addresses = request_id, addresses
        self._patience, self._jitter = patience, jitter
        self._address = first_address
        self._may_generate = attach_from is None
        self._lost_at: float | None = None
        self._failures = 0
        self.position = attach_from or 0
        """Number of tokens returned so far."""
        self.ended = False

    @property
    def call(self) -> NextCall:
        """Return the call to make next.

        Before the first token this is `Generate`, which attaches to the request if it exists, and else
        creates the request.
        """
        attach = self.position > 0 or not self._may_generate
        return NextCall(self._address, self.position if attach else None)

    def replied(self, reply: generation_pb2.GenerateReply) -> tuple[Item, ...]:
        """Return the new items of a reply.

        Raises:
            BrokenStreamError: if tokens before the reply are missing, or only part of the reply is new.
        """
        if self._had(reply):
            return ()
        items: tuple[Item, ...] = ()
        if reply.token_ids or reply.text:
            items = (self._piece(reply),)
        if reply.HasField("summary"):
            items, self.ended = (*items, read_summary(reply.summary)), True
        if not items and reply.prompt_tokens:
            return (Accepted(reply.prompt_tokens, reply.begins_in_reasoning),)
        if items:
            self.position += len(reply.token_ids)
            self._lost_at, self._failures = None, 0
        return items

    def _piece(self, reply: generation_pb2.GenerateReply) -> Piece:
        tokens, logprobs = tuple(reply.token_ids), tuple(reply.logprobs)
        return Piece(self.position, tokens, reply.text, logprobs, read_logprobs(reply))

    def _had(self, reply: generation_pb2.GenerateReply) -> bool:
        """Return whether all tokens of a reply were already returned."""
        end, last = reply.position + len(reply.token_ids), reply.HasField("summary")
        if reply.position > self.position:
            raise self._broken(reply, "tokens between them are missing")
        if reply.position < self.position:
            if end > self.position or last:
                raise self._broken(reply, "only a part of it is new")
            return True
        if reply.text and not reply.token_ids and not last:
            # after an Attach, this text could not be separated from the next tokens' text
            raise self._broken(reply, "it has text without tokens")
        return False

    def _broken(self, reply: generation_pb2.GenerateReply, reason: str) -> BrokenStreamError:
        gateway = self._addresses[self._address]
        return BrokenStreamError(gateway, self._request_id, reply.position, self.position, reason)

    def failed(self, failure: Failure, now: float) -> Retry:
        """Return the retry after a failed call, at the next address.

        Args:
            failure: the call's failure.
            now: monotonic time in seconds.

        Raises:
            RequestFailedError: if a retry cannot succeed.
            StreamLostError: after `patience_s` without a new token.
        """
        if not failure.transient or (failure.no_room and not self._patience.for_room):
            raise RequestFailedError(failure)
        self._lost_at = now if self._lost_at is None else self._lost_at
        left = self._lost_at + self._patience.patience_s - now
        if left <= 0:
            gateway = self._addresses[self._address]
            raise StreamLostError(gateway, failure, self._request_id, self.position)
        wait = failure.retry_after_s
        if wait is None:
            wait = self._patience.wait_s(self._failures // len(self._addresses), self._jitter())
        self._failures += 1
        self._address = (self._address + 1) % len(self._addresses)
        return Retry(failure, min(wait, left), self.call, self._failures)
