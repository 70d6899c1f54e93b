"""Define the client's errors, and which gRPC codes to retry."""

from dataclasses import dataclass
from enum import Enum

import grpc

from specinfer.errors import SpecInferError, UnavailableError
from specinfer.wire.status import RETRY_HINT_KEY

_Code = grpc.StatusCode


class Cure(Enum):
    """Condition under which a failed call is retried."""

    TRANSIENT = "always"
    HINTED = "if the gateway sent a retry hint"
    TRANSPORT = "if the connection broke, not if the gateway sent the code"
    FINAL = "never"


CURES: dict[grpc.StatusCode, Cure] = {
    _Code.OK: Cure.FINAL,
    _Code.UNAVAILABLE: Cure.TRANSIENT,  # no connection, or the gateway waits for a verifier or Redis
    _Code.CANCELLED: Cure.TRANSIENT,  # by a server that shuts down; own cancellations are handled before
    _Code.ABORTED: Cure.TRANSIENT,  # the gateway lost a lease: another gateway owns the request
    _Code.DEADLINE_EXCEEDED: Cure.TRANSIENT,  # a proxy's deadline, as the client's streams have none
    _Code.RESOURCE_EXHAUSTED: Cure.HINTED,  # a full queue has a hint; a request that is too large does not
    _Code.INTERNAL: Cure.TRANSPORT,  # RST_STREAM, or a permanent fault
    _Code.UNKNOWN: Cure.TRANSPORT,  # "Stream removed", or an exception in the gateway
    _Code.INVALID_ARGUMENT: Cure.FINAL,
    _Code.NOT_FOUND: Cure.FINAL,
    _Code.ALREADY_EXISTS: Cure.FINAL,
    _Code.PERMISSION_DENIED: Cure.FINAL,
    _Code.UNAUTHENTICATED: Cure.FINAL,
    _Code.FAILED_PRECONDITION: Cure.FINAL,
    _Code.OUT_OF_RANGE: Cure.FINAL,
    _Code.UNIMPLEMENTED: Cure.FINAL,
    _Code.DATA_LOSS: Cure.FINAL,
}
_TRANSPORT_WORDS = (
    "rst_stream",
    "stream removed",
    "socket closed",
    "connection reset",
    "broken pipe",
    "goaway",
    "endpoint closing",
    "transport closed",
)
"""Lower-case words in gRPC's messages about broken connections."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Status of a failed call."""

    code: grpc.StatusCode
    details: str = ""
    retry_after_s: float | None = None
    """The gateway's hint: seconds to wait before a retry, if given."""
    hopeless: bool = False
    """True if the gateway's hint (a negative number) forbids a retry."""

    @classmethod
    def of(cls, error: grpc.aio.AioRpcError) -> "Failure":
        """Convert a gRPC error.

        A retry hint that is negative or not a number forbids a retry, as in gRPC's retry policies.
        """
        hint = dict(error.trailing_metadata() or ()).get(RETRY_HINT_KEY)
        usable = isinstance(hint, str) and hint.isdecimal()
        seconds = int(hint) / 1000 if hint is not None and usable else None
        return cls(error.code(), error.details() or "", seconds, hopeless=hint is not None and not usable)

    @property
    def transient(self) -> bool:
        """True if a retry may succeed."""
        if self.hopeless:
            return False
        cure = CURES[self.code]
        if cure is Cure.HINTED:
            return self.retry_after_s is not None
        if cure is Cure.TRANSPORT:
            return any(word in self.details.lower() for word in _TRANSPORT_WORDS)
        return cure is Cure.TRANSIENT

    @property
    def no_room(self) -> bool:
        """True if the gateway's queue or the caller's quota is full."""
        return self.code is _Code.RESOURCE_EXHAUSTED

    def __str__(self) -> str:
        return f"{self.details} ({self.code.name})"


CUT_SHORT = Failure(_Code.UNAVAILABLE, "the stream ended without a summary")


_BAD_INPUT = (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.ALREADY_EXISTS, grpc.StatusCode.NOT_FOUND)


class RequestFailedError(SpecInferError):
    """A gateway refused or ended a request, and no retry can help."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure

    @property
    def bad_input(self) -> bool:
        """True if the request itself is invalid."""
        return self.failure.code in _BAD_INPUT


class StreamLostError(UnavailableError):
    """No gateway continued a request within the client's patience.

    The request may still run or have ended: `AsyncClient.attach(request_id, from_token)` continues it.
    """

    def __init__(self, gateway: str, failure: Failure, request_id: str, from_token: int) -> None:
        super().__init__(f"gateway at {gateway}: {failure.details or failure.code.name}")
        self.failure, self.request_id, self.from_token = failure, request_id, from_token


class BrokenStreamError(SpecInferError):
    """A gateway broke the protocol: a stream's tokens are missing or repeated."""

    def __init__(self, gateway: str, request_id: str, position: int, expected: int, why: str) -> None:
        super().__init__(
            f"gateway at {gateway} broke the protocol in request {request_id}: its reply has position {position}, "
            f"expected is {expected}: {why}; call another gateway, or update this one"
        )
        self.request_id, self.position, self.expected = request_id, position, expected
