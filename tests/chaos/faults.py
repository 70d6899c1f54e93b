"""Draw random faults and their times from a seed. Pure."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from tests.chaos.verifier import Poison


class FaultKind(Enum):
    """The kind of fault."""

    KILL = "kill"
    """Kill a process with SIGKILL, and restart it after a delay."""
    PAUSE = "pause"
    """Stop a process with SIGSTOP, and resume it later with SIGCONT."""
    DELAY = "delay"
    """Delay all data of a connection for some time."""
    CUT = "cut"
    """Reset connections."""
    POISON = "poison"
    """Send a request that makes the verifier's code raise (`tests.chaos.verifier`)."""
    FAILOVER = "failover"
    """Promote the replica of Redis; the old primary stays up, read-only, with its connections."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault."""

    wait_s: float
    """Seconds since the previous fault."""
    kind: FaultKind
    target: str
    """Name of the process; of the proxy for DELAY and CUT; of the verifier's part that raises for POISON."""
    seconds: float
    """Duration of the fault; for KILL, seconds until the restart."""


def plan(
    seed: int, count: int, processes: Sequence[str], links: Sequence[str], lease_s: float, interval_s: float
) -> Iterator[Fault]:
    """Yield random faults: about one per interval, each of up to three lease times."""
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
    """Return, by kind of fault, the longest gap of any client at each fault.

    A gap belongs to a fault if it began before the fault or at most `window_s` after it, and ended after it.

    Args:
        faults: (time, kind).
        gaps: (time of a reply, time of the next reply of the stream).
    """
    pauses: dict[str, list[float]] = {}
    for time, kind in faults:
        around = [end - start for start, end in gaps if start < time + window_s and end > time]
        pauses.setdefault(kind, []).append(max(around, default=0.0))
    return pauses
