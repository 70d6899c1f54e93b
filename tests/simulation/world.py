"""Run a world by its plan, and compare everything that clients see with the right texts."""

import asyncio
import gc
import logging
import random
import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import replace

from gateway.session import persist
from gateway.store.embedded import EmbeddedStore
from specinfer.client.async_client import AsyncClient
from specinfer.client.resume import Patience
from specinfer.errors import SpecInferError
from specinfer.request.statuses import FinishReason
from specinfer.service import in_process
from specinfer.service.in_process import SCHEME
from tests.simulation.faults import FAULTS
from tests.simulation.loop import Process, SimulatedLoop, StuckError
from tests.simulation.plan import SETTLED_S, Ask, Fault, Plan
from tests.simulation.reference import right_answer, right_answers
from tests.simulation.services import (
    GatewayProcess,
    Parts,
    SpeculatorProcess,
    VerifierProcess,
)

_LATE_S = 90.0
"""Maximum virtual seconds between a deadline, or the end of faults, and the end that a client sees."""
_PROMPT = {"expire gateway", "expire verifier", "forget", "kill verifier", "wrong trees", "kill speculator"}
"""Faults that delay neither the gateways nor what clients see of them."""
_PROMPT_S = 2.0
"""Maximum virtual seconds between a deadline and a later end, if there are only such faults."""
_QUIET_S = 2.0
"""Virtual seconds after the last answer, in which releases arrive and lingering requests end."""


_MAX_QUEUE = persist._MAX_WAITING + 64
"""Maximum steps in a session's queue: those of one grant may exceed its limit."""


class BrokenRuleError(AssertionError):
    """The world broke a rule."""


class World:
    """A running world."""

    def __init__(self, plan: Plan, trace: Callable[[str], None] = lambda _: None) -> None:
        self.plan, self.loop = plan, SimulatedLoop()
        self.parts = Parts(self.loop, plan)
        self._trace = trace
        self.verifiers: list[VerifierProcess] = []
        self.speculators: list[SpeculatorProcess] = []
        self.gateways: list[GatewayProcess] = []
        self._generations, self._longest = 0, 0
        self.seen: dict[str, list[int]] = {ask.name: [] for ask in plan.asks}
        """Tokens that each request's client has seen."""
        self._arrived: dict[str, float] = {}
        self.ended: dict[str, str] = {}
        """End of each request, as its client saw it."""

    def say(self, text: str) -> None:
        self._trace(f"{self.now:8.3f}  {text}")

    @property
    def now(self) -> float:
        """Virtual seconds since the world's start."""
        return self.loop.time() - 1_000_000.0

    async def run(self) -> None:
        """Run the whole plan.

        Raises:
            BrokenRuleError: naming the rule that was broken.
        """
        plan = self.plan
        self.verifiers = [VerifierProcess(self.parts, number, 0) for number in range(plan.verifiers)]
        self.speculators = [SpeculatorProcess(self.parts, number, 0) for number in range(plan.speculators)]
        self.gateways = [GatewayProcess(self.parts, number, 0) for number in range(plan.gateways)]
        await self._until(lambda: any(one.ready.is_set() for one in self.gateways), 30.0, "no gateway starts")
        clients = [Process(self.loop, f"client {ask.name}") for ask in plan.asks]
        asking = [client.start(self._client(ask)) for client, ask in zip(clients, plan.asks, strict=True)]
        begun = self.now
        faults = asyncio.gather(*(self._later(fault, begun) for fault in plan.faults))
        watching = asyncio.create_task(self._watch_queues())
        try:
            async with asyncio.timeout(plan.settles_at + SETTLED_S):
                await faults
                await asyncio.gather(*asking)
        except TimeoutError:
            waiting = sorted(set(self.seen) - set(self.ended))
            raise BrokenRuleError(f"never ended: {waiting}") from None
        await self._settle()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        if self._longest > _MAX_QUEUE:
            raise BrokenRuleError(f"a queue of {self._longest} steps")

    async def _watch_queues(self) -> None:
        """Note the longest queue of unsent steps."""
        while True:
            await asyncio.sleep(0.1)
            for one in self.gateways:
                for session in one.gateway.sessions if one.gateway is not None else ():
                    self._longest = max(self._longest, len(session.loop.persistence._waiting))

    async def _settle(self) -> None:
        """Check that nothing is left after the answers."""
        await self._until(lambda: not self._unfinished(), 200.0, lambda: f"left: {self._unfinished()}")
        await asyncio.sleep(_QUIET_S)
        for gateway in self.gateways:
            gateway.stop.set()
        await self._until(
            lambda: all(one.task.done() for one in self.gateways), 60.0, "a gateway does not end"
        )
        for gateway in self.gateways:
            gateway.task.result()
            if left := [task for task in gateway.process.tasks if not task.done()]:
                raise BrokenRuleError(f"tasks left at {gateway.name}: {left}")
        for verifier in self.verifiers:
            verifier.engine.release(list(verifier.engine._cached))
            verifier.engine.runner.cache.check()
            if verifier.engine.faults or verifier.host.failed_steps or verifier.host.failed_drafts:
                raise BrokenRuleError(f"internal faults at {verifier.process.name}")
        if self.loop.faults:
            raise BrokenRuleError(f"unhandled: {self.loop.faults[0]}")

    def _unfinished(self) -> list[str]:
        left = []
        for one in self.gateways:
            if one.task.done():
                one.task.result()
            if one.gateway is None or not one.ready.is_set():
                left.append(f"{one.name} is starting")
                continue
            for session in one.gateway.sessions:
                left += [f"{one.name} runs {name}" for name in session.loop.persistence.unfinished]
                left += [f"{one.name} schedules {name}" for name in session.loop.scheduler.states]
            left += [f"{one.name} streams {name}" for name in one.gateway.token_streams._token_streams]
        return left

    async def _until(
        self, condition: Callable[[], bool], seconds: float, what: str | Callable[[], str]
    ) -> None:
        end = self.loop.time() + seconds
        while not condition():
            if self.loop.time() > end:
                raise BrokenRuleError(what if isinstance(what, str) else what())
            await asyncio.sleep(0.05)

    # -- clients

    async def _client(self, ask: Ask) -> None:
        await asyncio.sleep(ask.at)
        addresses = [f"{SCHEME}g{number}" for number in ask.order]
        patience = Patience(patience_s=SETTLED_S)
        async with AsyncClient(addresses, patience=patience, clock=self.loop.time) as client:
            self._arrived[ask.name] = self.now
            self.say(f"{ask.name} arrives ({ask.behaviour} after {ask.after})")
            try:
                if ask.behaviour == "twice":
                    await asyncio.gather(self._read(ask, client), self._reread(ask, addresses))
                else:
                    await self._read(ask, client)
            except SpecInferError as error:
                self._note_end(ask, error)

    async def _read(self, ask: Ask, client: AsyncClient, start: int | None = None) -> None:
        """Read an answer, and leave it as the client's behaviour says."""
        stream = client.stream(ask.message()) if start is None else client.attach(ask.name, start)
        async with stream:
            async for piece in stream:
                self._see(ask, piece.position, list(piece.token_ids))
                if ask.behaviour == "slow":
                    await asyncio.sleep(0.4)
                if len(self.seen[ask.name]) >= ask.after and start is None:
                    if ask.behaviour == "cancels":
                        await client.cancel(ask.name)
                    if ask.behaviour == "vanishes":
                        self.ended[ask.name] = "left"
                        return
                    if ask.behaviour == "moves":
                        break
            else:
                self._note_end(ask, stream.answer.finish_reason)
                return
        await self._read(ask, client, len(self.seen[ask.name]))

    async def _reread(self, ask: Ask, addresses: list[str]) -> None:
        """Send the same request again, by another client."""
        patience = Patience(patience_s=SETTLED_S)
        async with AsyncClient(addresses[::-1], patience=patience, clock=self.loop.time) as client:
            answer = await client.generate(ask.message())
            self._compare(ask, answer.token_ids, "its repetition")

    def _see(self, ask: Ask, position: int, tokens: list[int]) -> None:
        seen = self.seen[ask.name]
        if position != len(seen):
            raise BrokenRuleError(f"{ask.name}: tokens at {position} after {len(seen)}")
        seen += tokens
        self._compare(ask, seen, "its client")
        stored = self._stored(ask.name)
        if stored is not None and "fail over" not in self._kinds and stored[: len(seen)] != seen:
            raise BrokenRuleError(f"{ask.name}: {len(seen)} tokens were shown, others or fewer are stored")

    def _stored(self, name: str) -> list[int] | None:
        """Return a request's stored tokens; None if the store does not have the request."""
        if not self.plan.embedded:
            return self.parts.redis.stored(name)
        if not self.gateways[0].process.alive:  # its store is closed
            reader = EmbeddedStore("reader", 600, path=self.parts.file)
            record = reader._load(name)
            reader.database.close()
        else:
            running = self.gateways[0].store
            record = running._load(name) if isinstance(running, EmbeddedStore) else None
        return record and record.tokens

    def _is_known(self, ask: Ask) -> bool:
        """Return whether a request's text is known: no speculator draws for it."""
        return not (self.plan.drawing and ask.sampled)

    def _compare(self, ask: Ask, tokens: list[int], who: str) -> None:
        right, _ = right_answer(ask)
        if not self._is_known(ask):
            right = self.seen[ask.name]  # what one client saw, all see
            tokens = tokens[: len(right)]
        if list(tokens) != right[: len(tokens)]:
            wrong = next(
                (at for at, (a, b) in enumerate(zip(tokens, right, strict=False)) if a != b), len(right)
            )
            raise BrokenRuleError(f"{ask.name}: {who} has a wrong token at {wrong} of {len(right)}")

    def _note_end(self, ask: Ask, end: object) -> None:
        right, reason = right_answer(ask)
        seen, deadline = self.seen[ask.name], ask.fields.get("deadline_seconds")
        self.say(f"{ask.name} ends: {end}, {len(seen)} of {len(right)} tokens")
        self.ended[ask.name] = str(end)
        if ask.behaviour == "cancels":
            return
        if isinstance(end, Exception) and "NOT_FOUND" in str(end) and self._may_be_lost(ask):
            return
        if isinstance(end, Exception):
            raise BrokenRuleError(f"{ask.name} failed: {end!r}")
        if deadline is not None:
            if self.now > self.plan.settles_at + deadline + _LATE_S:
                raise BrokenRuleError(f"{ask.name} ended long after its deadline")
            if end == FinishReason.DEADLINE.name.lower():
                return
            in_time = self._kinds <= _PROMPT and ask.behaviour == "reads"
            if in_time and self.now > self._arrived[ask.name] + deadline + _PROMPT_S:
                raise BrokenRuleError(f"{ask.name} ran on after its deadline")
        if not self._is_known(ask):
            return
        if seen != right or end != reason.name.lower():
            raise BrokenRuleError(
                f"{ask.name} ended with {end}, {len(seen)} of {len(right)} tokens ({reason.name})"
            )

    def _may_be_lost(self, ask: Ask) -> bool:
        """Return whether a failover may have lost a request that is in no gateway's memory."""
        gateways = [one.gateway for one in self.gateways if one.gateway is not None]
        runs = any(gateway.sessions.owns(ask.name) for gateway in gateways)
        return not runs and "fail over" in self._kinds

    @property
    def _kinds(self) -> set[str]:
        """Kinds of the world's faults."""
        return {fault.kind for fault in self.plan.faults}

    # -- faults

    async def _later(self, fault: Fault, begun: float) -> None:
        await asyncio.sleep(max(0.0, begun + fault.at - self.now))
        self.say(f"fault: {fault}")
        await FAULTS[fault.kind](self, fault)

    def gateway(self, fault: Fault) -> GatewayProcess:
        return self.gateways[fault.target % len(self.gateways)]

    def verifier(self, fault: Fault) -> VerifierProcess:
        return self.verifiers[fault.target % len(self.verifiers)]

    def next_generation(self) -> int:
        self._generations += 1
        return self._generations


def run(plan: Plan, trace: Callable[[str], None] = lambda _: None) -> str:
    """Run a world; return the rule that it broke, or ""."""
    random.seed(plan.seed)
    in_process._servers.clear()
    logging.disable(logging.CRITICAL)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            broken = _run(plan, trace)
            gc.collect()  # the coroutines of killed processes; their `finally` blocks fail, as the loop has ended
    finally:
        sys.unraisablehook = hook
        logging.disable(logging.NOTSET)
    return broken


def _run(plan: Plan, trace: Callable[[str], None]) -> str:
    right_answers(plan.asks)
    gc.freeze()  # collect only what the world leaves
    world = World(plan, trace)
    try:
        world.loop.run_until_complete(world.run())
    except (BrokenRuleError, StuckError) as error:
        return str(error)
    except Exception as error:  # noqa: BLE001  # an exception of the product is a violation, too
        return "".join(traceback.format_exception(error)).strip()
    finally:
        world.parts.close()
        world.loop.set_exception_handler(lambda *_: None)
        world.loop.close()
    return ""


def shrunk(plan: Plan, broken: str) -> Plan:
    """Return a smaller plan that breaks a rule, too: without the faults and requests that it does not need."""
    for name in ("faults", "asks"):
        place = 0
        while place < len(getattr(plan, name)):
            items = getattr(plan, name)
            smaller = replace(plan, **{name: items[:place] + items[place + 1 :]})
            if smaller.asks and run(smaller):
                plan = smaller
            else:
                place += 1
    return plan
