"""Fuzzing targets for answers that a gateway reads: `DraftReply` and `VerifyReply`.

Mutated drafts must not change the text of any request. A mutated verdict may change its own request, but no other,
and must keep the statistics valid.
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
"""Steps after the last mutated message, within which all requests must end."""
_ADAPTIVE_SHARE = 0.2
"""Share of episodes whose planner measures time; all others are reproducible."""
_RARE = frozenset({"instance_id", "model_fingerprint", "fenced", "step_id"})
"""Rarely mutated fields, which end or renew the connection."""


class ReplyDoor:
    """Target for "drafts" or "verdicts", as `spoils` states."""

    def __init__(self, spoils: str) -> None:
        self._spoils, self._target = spoils, TableTarget()
        self._services = Services(self._target)

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        self._services.reseed(Random(episode.rng.random()))
        await _Run(self._services, self._target, self._spoils, episode).run()
        self._services.check_empty()


class _Run:
    """Episode with a new gateway."""

    def __init__(self, services: Services, target: TableTarget, spoils: str, episode: Episode) -> None:
        self._target, self._episode, self._rng = target, episode, episode.rng
        self._mutator, self._spoiling = Mutator(episode.rng, _RARE), True
        self._under_way: dict[str, Expectation] = {}
        self._submitted, self._services = 0, services
        self._lost = False
        """True if an answer looked like another process's; unreleased requests then expire later."""
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
        """Check that nothing is stored for ended requests or unknown speculators."""
        for service in self._core.pool.services:
            assert not service.cached_len, f"contexts of requests that have ended: {service.cached_len}"
            assert not service.refusals, f"kept of requests that have ended: {service.refusals}"
            unknown = set(service.faults.drafts) - set(service.members)
            assert not unknown, f"failures of speculators that do not exist: {unknown}"

    def _drafts(self, reply: Any) -> Any:
        return self._spoil_some(reply) if self._spoiling else reply

    def _verdicts(self, reply: Any) -> Any:
        """Mutate verdicts, and mark their requests as tainted; all if the whole message changed."""
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
        """Mutate some entries, so that others can be checked; sometimes the whole message."""
        if not len(reply.entries) or self._rng.random() < 0.2:
            return self._episode.spoilt(self._mutator.mutated(reply))
        count = len(reply.entries)
        chosen = self._rng.sample(range(count), self._rng.randint(1, max(1, count - 1)))
        self._mutator.spoil_elements(reply.entries, chosen)
        return self._episode.spoilt(reply)
