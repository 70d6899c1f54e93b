"""Claim and renew leases of gateways and verifiers."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, fields

from gateway.store.connection import RedisConnection
from gateway.store.embedded import EmbeddedStore
from gateway.store.protocol import GatewayReport, Leases, Renewal, VerifierLease


class RedisLeases(Leases):
    name = "Redis"

    def __init__(self, connection: RedisConnection, gateway_id: str, lease_s: float) -> None:
        self._connection, self.gateway_id, self.lease_s = connection, gateway_id, lease_s

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
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
        fence, holder = await self._connection.run("claim", instance_id, self.gateway_id, self._milliseconds)
        return str(holder) if holder else VerifierLease(instance_id, int(fence))

    async def release(self, lease: VerifierLease) -> None:
        await self._connection.run("yield", lease.instance_id, self.gateway_id, lease.fence)

    async def leave(self, leases: Sequence[VerifierLease]) -> None:
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


class EmbeddedLeases(Leases):
    """Leases of the only gateway, whose claims always succeed."""

    name = "the store"

    def __init__(self, store: EmbeddedStore, lease_s: float) -> None:
        self.gateway_id, self.lease_s = store.gateway_id, lease_s
        self._store, self._fence = store, 0

    async def renew(self, report: GatewayReport, leases: Sequence[VerifierLease]) -> Renewal:
        return Renewal("embedded", [report], await self._store.cancelled(), [])

    async def claim(self, instance_id: str) -> VerifierLease | str:
        self._fence += 1
        return VerifierLease(instance_id, self._fence)

    async def release(self, lease: VerifierLease) -> None:
        """Do nothing, as there are no other gateways."""

    async def leave(self, leases: Sequence[VerifierLease]) -> None:
        """Do nothing: a later process adopts the requests."""
