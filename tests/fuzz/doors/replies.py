"""The doors where a gateway reads what services answer: `DraftReply` and `VerifyReply`.

A speculator is never believed, so nothing that it says may change the text of any request. A verifier is: a
verdict that was spoilt may spoil its own request, but no other, and no rule of the statistics.
"""

from random import Random
from typing import Any

from tests.fuzz.doors.door import Episode
from tests.fuzz.gateway_core import GatewayCore, untouched
from tests.fuzz.mutator import Mutator
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.traffic import Expectation, expectation, new_request

_SPOILT_STEPS = 25
_REQUESTS = 4
_MAX_STEPS = 400
"""After the last spoilt message: by then every request must have ended."""
_ADAPTIVE_SHARE = 0.2
"""Share of episodes with a planner that chooses by the clock. All others are the same whenever they run."""
_RARE = frozenset({"instance_id", "model_fingerprint", "fenced", "step_id"})
"""Fields that end or renew the connection."""


class ReplyDoor:
    """Both doors; `spoils` says which."""

    def __init__(self, spoils: str) -> None:
        self._spoils, self._target = spoils, TableTarget()
        self._services = Services(self._target)

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        self._services.reseed(Random(episode.rng.random()))
        await _Run(self._services, self._target, self._spoils, episode).run()
        self._services.check_empty()


class _Run:
    """One episode: a gateway of its own."""

    def __init__(self, services: Services, target: TableTarget, spoils: str, episode: Episode) -> None:
        self._target, self._episode, self._rng = target, episode, episode.rng
        self._mutator, self._spoiling = Mutator(episode.rng, _RARE), True
        self._under_way: dict[str, Expectation] = {}
        self._submitted, self._services = 0, services
        self._lost = False
        """True if an answer seemed another process's: what was not released then has a time-to-live."""
        speculators = self._rng.choice(((0,), (0, 1), (0, 1)))
        drafts, verdicts = (self._drafts, untouched) if spoils == "drafts" else (untouched, self._verdicts)
        self._core = GatewayCore(
            services, speculators, drafts, verdicts, self._rng.random() < _ADAPTIVE_SHARE
        )

    async def run(self) -> None:
        await self._core.open()
        try:
            for _ in range(_SPOILT_STEPS):
                self._fill()
                await self._step()
            self._spoiling = False
            for _ in range(_MAX_STEPS):
                if not self._under_way:
                    break
                await self._step()
            assert not self._under_way, f"these never end: {[e.state for e in self._under_way.values()]}"
            assert (self._core.scheduler.waiting, self._core.scheduler.running) == (0, 0)
            self._check_books()
        finally:
            await self._core.close()
            if self._lost:
                names = [f"r{number}" for number in range(1, self._submitted + 1)]
                await self._services.release(names, self._core.client)

    def _fill(self) -> None:
        while len(self._under_way) < _REQUESTS:
            self._submitted += 1
            request = new_request(f"r{self._submitted}", self._rng)
            self._under_way[request.request_id] = expectation(self._core.submit(request), self._target)

    async def _step(self) -> None:
        await self._core.step()
        for name, expected in list(self._under_way.items()):
            expected.check()
            if expected.state.finish is not None:
                del self._under_way[name]

    def _check_books(self) -> None:
        """Nothing is kept of requests that have ended, nor of speculators that do not exist."""
        for service in self._core.pool.services:
            assert not service.cached_len, f"contexts of requests that have ended: {service.cached_len}"
            assert not service.refusals, f"kept of requests that have ended: {service.refusals}"
            unknown = set(service.faults.drafts) - set(service.members)
            assert not unknown, f"failures of speculators that do not exist: {unknown}"

    def _drafts(self, reply: Any) -> Any:
        return self._spoil_some(reply) if self._spoiling else reply

    def _verdicts(self, reply: Any) -> Any:
        """Taints the requests whose verdicts are spoilt; with the message as a whole, all of it."""
        if not self._spoiling:
            return reply
        before = [entry.SerializeToString() for entry in reply.entries]
        names = [entry.request_id for entry in reply.entries]
        changed = self._spoil_some(reply)
        after = [entry.SerializeToString() for entry in changed.entries]
        whole = len(after) != len(before) or [e.request_id for e in changed.entries] == names[::-1]
        for index, name in enumerate(names):
            if name in self._under_way and (whole or before[index] != after[index]):
                self._under_way[name].tainted = True
        return changed

    def _spoil_some(self, reply: Any) -> Any:
        before = reply.step_id, reply.instance_id
        changed = self._spoil_parts(reply)
        self._lost |= before != (changed.step_id, changed.instance_id)
        return changed

    def _spoil_parts(self, reply: Any) -> Any:
        """One entry or several, so that the others can be checked; now and then the message as a whole."""
        if not len(reply.entries) or self._rng.random() < 0.2:
            return self._episode.spoilt(self._mutator.mutated(reply))
        count = len(reply.entries)
        chosen = self._rng.sample(range(count), self._rng.randint(1, max(1, count - 1)))
        self._mutator.spoil_elements(reply.entries, chosen)
        return self._episode.spoilt(reply)
