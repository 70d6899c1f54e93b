"""The faults of simulated worlds, by the kinds that plans name."""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from gateway.store.embedded import EmbeddedStore
from gateway.store.keys import PREFIX, verifier_key
from tests.simulation.loop import Process
from tests.simulation.plan import Fault
from tests.simulation.services import GatewayProcess, SpeculatorProcess, VerifierProcess

if TYPE_CHECKING:
    from tests.simulation.world import World


async def _kill_gateway(world: "World", fault: Fault) -> None:
    number = fault.target % len(world.gateways)
    world.gateways[number].kill()
    await asyncio.sleep(fault.seconds)
    if not world.gateways[number].process.alive:
        world.gateways[number] = GatewayProcess(world.parts, number, world.next_generation())


async def _drain_gateway(world: "World", fault: Fault) -> None:
    number = fault.target % len(world.gateways)
    leaving = world.gateways[number]
    if not leaving.process.alive or not leaving.ready.is_set() or leaving.stop.is_set():
        return
    leaving.stop.set()
    while not leaving.task.done() and leaving.process.alive:  # noqa: ASYNC110  # it may be killed meanwhile
        await asyncio.sleep(0.05)
    if world.gateways[number] is leaving:
        leaving.process.alive = False
        world.gateways[number] = GatewayProcess(world.parts, number, world.next_generation())


async def _pause(process: Process, seconds: float) -> None:
    process.pause()
    await asyncio.sleep(seconds)
    process.resume()


async def _pause_gateway(world: "World", fault: Fault) -> None:
    await _pause(world.gateway(fault).process, fault.seconds)


async def _pause_verifier(world: "World", fault: Fault) -> None:
    await _pause(world.verifier(fault).process, fault.seconds)


async def _kill_verifier(world: "World", fault: Fault) -> None:
    number = fault.target % len(world.verifiers)
    world.verifiers[number].process.kill()
    await asyncio.sleep(fault.seconds)
    if not world.verifiers[number].process.alive:
        world.verifiers[number] = VerifierProcess(world.parts, number, world.next_generation())


async def _kill_speculator(world: "World", fault: Fault) -> None:
    if world.speculators:
        number = fault.target % len(world.speculators)
        world.speculators[number].process.kill()
        await asyncio.sleep(fault.seconds)
        if not world.speculators[number].process.alive:
            world.speculators[number] = SpeculatorProcess(world.parts, number, world.next_generation())


async def _wrong_trees(world: "World", fault: Fault) -> None:
    guessers = [one.guesser for one in (*world.speculators, *world.verifiers)]
    guesser = guessers[fault.target % len(guessers)]
    guesser.wrong = True
    await asyncio.sleep(fault.seconds)
    guesser.wrong = False


async def _expire_gateway(world: "World", fault: Fault) -> None:
    await world.parts.redis.delete(f"{PREFIX}gateway:{world.gateway(fault).name}")


async def _flap_gateway(world: "World", fault: Fault) -> None:
    """Redis is slow for a while, and the gateway's lease ends again and again."""
    redis, end = world.parts.redis, world.loop.time() + fault.seconds
    redis.sluggish_until = end
    while world.loop.time() < end:
        await _expire_gateway(world, fault)
        await asyncio.sleep(world.plan.lease_s / 6)


async def _expire_verifier(world: "World", fault: Fault) -> None:
    for key in await world.parts.redis.keys(verifier_key("*")):
        await world.parts.redis.delete(key)


async def _forget(world: "World", fault: Fault) -> None:
    world.verifier(fault).engine.release_all()


async def _lose_verifier(world: "World", fault: Fault) -> None:
    world.parts.network.lose[world.verifier(fault).process.name] = 1


async def _lose_gateway(world: "World", fault: Fault) -> None:
    world.parts.network.lose[world.gateway(fault).process.name] = 1


async def _slow_verifier(world: "World", fault: Fault) -> None:
    world.parts.network.slow_until[world.verifier(fault).process.name] = world.loop.time() + fault.seconds


async def _slow_gateway(world: "World", fault: Fault) -> None:
    world.parts.network.slow_until[world.gateway(fault).process.name] = world.loop.time() + fault.seconds


async def _cut_gateway(world: "World", fault: Fault) -> None:
    world.parts.network.cut_until[world.gateway(fault).process.name] = world.loop.time() + fault.seconds


async def _redis_away(world: "World", fault: Fault) -> None:
    world.parts.redis.away_until = world.loop.time() + fault.seconds


async def _redis_slow(world: "World", fault: Fault) -> None:
    world.parts.redis.slow_until = world.loop.time() + fault.seconds


async def _lose_write(world: "World", fault: Fault) -> None:
    world.parts.redis.lose_replies = 1 + fault.target


async def _fail_over(world: "World", fault: Fault) -> None:
    world.parts.redis.keep()
    await asyncio.sleep(min(fault.seconds, 0.3))
    world.parts.redis.fail_over()


async def _late_masks(world: "World", fault: Fault) -> None:
    for one in world.verifiers:
        one.masks.late_until = world.loop.time() + fault.seconds


async def _disk_full(world: "World", fault: Fault) -> None:
    """Each write of the embedded store fails for a while, and so does the check of its lease."""
    store = world.gateways[0].store
    assert isinstance(store, EmbeddedStore)
    with suppress(sqlite3.ProgrammingError):  # the store of a drained gateway is closed
        store.database.execute("PRAGMA query_only = ON")
        await asyncio.sleep(fault.seconds)
        store.database.execute("PRAGMA query_only = OFF")


FAULTS: dict[str, Callable[["World", Fault], Awaitable[None]]] = {
    "kill gateway": _kill_gateway,
    "drain gateway": _drain_gateway,
    "pause gateway": _pause_gateway,
    "expire gateway": _expire_gateway,
    "flap gateway": _flap_gateway,
    "expire verifier": _expire_verifier,
    "kill verifier": _kill_verifier,
    "pause verifier": _pause_verifier,
    "forget": _forget,
    "lose verifier": _lose_verifier,
    "slow verifier": _slow_verifier,
    "redis away": _redis_away,
    "redis slow": _redis_slow,
    "lose write": _lose_write,
    "fail over": _fail_over,
    "late masks": _late_masks,
    "cut gateway": _cut_gateway,
    "slow gateway": _slow_gateway,
    "lose gateway": _lose_gateway,
    "kill speculator": _kill_speculator,
    "wrong trees": _wrong_trees,
    "disk full": _disk_full,
}
