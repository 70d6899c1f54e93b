"""Draw from a seed what is done to the system and when. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.verifier import Poison


class FaultKind(Enum):
    """The kind of fault."""

    KILL = "kill"
    """SIGKILL, and a new start after a moment."""
    PAUSE = "pause"
    """SIGSTOP, and SIGCONT later."""
    DELAY = "delay"
    """All that is sent over a connection is held back for a while."""
    CUT = "cut"
    """Connections are reset."""
    POISON = "poison"
    """A request comes for which the verifier's code raises (`tests.chaos.verifier`)."""
    FAILOVER = "failover"
    """Redis' replica is promoted; the old primary stays up, read only, with all its connections."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of them."""

    wait_s: float
    """Since the fault before."""
    kind: FaultKind
    target: str
    """A process, for delays and cuts a proxy, for poison the part of the verifier that raises."""
    seconds: float
    """Seconds that it lasts; for a kill the time until the new start."""


def plan(
    seed: int, count: int, processes: Sequence[str], links: Sequence[str], lease_s: float, interval_s: float
) -> Iterator[Fault]:
    """Draws faults: about one per interval, each of a random kind, lasting from a moment to three leases."""
    draw = random.Random(seed)
    for _ in range(count):
        kind = draw.choice(list(FaultKind))
        targets = {
            FaultKind.DELAY: links,
            FaultKind.CUT: links,
            FaultKind.FAILOVER: ["redis"],
            FaultKind.POISON: [poison.name for poison in Poison],
        }.get(kind, processes)
        at_once = dict.fromkeys((FaultKind.CUT, FaultKind.FAILOVER, FaultKind.POISON), 0.0)
        longest = ({FaultKind.KILL: lease_s} | at_once).get(kind, 3 * lease_s)
        yield Fault(
            wait_s=min(draw.expovariate(1 / interval_s), 4 * interval_s),
            kind=kind,
            target=draw.choice(targets),
            seconds=round(draw.uniform(min(0.05, longest), longest), 3),
        )


def longest_pauses(
    faults: Sequence[tuple[float, str]], gaps: Sequence[tuple[float, float]], window_s: float = 0.5
) -> Mapping[str, list[float]]:
    """By kind, for each fault the longest time for which any client was given nothing.

    Only times count that began before the fault or shortly after it and ended after it.

    Args:
        faults: (time, kind).
        gaps: (time of a piece, time of the next piece of the same stream).
    """
    pauses: dict[str, list[float]] = {}
    for time, kind in faults:
        around = [end - start for start, end in gaps if start < time + window_s and end > time]
        pauses.setdefault(kind, []).append(max(around, default=0.0))
    return pauses
