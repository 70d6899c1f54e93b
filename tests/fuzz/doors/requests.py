"""Fuzzing targets for messages that services read: `VerifyRequest` and `DraftRequest`.

Every entry gets an answer in its place; unmutated entries get the right one.
"""

from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from random import Random
from typing import Any, Protocol

from specinfer.request.statuses import EntryStatus
from specinfer.v1 import speculator_pb2, verifier_pb2
from tests.fuzz.clients import SpeculatorClient, VerifierClient
from tests.fuzz.doors.door import Episode
from tests.fuzz.drafters import RandomDrafter
from tests.fuzz.mutator import Mutator
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.transport import InlineContext

_MESSAGES = 30
_REQUESTS = 4
_RARE = frozenset({"fence", "client", "step_id"})
"""Rarely mutated fields, which identify the client."""


class Client(Protocol):
    """Request of a gateway that checks its answers."""

    @property
    def name(self) -> str: ...
    def forget(self) -> None: ...
    def entry(self) -> Any: ...
    def check(self, result: Any, disturbed: bool) -> None: ...


class RequestDoor:
    """Target for the messages of a verifier or a speculator service."""

    def __init__(self, service: str) -> None:
        self._service, self._target = service, TableTarget()
        self._services = Services(self._target)

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        self._services.reseed(Random(episode.rng.random()))
        if self._service == "verifier":
            drafter = RandomDrafter(self._target, episode.rng)
            clients: list[Client] = [
                VerifierClient(f"r{i}", episode.rng, self._target, drafter) for i in range(_REQUESTS)
            ]
            method: Any = self._services.verifier.Verify
            run = _Run(self._services, method, verifier_pb2.VerifyRequest, clients, episode)
        else:
            clients = [SpeculatorClient(f"r{i}", episode.rng) for i in range(_REQUESTS)]
            method = self._services.speculators[0].Draft
            run = _Run(self._services, method, speculator_pb2.DraftRequest, clients, episode)
        await run.run()
        self._services.check_empty()


class _Run:
    """Episode with one stream to a service."""

    def __init__(
        self,
        services: Services,
        method: Callable[..., AsyncIterator[Any]],
        kind: Callable[..., Any],
        clients: Sequence[Client],
        episode: Episode,
    ) -> None:
        self._services, self._method, self._kind = services, method, kind
        self._clients = {client.name: client for client in clients}
        self._episode, self._rng = episode, episode.rng
        self._mutator = Mutator(episode.rng, _RARE)
        self._sent: deque[Any] = deque()
        self._disturbed: set[str] = set()
        """Requests whose cache at the service a mutated entry may have changed."""

    async def run(self) -> None:
        replies = self._method(self._messages(), InlineContext())
        for step in range(_MESSAGES):
            chosen = self._rng.sample(list(self._clients), self._rng.randint(1, len(self._clients)))
            message = self._message(
                step_id=step + 1, entries=[self._clients[name].entry() for name in chosen]
            )
            spoilt = self._spoil(message)
            data = self._episode.spoilt(spoilt).SerializeToString()
            self._sent.append(type(spoilt).FromString(data))
            self._services.fence = max(self._services.fence, getattr(spoilt, "fence", 0))
            reply = await anext(replies)
            self._check(spoilt, reply, chosen)
            await self._forget_strangers(spoilt)
        await replies.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
        await self._services.release(list(self._clients))

    def _message(self, step_id: int, entries: list[Any]) -> Any:
        message = self._kind(step_id=step_id, entries=entries)
        if "fence" in message.DESCRIPTOR.fields_by_name:
            message.fence = self._services.fence
        return message

    async def _messages(self) -> AsyncIterator[Any]:
        while self._sent:
            yield self._sent.popleft()

    def _spoil(self, message: Any) -> Any:
        """Mutate some entries, or sometimes the whole message."""
        if self._rng.random() < 0.15:
            self._whole, spoilt = True, self._mutator.mutated(message)
        else:
            self._whole, spoilt = False, message
            count = len(message.entries)
            bad = self._rng.sample(range(count), self._rng.randint(1, max(1, count - 1)))
            before = [entry.SerializeToString() for entry in message.entries]
            self._mutator.spoil_elements(spoilt.entries, bad)
            self._bad = {i for i in bad if spoilt.entries[i].SerializeToString() != before[i]}
        return spoilt

    def _check(self, message: Any, reply: Any, chosen: Sequence[str]) -> None:
        entries = list(reply.entries)
        fenced = getattr(reply, "fenced", False)
        assert reply.step_id == message.step_id, "the answer is to another message"
        if not fenced:
            requested = [entry.request_id for entry in message.entries]
            assert [entry.request_id for entry in entries] == requested, f"answers to {requested}: {entries}"
            assert all(e.status in (1, 2, 3, 4) for e in entries), f"statuses {[e.status for e in entries]}"
        if any(entry.status != int(EntryStatus.OK) for entry in entries) or fenced:
            self._episode.refused += 1
        if self._whole or fenced:
            self._disturb(self._clients)
            return
        self._disturb({entry.request_id for i, entry in enumerate(message.entries) if i in self._bad})
        self._disturb({name for i, name in enumerate(chosen) if i in self._bad})
        for index, name in enumerate(chosen):
            if index not in self._bad:
                self._clients[name].check(entries[index], name in self._disturbed)
                self._disturbed.discard(name)

    def _disturb(self, names: Any) -> None:
        for name in set(names) & set(self._clients):
            self._clients[name].forget()
            self._disturbed.add(name)

    async def _forget_strangers(self, message: Any) -> None:
        """Release requests that mutated entries opened under other ids."""
        client = getattr(message, "client", "")
        ours = set() if client else set(self._clients)
        strangers = {entry.request_id for entry in message.entries} - ours
        if strangers:
            await self._services.release(sorted(strangers), client)
