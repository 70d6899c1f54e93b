"""Claim and renew leases of gateways and verifiers."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from gateway.store.connection import RedisConnection
from gateway.store.embedded import EmbeddedStore


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
    """Random id in Redis; a changed id means lost data."""
    alive: list[GatewayReport]
    """Reports of all live gateways, this one included."""
    cancels: list[str]
    """Ids of this gateway's requests to cancel."""
    lost: list[str]
    """Instance ids of verifiers whose leases were lost."""


class LeaseStore:
    name = "Redis"
    """Name in log lines."""

    def __init__(self, connection: RedisConnection, gateway_id: str, lease_s: float) -> None:
        self._connection, self.gateway_id, self.lease_s = connection, gateway_id, lease_s

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        """Renew the leases of the gateway and its verifiers."""
        epoch, alive, cancels, lost = await self._connection.run(
            "renew",
            self.gateway_id,
            self._milliseconds,
            json.dumps(asdict(report)),
            secrets.token_hex(8),
            *_pairs(leases),
        )
        reports = [_report(text) for text in alive]
        return Renewal(epoch, reports, list(cancels), list(lost))

    async def claim(self, instance_id: str) -> VerifierLease | str:
        """Claim a verifier; return the lease, or the current owner's id."""
        fence, holder = await self._connection.run("claim", instance_id, self.gateway_id, self._milliseconds)
        return str(holder) if holder else VerifierLease(instance_id, int(fence))

    async def release(self, lease: VerifierLease) -> None:
        """Release a verifier for other gateways."""
        await self._connection.run("yield", lease.instance_id, self.gateway_id, lease.fence)

    async def leave(self, leases: Sequence[VerifierLease]) -> None:
        """Release all leases and requests of this gateway at its end."""
        await self._connection.run("leave", self.gateway_id, *_pairs(leases))

    @property
    def _milliseconds(self) -> int:
        return round(self.lease_s * 1000)


def _report(text: str) -> GatewayReport:
    """Parse a gateway's report; ignore fields that this version does not know."""
    known = {field.name for field in fields(GatewayReport)}
    said = {name: value for name, value in json.loads(text).items() if name in known}
    return GatewayReport(**{**said, "models": tuple(said.get("models", ()))})


def _pairs(leases: Sequence[VerifierLease]) -> list[str]:
    return [text for lease in leases for text in (lease.instance_id, str(lease.fence))]


class EmbeddedLeases(LeaseStore):
    """Leases of the only gateway, whose claims always succeed."""

    name = "the store"

    def __init__(self, store: EmbeddedStore, lease_s: float) -> None:
        self.gateway_id, self.lease_s = store.gateway_id, lease_s
        self._store, self._fence = store, 0

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        """Return the requests to cancel."""
        self._store.check()
        return Renewal("embedded", [report], self._store.take_cancelled(), [])

    async def claim(self, instance_id: str) -> VerifierLease | str:
        self._fence += 1
        return VerifierLease(instance_id, self._fence)

    async def release(self, lease: VerifierLease) -> None:
        """Do nothing, as there are no other gateways."""

    async def leave(self, leases: Sequence[VerifierLease]) -> None:
        """Do nothing: there are no other gateways."""
