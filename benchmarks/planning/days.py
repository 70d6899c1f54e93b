"""Days of simulated serving: load, texts, speed of the machine and network change every few minutes.

    python -m benchmarks.planning.days [--days 4] [--minutes 15]

What `--never-slower` promises is that no minute loses more than so much of plain decoding's speed, whatever changes.
The simulated system (`world`) is driven through phases of one to four minutes with other batch sizes (1 to 64), texts,
speeds and networks; each step is compared with what plain decoding would have taken for its tokens at that moment.
Writes `benchmarks/results/never-slower.json` and `.md`: worst minute and whole day, with the promise and without.
"""

import random
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from benchmarks.planning.world import Ran, World
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.planning.guarantee import NEVER_SLOWER

_MINUTE_S = 60.0
BATCHES = (1, 2, 4, 8, 16, 32, 64)
TEXTS: Sequence[Sequence[float]] = ((0.9, 0.8), (0.25, 0.5, 0.7, 0.9), (0.1, 0.2), (0.02,))
"""Kinds of texts of a phase, by the probability that a first guess is right: code, all kinds, chat, noise."""
SLOWNESS, SERVICES = (0.6, 1.0, 1.0, 2.0), (0.5, 1.0, 1.0, 3.0)
"""Factors on all times, and on those of services and network."""


class Minutes:
    """Seconds lost against plain decoding, over every minute."""

    def __init__(self) -> None:
        self._steps = deque[tuple[float, float]]()
        self.now = self.lost_s = self._in_minute_s = 0.0
        self.worst = 0.0
        """Greatest part of a minute that was lost."""

    def add(self, seconds: float, plain_s: float) -> None:
        """Count a step, and what plain decoding would have taken."""
        self.now += seconds
        self.lost_s += seconds - plain_s
        self._in_minute_s += seconds - plain_s
        self._steps.append((self.now, seconds - plain_s))
        while self._steps[0][0] < self.now - _MINUTE_S:
            self._in_minute_s -= self._steps.popleft()[1]
        self.worst = max(self.worst, self._in_minute_s / _MINUTE_S)


def day(seed: int, minutes: float, never_slower: float, fixed: int | None = None) -> dict[str, float]:
    """Return the worst minute's loss, and the day's speed over plain decoding."""
    rng, found = random.Random(seed), Minutes()
    world = World(seed, 1, fixed, never_slower=never_slower, most=max(BATCHES))
    while found.now < minutes * _MINUTE_S:
        world.batch, world.guesses = rng.choice(BATCHES), rng.choice(TEXTS)
        world.machine.slowness, world.services = rng.choice(SLOWNESS), rng.choice(SERVICES)
        until = found.now + rng.uniform(1, 4) * _MINUTE_S
        while found.now < until:
            ran = Ran()
            world.step(ran)
            found.add(ran.seconds, world.plain_s(ran.tokens))
    return {"worst_minute": found.worst, "speed": (found.now - found.lost_s) / found.now}


def main(
    days: Annotated[int, typer.Option(help="Days, each with phases of its own.")] = 4,
    minutes: Annotated[float, typer.Option(help="Simulated minutes of a day.")] = 15.0,
) -> None:
    """Run the days with the promise and without it."""
    rows = {
        "plain decoding itself": [day(seed, minutes, 1.0, fixed=0) for seed in range(days)],
        f"promise of {NEVER_SLOWER:.0%}": [day(seed, minutes, NEVER_SLOWER) for seed in range(days)],
        "no promise": [day(seed, minutes, 1.0) for seed in range(days)],
    }
    report = {"about": about_this_run(), "minutes": minutes, "rows": rows}
    publish(RESULTS / "never-slower", report, markdown(report))


def markdown(report: dict[str, Any]) -> str:
    """Return the report's table."""
    lines = [
        "# Never slower, over simulated days",
        "",
        f"{origin(report['about'])}; simulated days of {report['minutes']:g} minutes, in phases of one to four minutes",
        "with batches of 1 to 64, other texts, speeds of the machine and networks. Parts of plain decoding's time at",
        "the same moments, by day.",
        "",
        *head(["worst minute's loss", "worst of all", "speed of the day over plain decoding"]),
    ]
    for label, found in report["rows"].items():
        worst = [each["worst_minute"] for each in found]
        speeds = ", ".join(f"{each['speed']:.2f}" for each in found)
        lines.append(line(label, [", ".join(f"{w:.1%}" for w in worst), f"{max(worst):.1%}", speeds]))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    typer.run(main)
