"""The lanes of a gateway, and the verifiers that it could drive."""

import asyncio
import logging
from collections.abc import Iterable, Iterator

from gateway.clients.verifier_link import VerifierLink, resolve
from gateway.lane import Lane, Shared
from gateway.ownership.rules import best_lane
from gateway.requests.request import GenerationRequest
from gateway.requests.step import Progress
from gateway.store.leases import LeaseStore, VerifierLease
from gateway.store.records import Record
from specinfer.errors import IncompatibleError, SpecInferError, UnavailableError
from specinfer.service.log_context import about
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)


class Lanes:
    """Verifiers by address, lanes by the verifier's instance id."""

    def __init__(self, shared: Shared, leases: LeaseStore) -> None:
        self._shared, self._leases = shared, leases
        self.links: dict[str, VerifierLink] = {}
        self.by_instance: dict[str, Lane] = {}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self.by_instance.values())

    def __len__(self) -> int:
        return len(self.by_instance)

    @property
    def held(self) -> list[VerifierLease]:
        """The leases of all lanes."""
        return [lane.lease for lane in self.by_instance.values()]

    @property
    def known(self) -> int:
        """Verifiers that could be driven, by whomever."""
        return sum(link.description is not None for link in self.links.values())

    @property
    def target(self) -> verifier_pb2.DescribeVerifierReply:
        """What a verifier that this gateway has met says of itself."""
        return next(link.description for link in self.links.values() if link.description is not None)

    @property
    def read_references(self) -> bool:
        """Whether any speculator drafts from references; where there is no lane, those of others may."""
        lanes = self.by_instance.values()
        return not lanes or any(lane.loop.pool.read_references for lane in lanes)

    def of_request(self, request_id: str) -> Lane | None:
        """The lane that runs a request."""
        found = (lane for lane in self.by_instance.values() if request_id in lane.loop.scheduler.states)
        return next(found, None)

    def owns(self, request_id: str) -> bool:
        """Whether a lane has a request, or has not stored its end yet."""
        return self._holder(request_id) is not None

    def _holder(self, request_id: str) -> Lane | None:
        lanes = self.by_instance.values()
        return next((lane for lane in lanes if request_id in lane.loop.deliveries.unfinished), None)

    def best_for(self, request: GenerationRequest, model: str = "") -> Lane | None:
        """Where a request goes best; None if no lane serves its model."""
        lanes = [lane for lane in self.by_instance.values() if lane.running and model in ("", lane.model)]
        best = best_lane([lane.view(request) for lane in lanes])
        return None if best is None else lanes[best]

    async def take(self, record: Record) -> None:
        """Goes on with a request that this gateway has adopted, or gives it away if it has no place for it.

        Raises:
            UnavailableError: if Redis does not answer.
        """
        request = record.request
        if record.ending is not None:
            return  # its end was written just before
        holder = self._holder(request.request_id)
        if holder is not None and holder.loop.deliveries.adopted_again(request.request_id, record.adoption):
            return  # nobody has had it meanwhile
        if holder is not None:
            holder.loop.deliveries.let_go([request.request_id])
        lane = self.best_for(request, record.model)
        try:
            if lane is None:
                raise UnavailableError("no lane serves its model")
            feed = self._shared.feeds.open_local(request, record.digest)
            feed.extend(0, record.tokens, record.logprobs, None)
            state = lane.submit(record)
        except SpecInferError as error:
            why, name = "request %s is given away again: %s", request.request_id
            log.info(why, name, error, extra=about(name))
            self._shared.feeds.moved([request.request_id])
            await self._shared.store.disown([request.request_id], in_vain=True)
            return
        self._shared.journal.adopted(request, len(record.tokens))
        if state.finish is not None:  # its last tokens end it; only that was not written
            await lane.loop.deliveries.put([Progress(state, [], [], state.new_tokens, True)])

    async def look_up(self, strict: bool = False) -> None:
        """Resolves names, and asks every verifier that is not driven from here what it is.

        Raises:
            IncompatibleError: if one does not fit the gateway's tokenizer, and `strict`.
        """
        addresses = await resolve(self._shared.settings.verifier_addresses)
        for address in addresses:
            if address not in self.links:
                self.links[address] = self._link(address)
        driven = {lane.link.address for lane in self.by_instance.values()}
        for address in [a for a in self.links if a not in addresses and a not in driven]:
            await self.links.pop(address).close()
        idle = [link for address, link in self.links.items() if address not in driven]
        found = await asyncio.gather(*(link.describe() for link in idle), return_exceptions=True)
        for error in found:
            if isinstance(error, IncompatibleError) and not strict:
                log.error("%s; it is left out", error)
            elif isinstance(error, BaseException):
                raise error

    async def claim(self, most: int, strict: bool = False) -> None:
        """Starts lanes of up to so many verifiers that nobody drives.

        Raises:
            IncompatibleError: if a speculator does not fit the model, and `strict`.
            UnavailableError: if Redis does not answer.
        """
        for link in list(self.links.values()):
            instance = link.instance_id
            if most <= 0 or link.description is None or instance in self.by_instance:
                continue
            lease = await self._leases.claim(instance)
            if isinstance(lease, str):
                link.holder = lease
                continue
            most -= 1
            await self._start(link, lease, strict)

    async def keep(self, instance_id: str) -> None:
        """The lease of a lane is gone: claims it again, or ends the lane if another gateway has it."""
        lane = self.by_instance.get(instance_id)
        if lane is None:
            return
        lease = await self._leases.claim(instance_id)
        if isinstance(lease, VerifierLease):
            lane.go_on_with(lease)
        else:
            lane.link.holder = lease
            await self.end(lane)

    async def end_stopped(self) -> bool:
        """Ends the lanes whose loops have ended; says whether there were any."""
        stopped = [lane for lane in self.by_instance.values() if not lane.running]
        for lane in stopped:
            await self.end(lane)
        return bool(stopped)

    async def end(self, lane: Lane) -> None:
        """Ends a lane; its verifier and its requests are free."""
        self.by_instance.pop(lane.lease.instance_id, None)
        lane.link.description = None  # it is asked again what it is
        lane.link.holder = ""
        await lane.end()
        await self._leases.give_up(lane.lease)

    async def end_all(self) -> None:
        """Ends all lanes."""
        for lane in list(self.by_instance.values()):
            await self.end(lane)

    async def close(self) -> None:
        """Ends all work here without a word to Redis."""
        for lane in list(self.by_instance.values()):
            await lane.stop()
        for link in self.links.values():
            await link.close()

    async def _start(self, link: VerifierLink, lease: VerifierLease, strict: bool) -> None:
        lane = self.by_instance[lease.instance_id] = Lane(self._shared, link, lease)
        try:
            await lane.start(strict)
        except SpecInferError:
            await self.end(lane)
            raise
        link.holder = self._leases.gateway_id
        log.info("driving the verifier at %s, fence %d", link.address, lease.fence)

    def _link(self, address: str) -> VerifierLink:
        tokenizer, settings = self._shared.tokenizer, self._shared.settings
        fingerprints = (tokenizer.fingerprint(), tokenizer.text_fingerprint())
        return VerifierLink(address, fingerprints, settings.hung_seconds, settings.services_tls)


def models_of(lanes: Iterable[Lane]) -> list[str]:
    """Fingerprints of the models that running lanes serve."""
    return sorted({lane.model for lane in lanes if lane.running})
