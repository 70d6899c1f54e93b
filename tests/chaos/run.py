"""Run chaos: all requests once undisturbed, then clients and faults together, then the report."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from specinfer.errors import SpecInferError
from specinfer.v1 import generation_pb2
from tests.chaos.audit import Audit
from tests.chaos.client import ChangedError, Client, UnfinishedError, Watch, compare
from tests.chaos.faults import FaultKind, plan
from tests.chaos.orders import Outcome, make_orders, poisonous
from tests.chaos.report import Report
from tests.chaos.system import ChaosSystem, Shape
from tests.chaos.verifier import Poison

_PROGRESS_S = 5.0
_RESTARTS_MAY_TAKE_S = 120.0


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Kinds and number of faults, and the load of clients."""

    faults: int
    seed: int
    clients: int = 32
    interval_s: float = 1.5
    """Mean time between faults."""
    orders: int = 48
    """Number of different requests."""
    longest: int = 240
    """Maximum tokens of a request."""
    patience_s: float = 150.0
    """Seconds after which a request counts as unfinished."""
    shape: Shape = field(default_factory=Shape)


class ChaosRun:
    """One run; `report` is updated while it runs."""

    def __init__(self, options: RunOptions, say: Callable[[str], None] = print) -> None:
        self.options, self._say = options, say
        self.report, self.watch = Report(), Watch(time.monotonic)
        self._expected: list[Outcome] = []
        self._over = asyncio.Event()
        self._poisonings: set[asyncio.Task[None]] = set()

    async def run(self, model: Path, directory: Path) -> Report:
        """Run everything; return the report.

        Raises:
            UnavailableError: if the system does not start.
        """
        options = self.options
        orders = make_orders(options.seed, options.orders, options.longest)
        async with ChaosSystem(options.shape, model, directory, time.monotonic) as system:
            self._say(f"seed {options.seed}: {', '.join(system.services)} are up; logs in {directory}")
            audit = Audit(lambda: system.redis.primary)
            clients = [
                Client(system.addresses, self.watch, audit, options.patience_s)
                for _ in range(options.clients)
            ]
            try:
                await self._undisturbed(clients, orders)
                await self._disturbed(system, clients, orders)
            finally:
                self.report.failed_starts = system.failed_starts
                self.report.retries = sum(client.retries for client in clients)
                for client in clients:
                    await client.close()
                self.report.looks = audit.looks
                await audit.close()
        return self.report

    async def _undisturbed(
        self, clients: Sequence[Client], orders: Sequence[generation_pb2.GenerateRequest]
    ) -> None:
        waiting = list(range(len(orders)))
        outcomes: dict[int, Outcome] = {}

        async def work(client: Client) -> None:
            while waiting:
                number = waiting.pop(0)
                outcomes[number] = await client.follow(orders[number])

        await asyncio.gather(*(work(client) for client in clients))
        self._expected = [outcomes[number] for number in range(len(orders))]
        self.watch.gaps.clear()
        self._say(f"undisturbed: {len(orders)} requests, {sum(len(o.tokens) for o in self._expected)} tokens")

    async def _disturbed(
        self,
        system: ChaosSystem,
        clients: Sequence[Client],
        orders: Sequence[generation_pb2.GenerateRequest],
    ) -> None:
        progress = asyncio.create_task(self._tell(system))
        work = [
            asyncio.create_task(self._serve(client, orders, random.Random(f"{self.options.seed} {n}")))
            for n, client in enumerate(clients)
        ]
        try:
            await self._inject(system)
            async with asyncio.timeout(_RESTARTS_MAY_TAKE_S):
                await system.settled()
            self._over.set()
            await asyncio.gather(*work, *self._poisonings)
            system.check()
        except (SpecInferError, TimeoutError) as error:
            self.report.problem("unfinished", 1, f"{type(error).__name__}: {error}")
        finally:
            tasks = (progress, *work, *self._poisonings)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _inject(self, system: ChaosSystem) -> None:
        options = self.options
        processes, links = list(system.services), list(system.links)
        draw = random.Random(options.seed)
        while (missing := options.faults - self.report.faults.total()) > 0:
            seed = draw.getrandbits(32)
            for fault in plan(seed, missing, processes, links, options.shape.lease_s, options.interval_s):
                await asyncio.sleep(fault.wait_s)
                system.check()
                if fault.kind is FaultKind.POISON:
                    poisoning = asyncio.create_task(self._poison(system, Poison[fault.target]))
                    self._poisonings.add(poisoning)
                    kind: str | None = f"poison {fault.target.lower()}"
                else:
                    kind = await system.inject(fault)
                if kind is not None:
                    self.report.fault(self.watch.clock(), kind)

    async def _poison(self, system: ChaosSystem, poison: Poison) -> None:
        """Send a request that ends with its own error; the clients check the other requests of its batch."""
        audit = Audit(lambda: system.redis.primary)
        client = Client(system.addresses, Watch(time.monotonic), audit, self.options.patience_s)
        try:
            outcome = await client.follow(poisonous(poison))
            self.report.problem("changed", 1, f"{outcome.request_id}: poison {poison.name} hurt nobody")
        except ChangedError as error:
            self.report.problem(error.kind, error.tokens, str(error))
        except UnfinishedError as error:
            if "INTERNAL" not in str(error):
                self.report.problem("unfinished", 1, f"poison {poison.name}: {error}")
        finally:
            await client.close()
            await audit.close()

    async def _serve(
        self, client: Client, orders: Sequence[generation_pb2.GenerateRequest], draw: random.Random
    ) -> None:
        while not self._over.is_set():
            number = draw.randrange(len(orders))
            try:
                outcome = await client.follow(orders[number])
                if not (self.options.shape.drawn and orders[number].sampling.temperature):
                    compare(f"order {number}, {outcome.request_id}", outcome, self._expected[number])
                self.report.requests += 1
                self.report.tokens += len(outcome.tokens)
            except ChangedError as error:
                self.report.problem(error.kind, error.tokens, str(error))
            except UnfinishedError as error:
                self.report.problem("unfinished", 1, str(error))

    async def _tell(self, system: ChaosSystem) -> None:
        began = self.watch.clock()
        while True:
            await asyncio.sleep(_PROGRESS_S)
            report = self.report
            down = [name for name, service in system.services.items() if service.disturbed]
            self._say(
                f"{self.watch.clock() - began:6.0f} s: {report.faults.total()} faults,"
                f" {report.requests} requests, {report.tokens} tokens, {len(report.problems)} problems"
                + (f"; down: {', '.join(down)}" if down else "")
            )
