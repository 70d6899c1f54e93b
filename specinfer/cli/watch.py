"""What a gateway did between two looks at it, as a table. Pure.

Rates and shares are of the time between the looks. Before the second look, and when another process answers
than before, there is nothing to compare with: they are left out.
"""

from dataclasses import dataclass

from rich.table import Table

from specinfer.cli.show import planner_words, ready_words, verifier_words
from specinfer.v1 import generation_pb2

_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class Look:
    """What a gateway said of itself, and when (seconds on a monotonic clock)."""

    status: generation_pb2.StatusReply
    at: float


class Interval:
    """From one look to the next."""

    def __init__(self, before: Look | None, now: Look) -> None:
        same = before is not None and before.status.gateway_id == now.status.gateway_id
        self._before = before.status if before is not None and same else None
        self._seconds = now.at - before.at if before is not None else 0.0
        self.now = now.status

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, from the whole to its parts."""
        status = self.now
        draining = ", draining: takes no new requests" if status.draining else ""
        return [
            ("gateway", f"{status.gateway_id}{draining}"),
            *((f"gateway {g.gateway_id}", _gateway_words(g)) for g in status.gateway_states),
            ("redis", ready_words(status.redis_ready)),
            *((f"verifier {v.address}", verifier_words(v, status.gateway_id)) for v in status.verifiers),
            ("requests", f"{status.running} running, {status.waiting} waiting{self._finished()}"),
            ("tokens", self._tokens()),
            ("steps", self._steps()),
            ("phases", self._phases()),
            ("acceptance", self._acceptance()),
            *(self._speculator(s) for s in status.speculators),
            ("latest step", planner_words(status.planner)),
        ]

    def _grown(self, name: str) -> int | None:
        """By how much a count of the gateway has grown; None if there is nothing to compare with."""
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
        each = f", {tokens / steps:.2f} tokens each" if steps and tokens is not None else ""
        return f"{self._rate('steps')} steps/s{each}"

    def _phases(self) -> str:
        """Milliseconds of each phase per step."""
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
        return name, f"{ready}, accepted {accepted / drafted:.0%}, won {won:.0%} of trees"

    def _speculator_before(
        self, speculator: generation_pb2.SpeculatorState
    ) -> generation_pb2.SpeculatorState | None:
        known = self._before.speculators if self._before is not None else ()
        key = (speculator.service, speculator.name)
        return next((s for s in known if (s.service, s.name) == key), None)


def watch_table(title: str, rows: list[tuple[str, str]]) -> Table:
    """What is shown in a terminal."""
    table = Table(title=title, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


def watch_lines(title: str, rows: list[tuple[str, str]]) -> str:
    """What is written to a pipe."""
    return "\n".join([title, *(f"  {name}: {value}" for name, value in rows)])


def _gateway_words(gateway: generation_pb2.GatewayState) -> str:
    draining = ", draining" if gateway.draining else ""
    return f"alive, drives {gateway.verifiers} verifiers, room for {gateway.room} requests{draining}"
