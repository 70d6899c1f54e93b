"""Manage a gateway's sessions (one per driven verifier), and find other verifiers.

Invariant: a verifier that does not answer delays no other, as each is described, started and ended by a task of
its own.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Iterator

from gateway.cluster.rules import best_session
from gateway.cluster.verifier_link import VerifierLink
from gateway.session.session import Shared, VerifierSession
from gateway.store.protocol import VerifierLease
from gateway.store.records import Record
from specinfer.errors import IncompatibleError, SpecInferError, UnavailableError
from specinfer.scheduling.entries import Progress
from specinfer.scheduling.request import GenerationRequest
from specinfer.service.channel import resolve
from specinfer.system.log_lines import about
from specinfer.v1 import verifier_pb2

log = logging.getLogger(__name__)


class VerifierSessions:
    """Verifiers by address, sessions by the verifier's instance id."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.links: dict[str, VerifierLink] = {}
        self.by_instance: dict[str, VerifierSession] = {}
        self._descriptions: dict[str, asyncio.Task[bool]] = {}
        """Tasks by address that describe a verifier; results are not read yet."""
        self._work: set[asyncio.Task[None]] = set()
        """Tasks that start or end sessions."""

    def __iter__(self) -> Iterator[VerifierSession]:
        return iter(self.by_instance.values())

    def __len__(self) -> int:
        return len(self.by_instance)

    @property
    def leases(self) -> list[VerifierLease]:
        return [session.lease for session in self.by_instance.values()]

    @property
    def known(self) -> int:
        """Number of described verifiers, whichever gateway drives them."""
        return sum(link.description is not None for link in self.links.values())

    @property
    def target(self) -> verifier_pb2.DescribeVerifierReply:
        """Description of any described verifier."""
        return next(link.description for link in self.links.values() if link.description is not None)

    @property
    def read_references(self) -> bool:
        """True if any speculator uses `references`, or if no session exists."""
        sessions = self.by_instance.values()
        return not sessions or any(session.loop.pool.read_references for session in sessions)

    def of_request(self, request_id: str) -> VerifierSession | None:
        """Return the session whose scheduler has a request, else None."""
        matching = (
            session for session in self.by_instance.values() if request_id in session.loop.scheduler.states
        )
        return next(matching, None)

    def owns(self, request_id: str) -> bool:
        """Return whether a session runs a request or must store its `Ending`."""
        return self._holder(request_id) is not None

    def _holder(self, request_id: str) -> VerifierSession | None:
        sessions = self.by_instance.values()
        return next((session for session in sessions if request_id in session.loop.persistence), None)

    def best_for(self, request: GenerationRequest, model: str = "") -> VerifierSession | None:
        """Return the best session for a request; None if there is none."""
        sessions = [
            session
            for session in self.by_instance.values()
            if session.running and model in ("", session.model)
        ]
        sessions = [session for session in sessions if session.begun] or sessions
        best = best_session([session.view(request) for session in sessions])
        return None if best is None else sessions[best]

    async def take(self, record: Record) -> None:
        """Continue an adopted request; disown it if no session can."""
        request = record.request
        if record.ending is not None:
            return  # the previous owner stored the end just before
        holder = self._holder(request.request_id)
        if holder is not None:  # it returns to this gateway, whose lease had ended
            holder.loop.persistence.release_requests([request.request_id])
        session = self.best_for(request, record.model)
        try:
            if session is None:
                raise UnavailableError(
                    f"no verifier serves model {record.model!r}: start one, or retry later"
                )
            state = session.submit(record)
        except SpecInferError as error:
            template, request_id = (
                "request %s cannot run here, any other gateway may adopt it: %s",
                request.request_id,
            )
            log.info(template, request_id, error, extra=about(request_id))
            await self._shared.store.disown({request.request_id: record.adoption}, not_run=True)
            return
        self._shared.events.request_adopted(request, len(record.tokens))
        if state.finish is not None:  # its stored tokens end it, but the end was not stored
            await session.loop.persistence.put([Progress(state, [], [], state.new_tokens, True)])

    async def describe_verifiers(self, patience_s: float = 0.0, strict: bool = False) -> None:
        """Resolve names, and describe verifiers that this gateway does not drive.

        Args:
            patience_s: maximum seconds to wait for answers; the next call reads later answers.
            strict: True at start, when an incompatible verifier is a wrong setting.
        """
        addresses = await resolve(self._shared.settings.verifier_addresses)
        for address in addresses:
            if address not in self.links:
                self.links[address] = self._link(address)
        driven = {session.link.address for session in self.by_instance.values()}
        for address in [a for a in self.links if a not in addresses and a not in driven]:
            await self._forget(address)
        for address, link in self.links.items():
            if address not in driven and address not in self._descriptions:
                self._descriptions[address] = asyncio.create_task(link.describe())
        if self._descriptions and patience_s:
            await asyncio.wait(self._descriptions.values(), timeout=patience_s)
        for address in [a for a, task in self._descriptions.items() if task.done()]:
            try:
                self._descriptions.pop(address).result()
            except IncompatibleError as error:
                if strict:
                    raise
                log.error("%s; the verifier is not used", error)

    async def _forget(self, address: str) -> None:
        """Close the link to an address that DNS no longer returns."""
        task = self._descriptions.pop(address, None)
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        await self.links.pop(address).close()

    async def claim_leases(self, max_count: int, strict: bool = False) -> None:
        """Claim up to `max_count` free verifiers, and start their sessions as tasks."""
        begun = []
        for link in list(self.links.values()):
            instance = link.instance_id
            if max_count <= 0 or link.description is None or instance in self.by_instance:
                continue
            lease = await self._shared.store.claim(instance)
            if isinstance(lease, str):
                link.holder = lease
                continue
            max_count -= 1
            session = self.by_instance[instance] = VerifierSession(self._shared, link, lease)
            link.holder = self._shared.store.gateway_id
            log.info("driving the verifier at %s, fence %d", link.address, lease.fence)
            begun.append(self._in_background(self._start(session, strict)))
        if strict:
            await asyncio.gather(*begun)

    async def renew_lease(self, instance_id: str) -> None:
        """Claim a lost lease again; without success, end the session."""
        if instance_id not in self.by_instance:
            return
        lease = await self._shared.store.claim(instance_id)
        session = self.by_instance.get(instance_id)  # meanwhile it may have ended, or have a successor
        if isinstance(lease, str):
            if session is not None and lease != self._shared.store.gateway_id:
                self.start_closing(session)
                session.link.holder = lease
        elif session is not None:
            session.continue_with(lease)
        else:
            await self._shared.store.release(lease)

    def close_stopped(self) -> bool:
        """Start closing sessions with ended loops; return whether any loop has ended."""
        stopped = [session for session in self.by_instance.values() if not session.running]
        for session in stopped:
            self.start_closing(session)
        return bool(stopped)

    def start_closing(self, session: VerifierSession) -> None:
        """Remove a session, once; a background task releases its verifier and requests."""
        if self.by_instance.get(session.lease.instance_id) is not session:
            return
        del self.by_instance[session.lease.instance_id]
        session.link.description = None  # the verifier may have been replaced: describe it again
        session.link.holder = ""
        self._in_background(self._end(session))

    async def end(self, session: VerifierSession) -> None:
        self.start_closing(session)
        await self._all_done()

    async def end_all(self) -> None:
        for session in list(self.by_instance.values()):
            self.start_closing(session)
        await self._all_done()

    async def close(self) -> None:
        """Stop all tasks and connections, without releasing anything in Redis."""
        for task in self._descriptions.values():
            task.cancel()
        await asyncio.gather(*self._descriptions.values(), return_exceptions=True)
        await asyncio.gather(*(session.stop() for session in self.by_instance.values()))
        await self._all_done()
        for link in self.links.values():
            await link.close()

    async def _start(self, session: VerifierSession, strict: bool) -> None:
        try:
            await session.start(strict)
        except SpecInferError as error:
            if strict:
                raise
            log.warning("the session of the verifier at %s cannot start: %s", session.link.address, error)
            if self.by_instance.get(session.lease.instance_id) is session:
                self.start_closing(session)

    async def _end(self, session: VerifierSession) -> None:
        try:
            await session.end()
            await self._shared.store.release(session.lease)
        except UnavailableError as error:
            log.warning(
                "the lease of the verifier at %s is not released and will expire: %s",
                session.link.address,
                error,
            )

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) and not isinstance(error, SpecInferError):
            log.error("a task that starts or ends a verifier's session failed", exc_info=error)

    async def _all_done(self) -> None:
        """Wait for all tasks that start or end sessions."""
        await asyncio.gather(*self._work, return_exceptions=True)

    def _link(self, address: str) -> VerifierLink:
        tokenizer, settings = self._shared.tokenizer, self._shared.settings
        fingerprints = (tokenizer.fingerprint(), tokenizer.text_fingerprint())
        return VerifierLink(address, fingerprints, settings.hung_seconds, settings.services_tls)


def models_of(sessions: Iterable[VerifierSession]) -> list[str]:
    """Return the model fingerprints of running sessions."""
    return sorted({session.model for session in sessions if session.running})
