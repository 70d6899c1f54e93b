"""Fuzzing target for descriptions that a gateway reads: `Describe*Reply`.

A description is refused with a typed error, or used. A speculator's description must not change
any answer; a verifier's must give limits with which requests can be planned.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from gateway.session.limits import node_budget, scheduler_limits
from gateway.session.verifier import VerifierClient, pass_curve
from gateway.settings import GatewaySettings
from specinfer.errors import SpecInferError
from specinfer.scheduling.scheduler import Scheduler
from tests.fuzz.doors.door import Episode
from tests.fuzz.gateway_core import GatewayCore, untouched
from tests.fuzz.mutator import Mutator
from tests.fuzz.services import Services
from tests.fuzz.table_target import TableTarget
from tests.fuzz.traffic import expectation, new_request
from tests.fuzz.transport import InlineChannel

_MESSAGES = 20
_REQUESTS = 2
_MAX_STEPS = 200
_SETTINGS = GatewaySettings()


class DescriptionDoor:
    """Target for descriptions, half of them a verifier's."""

    def __init__(self) -> None:
        self._target = TableTarget()
        self._services = Services(self._target)

    async def run(self, episode: Episode) -> None:
        """Implement `Door.run`."""
        self._services.reseed(Random(episode.rng.random()))
        mutator = Mutator(episode.rng)

        def spoil(reply: Any) -> Any:
            return episode.spoilt(mutator.mutated(reply))

        for _ in range(_MESSAGES // 2):
            for meet in (self._meet_verifier, self._meet_speculators):
                try:
                    await meet(spoil, episode.rng)
                except SpecInferError:
                    episode.refused += 1
        self._services.check_empty()

    async def _meet_verifier(self, spoil: Callable[[Any], Any], rng: Random) -> None:
        channel: Any = InlineChannel(self._services.verifier, described=spoil)
        description = await VerifierClient(channel).describe()
        limits, curve = scheduler_limits(_SETTINGS, description), pass_curve(description)
        context_s = description.context_nanoseconds / 1e9
        scheduler = Scheduler(limits, node_budget(_SETTINGS, limits, curve, context_s))
        for number in range(_REQUESTS):
            scheduler.submit(new_request(f"r{number}", rng), 0.0)
        running, _ = scheduler.admit(0.0)
        entries = scheduler.plan(0.0)
        assert running, f"nothing runs with {limits}"
        assert entries, f"nothing can be planned with {limits}"
        assert sum(e.max_read + e.limits.nodes for e in entries) <= limits.max_step_tokens, f"{limits}"

    async def _meet_speculators(self, spoil: Callable[[Any], Any], rng: Random) -> None:
        core = GatewayCore(self._services, (0, 1), untouched, untouched, rng.random() < 0.5, spoil)
        try:
            await core.open()
            assert len(core.pool.names) <= 2 * 64, f"{len(core.pool.names)} speculators of two services"
            open_ = [
                expectation(core.submit(new_request(f"r{i}", rng)), self._target) for i in range(_REQUESTS)
            ]
            for _ in range(_MAX_STEPS):
                await core.step()
                for expected in open_:
                    expected.check()
                open_ = [expected for expected in open_ if expected.state.finish is None]
                if not open_:
                    return
            raise AssertionError(f"these never end: {[expected.state for expected in open_]}")
        finally:
            await core.close()
