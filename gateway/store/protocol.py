"""Define what a gateway needs of its store: requests with their tokens, and leases.

Invariants: a token is durable before any client sees it; only the owner of a request writes to it, by the number of its
adoption. Writing the same again changes nothing, so a call whose answer was lost is repeated. All calls raise
`UnavailableError` while the store cannot be used.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from gateway.api.callers import Caller
from gateway.session.token_stream import TokenStream
from gateway.store.records import Glimpse, Known, Record
from specinfer.errors import AlreadyExistsError, ExhaustedError, FaultError
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest, RequestState


class Written(Enum):
    """Outcome of writing one request's tokens."""

    OK = "ok"
    CANCEL = "cancel"
    """Written, and a client has cancelled the request."""
    FENCED = "fenced"
    """Another gateway owns the request; nothing was written."""
    LOST = "lost"
    """The request or its earlier tokens are missing; nothing was written."""


@dataclass(frozen=True, slots=True)
class GatewayReport:
    """State that a gateway reports when it renews its lease."""

    gateway_id: str
    sessions: int = 0
    """Number of verifiers that the gateway drives."""
    room: int = 0
    """Number of additional requests that the gateway could run at once."""
    draining: bool = False
    models: tuple[str, ...] = ()
    """Fingerprints of its models; requests with tokens need the same model."""
    number: int = 0
    """Sequence number of the gateway's reports, from 1; 0 in old versions."""


@dataclass(frozen=True, slots=True)
class VerifierLease:
    """Right to drive one verifier; newer leases have a higher `fence`."""

    instance_id: str
    fence: int


@dataclass(frozen=True, slots=True)
class Renewal:
    """Outcome of renewing a gateway's lease."""

    epoch: str
    """Random id in the store; a changed id means lost data."""
    alive: list[GatewayReport]
    """Reports of all live gateways, this one included."""
    cancels: list[str]
    """Ids of this gateway's requests to cancel."""
    lost: list[str]
    """Instance ids of verifiers whose leases were lost."""


class Store(Protocol):
    """Reads all requests; writes the requests and leases of one gateway.

    Finished requests stay for a while; a limited number of requests may wait for an owner.
    """

    name: str
    """Name in log lines and errors."""
    gateway_id: str

    async def create(
        self, request: GenerationRequest, idempotency_key: str, caller: Caller, owned: bool
    ) -> bool:
        """Record a request; return whether it is new.

        Args:
            request: the request to record.
            idempotency_key: hash of the content; a repeated request has the same hash.
            caller: the sender, whose quota counts.
            owned: True if this gateway runs the request; else it waits for adoption.
        """

    async def check_quota(self, request_id: str, idempotency_key: str, caller: Caller) -> None:
        """Raise the errors with which `create` would refuse the caller now."""

    async def append(self, progress: Sequence[Progress], names: Sequence[str], model: str) -> list[Written]:
        """Store new tokens and finish reasons; return the outcome of each item, in order.

        The first tokens fix the request's model, and whether its drafts are sampled.

        Args:
            progress: new tokens and finish reasons; `RequestState.adoption` is the one that may write them.
            names: `names[i]` is the name of speculator i.
            model: fingerprint of the model that generated the tokens.
        """

    async def restore(
        self, state: RequestState, token_stream: TokenStream, model: str, now: float
    ) -> Written:
        """Write an unfinished request again, with all its durable tokens.

        Called after the store lost the request or its latest tokens.
        """

    async def adopt(self, max_count: int, models: Sequence[str]) -> list[Record]:
        """Adopt at most `max_count` requests that no gateway owns.

        Callers take turns, each with its oldest request. Adopted requests have no tokens yet, or tokens of one of
        these models.
        """

    async def disown(self, adoptions: Mapping[str, int], not_run: bool = False) -> None:
        """Remove this gateway as owner of requests; a later adoption keeps its owner.

        Args:
            adoptions: adoption numbers of this gateway's requests, by id.
            not_run: True if the requests were adopted but could not run; their waiting time continues.
        """

    async def cancel(self, request_id: str, caller: Caller | None) -> None:
        """Mark an owned request as cancelled; end an unowned request."""

    async def leave(self, request_id: str) -> bool:
        """Record that no client reads a request at this gateway any more.

        The request is cancelled unless a client reads it at another gateway.

        Returns:
            True if the owner must end the request.
        """

    async def owned(self) -> dict[str, int]:
        """Return the adoption numbers of this gateway's unfinished requests, by id."""

    async def listen(self, request_id: str) -> None:
        """Record that a client reads a request at this gateway, until `leave`."""

    async def abandon(self, patience_s: float, reason: str) -> int:
        """End unowned requests after deadline or patience; return their number."""

    async def discard(self, request_id: str, adoption: int = 1) -> None:
        """Remove a request that this gateway cannot run, unless it was adopted again."""

    async def load(self, request_id: str, caller: Caller | None = None) -> Record | None:
        """Return a request; None if it is missing or another caller's."""

    async def glimpse(self, positions: Mapping[str, Known]) -> dict[str, Glimpse | FaultError | None]:
        """Return the new tokens and endings of requests, after known positions.

        A value is None for a missing request, and an error for a request that cannot be decoded.
        """

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        """Renew the leases of the gateway and its verifiers."""

    async def claim(self, instance_id: str) -> VerifierLease | str:
        """Claim a verifier; return the lease, or the current owner's id."""

    async def release(self, lease: VerifierLease) -> None:
        """Release a verifier for other gateways."""

    async def resign(self, leases: Sequence[VerifierLease]) -> None:
        """Release all leases and requests of this gateway at its end."""

    async def close(self) -> None:
        """Close the connection or the file; called once, last."""


def is_new(word: str, request_id: str, caller: Caller, max_unowned: int) -> bool:
    """Return whether a request was created; raise the error of a refusal."""
    match word:
        case "other":
            raise AlreadyExistsError(f"request_id = {request_id!r}: used for another request")
        case "full":
            raise ExhaustedError(f"queue full: {max_unowned} requests wait for a gateway, the maximum")
        case "concurrent":
            raise ExhaustedError(
                f"key {caller.name}: {caller.max_concurrent} requests are unfinished, the maximum of this key"
            )
        case "rate":
            raise ExhaustedError(
                f"key {caller.name}: over {caller.tokens_per_minute} tokens per minute, the maximum",
                retry_after_s=10.0,
            )
    return word == "created"
