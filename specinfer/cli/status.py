"""`specinfer status`: show the state of a system, once or repeatedly."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.live import Live
from rich.table import Table

from specinfer.cli.connection import API_KEY_VARIABLE, Connection
from specinfer.cli.options.shared import AccessFlags, Address
from specinfer.cli.show import (
    learning_words,
    memory_words,
    note,
    output,
    planner_words,
    ready_words,
    recent_words,
    room_words,
    status_table,
    verifier_words,
)
from specinfer.client import AsyncClient
from specinfer.client.described import draft_words
from specinfer.errors import SpecInferError, UnavailableError
from specinfer.system.running import RunningServer, running_servers
from specinfer.v1 import generation_pb2

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Look:
    """A gateway's status, and its time `at` in monotonic seconds."""

    status: generation_pb2.StatusReply
    at: float


class Interval:
    """A gateway's status, and its increase since the previous status."""

    def __init__(self, before: Look | None, now: Look) -> None:
        same = before is not None and before.status.gateway_id == now.status.gateway_id
        self._before = before.status if before is not None and same else None
        self._seconds = now.at - before.at if before is not None else 0.0
        self.now = now.status

    def rows(self) -> list[tuple[str, str]]:
        """Return the table's rows as (name, value)."""
        status = self.now
        draining = ", draining: takes no new requests" if status.draining else ""
        return [
            ("gateway", f"{status.gateway_id}{draining}"),
            *((f"gateway {g.gateway_id}", _gateway_words(g)) for g in status.gateway_states),
            ("redis", ready_words(status.redis_ready)),
            *((f"verifier {v.address}", verifier_words(v, status.gateway_id)) for v in status.verifiers),
            *(
                (f"cache {v.address}", room_words(v.kv_capacity_tokens, status.max_context_len))
                for v in status.verifiers
                if v.kv_capacity_tokens
            ),
            ("requests", f"{status.running} running, {status.waiting} waiting{self._finished()}"),
            ("tokens", self._tokens()),
            ("steps", self._steps()),
            ("phases", self._phases()),
            ("acceptance", self._acceptance()),
            *(self._speculator(s) for s in status.speculators),
            ("latest step", planner_words(status.planner)),
        ]

    def _grown(self, name: str) -> int | None:
        """Return the increase of a count; None without a previous status."""
        if self._before is None:
            return None
        grown: int = getattr(self.now, name) - getattr(self._before, name)
        return grown

    def _rate(self, name: str) -> str:
        grown = self._grown(name)
        return _NOTHING if grown is None else f"{grown / self._seconds:.1f}"

    def _finished(self) -> str:
        return "" if self._before is None else f", {self._rate('finished')} finished/s"

    def _tokens(self) -> str:
        return f"{self._rate('new_tokens')} tokens/s, {self.now.new_tokens} since start"

    def _steps(self) -> str:
        steps, tokens = self._grown("steps"), self._grown("new_tokens")
        per_step = f", {tokens / steps:.2f} tokens each" if steps and tokens is not None else ""
        return f"{self._rate('steps')} steps/s{per_step}"

    def _phases(self) -> str:
        """Describe the milliseconds per step by phase."""
        steps = self._grown("steps")
        if not steps or self._before is None:
            return _NOTHING
        then = {phase.name: phase.seconds for phase in self._before.phases}
        parts = [
            f"{phase.name} {1000 * (phase.seconds - then.get(phase.name, 0.0)) / steps:.1f}"
            for phase in self.now.phases
        ]
        return f"{', '.join(parts)} ms per step"

    def _acceptance(self) -> str:
        trees, drafted, accepted = map(self._grown, ("trees", "drafted", "accepted"))
        if not trees or not drafted or accepted is None:
            return _NOTHING
        return f"{accepted / drafted:.0%} of nodes, {accepted / trees:.2f} per tree"

    def _speculator(self, speculator: generation_pb2.SpeculatorState) -> tuple[str, str]:
        name = f"speculator {speculator.name}"
        ready = f"{ready_words(speculator.ready)} ({speculator.service})"
        before = self._speculator_before(speculator)
        drafted = 0 if before is None else speculator.drafted - before.drafted
        if before is None or drafted <= 0:
            return name, f"{ready}, nothing verified" if before else ready
        accepted, trees = speculator.accepted - before.accepted, self._grown("trees") or 1
        won = (speculator.wins - before.wins) / trees
        shown = f"{ready}, accepted {accepted / drafted:.0%}, won {won:.0%} of trees"
        shown += _reliability_words(speculator)
        return name, shown + learning_words(speculator)

    def _speculator_before(
        self, speculator: generation_pb2.SpeculatorState
    ) -> generation_pb2.SpeculatorState | None:
        known = self._before.speculators if self._before is not None else ()
        key = (speculator.service, speculator.name)
        return next((s for s in known if (s.service, s.name) == key), None)


def _reliability_words(speculator: generation_pb2.SpeculatorState) -> str:
    """Describe how well a speculator's scores predict acceptance, if measured."""
    words = ""
    if speculator.HasField("calibration_error"):
        said = f"{speculator.raw_calibration_error:.3f} as said"
        words = f", calibration error {speculator.calibration_error:.3f} ({said})"
    return words + (f", AUC {speculator.auc:.2f}" if speculator.HasField("auc") else "")


def watch_table(title: str, rows: list[tuple[str, str]]) -> Table:
    """Return the rows as a table for a terminal."""
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def watch_lines(title: str, rows: list[tuple[str, str]]) -> str:
    """Return the rows as lines for a pipe."""
    return "\n".join([title, *(f"  {name}: {value}" for name, value in rows)])


def _gateway_words(gateway: generation_pb2.GatewayState) -> str:
    draining = ", draining" if gateway.draining else ""
    return f"alive, drives {gateway.verifiers} verifiers, room for {gateway.room} requests{draining}"


Rows = list[tuple[str, str]]
Show = Callable[[Rows], None]


def status(
    watch: Annotated[
        bool, typer.Option("--watch", help="Update the state until Ctrl-C; in a pipe as blocks of lines.")
    ] = False,
    interval_seconds: Annotated[float, typer.Option(min=0.1, help="Time between two updates.")] = 1.0,
    count: Annotated[int, typer.Option(min=0, help="End after this number of updates; 0: never.")] = 0,
    address: Address = None,
    *,
    access: AccessFlags,
) -> None:
    """Show a running system, from the first available gateway's view."""
    connection = access.reach(address).check()
    where = connection.addresses
    if not watch:
        output.print(status_table(where, get_status(connection), server_at(where)))
        return
    with _display(f"specinfer, gateway at {where}") as show:
        asyncio.run(_watch(connection, show, interval_seconds, count))


def server_at(address: str) -> RunningServer | None:
    """Return the record of this user's server at an address."""
    return next((server for server in running_servers() if server.address == address), None)


def ps() -> None:
    """List your running servers: model, draft, context, memory, rates of the last minute."""
    servers = running_servers()
    if not servers:
        note("no server runs: start one with `specinfer serve`, `specinfer up` or `specinfer run`")
    for server in servers:
        where = (
            f"{server.command} (process {server.pid})\t{server.url or server.address}\t{memory_words(server)}"
        )
        connection = Connection(server.address, os.environ.get(API_KEY_VARIABLE))
        try:
            state = get_status(connection)
        except SpecInferError as error:
            typer.echo(f"{where}\t{error}")
        else:
            about = f"{state.model}\t{draft_words(state)}\tcontext {state.max_context_len}"
            typer.echo(f"{where}\t{about}\t{recent_words(state.last_minute)}")


def get_status(connection: Connection) -> generation_pb2.StatusReply:
    """Return the system's state from a gateway."""
    return asyncio.run(_get_status(connection))


async def _get_status(connection: Connection) -> generation_pb2.StatusReply:
    async with connection.client() as client:
        return await client.status()


async def _watch(connection: Connection, show: Show, interval_s: float, count: int) -> None:
    """Print the status repeatedly; after the first answer, print outages, too."""
    before: Look | None = None
    async with connection.client() as client:
        for number in itertools.count(1):
            status = await _look(client, may_fail=number > 1)
            if isinstance(status, Look):
                show(Interval(before, status).rows())
                before = status
            else:
                show([("gateway", f"does not answer: {status}")])
            if number == count:
                return
            await asyncio.sleep(interval_s)


async def _look(client: AsyncClient, may_fail: bool) -> Look | UnavailableError:
    try:
        return Look(await client.status(), time.monotonic())
    except UnavailableError as error:
        if not may_fail:
            raise
        return error


@contextmanager
def _display(title: str) -> Iterator[Show]:
    """Yield a function to show rows: in place, or as lines."""
    if not output.is_terminal:
        yield lambda rows: print(watch_lines(title, rows), end="\n\n", flush=True)
        return
    with Live(console=output, auto_refresh=False) as live:
        yield lambda rows: live.update(watch_table(title, rows), refresh=True)
