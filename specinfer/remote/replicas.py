"""Find replicas of speculator services, and divide requests among them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from specinfer.remote.drafts import DraftStream
from specinfer.remote.service import SpeculatorService
from specinfer.scheduling.entries import StepEntry
from specinfer.service.channel import replica_addresses, resolve
from specinfer.service.stream import Channel, MessageStream
from specinfer.v1 import speculator_pb2_grpc


class ReplicaShares:
    """Divides requests among the replicas of one service."""

    def __init__(self) -> None:
        self._place: dict[str, str] = {}
        """Address of the assigned replica, by request id."""

    def divide(self, request_ids: Iterable[str], present: Sequence[str]) -> dict[str, str]:
        """Assign each request to an address of `present`; {} without addresses."""
        if not present:
            return {}
        names = list(request_ids)
        load = Counter(dict.fromkeys(present, 0))
        load.update(place for place in self._place.values() if place in load)
        for request_id in names:
            if self._place.get(request_id) not in load:
                self._place[request_id] = least = min(present, key=load.__getitem__)
                load[least] += 1
        return {request_id: self._place[request_id] for request_id in names}

    def forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._place.pop(request_id, None)


class SpeculatorReplicas:
    """All replicas ever found, available or not."""

    def __init__(self, services: Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        """Create the table of replicas.

        `services` are elements returned by `service_addresses`. The caller closes the channels.
        """
        self._open = open_channel
        self._shares = {service: ReplicaShares() for service in services}
        self.known: list[SpeculatorService] = []

    @property
    def may_change(self) -> bool:
        """True if any service is a DNS name, whose addresses may change."""
        return any(service.startswith("dns:///") for service in self._shares)

    async def look(self) -> list[SpeculatorService]:
        """Look up DNS names; return replicas not known before."""
        known = {(replica.service, replica.address) for replica in self.known}
        resolved = await asyncio.gather(*(resolve(replica_addresses(service)) for service in self._shares))
        new = [
            _replica(service, address, self._open(address))
            for service, addresses in zip(self._shares, resolved, strict=True)
            for address in addresses
            if (service, address) not in known
        ]
        self.known += new
        return new

    def divide(self, entries: Sequence[StepEntry]) -> dict[str, list[StepEntry]]:
        """Return the requests of each replica, by address.

        If no replica of a service is available, every replica gets all requests, so that its missed steps count.
        """
        by_address: dict[str, list[StepEntry]] = {}
        for service, shares in self._shares.items():
            replicas = [replica for replica in self.known if replica.service == service]
            present = [replica.address for replica in replicas if replica.description is not None]
            places = shares.divide([entry.request_id for entry in entries], present)
            for replica in replicas:
                sendable = [
                    e for e in entries if places.get(e.request_id, replica.address) == replica.address
                ]
                by_address[replica.address] = sendable
        return by_address

    def places(self, entries: Sequence[StepEntry]) -> dict[str, set[str]]:
        """Return the addresses of the replicas that draft for each request."""
        places: dict[str, set[str]] = {entry.request_id: set() for entry in entries}
        for address, sent in self.divide(entries).items():
            for entry in sent:
                places[entry.request_id].add(address)
        return places

    def forget(self, request_ids: Sequence[str]) -> None:
        for shares in self._shares.values():
            shares.forget(request_ids)
        for replica in self.known:
            replica.forget(request_ids)


def _replica(service: str, address: str, channel: Channel) -> SpeculatorService:
    stub = speculator_pb2_grpc.SpeculatorStub(channel)  # type: ignore[no-untyped-call]
    stream: DraftStream = MessageStream(address, lambda: stub.Draft())
    return SpeculatorService(service=service, address=address, stub=stub, stream=stream)
