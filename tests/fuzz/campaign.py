"""Runs episodes at a door until enough messages have gone through it; notes crashes and memory."""

import asyncio
import gc
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from google.protobuf import text_format
from google.protobuf.message import Message

from tests.fuzz.caught import CaughtFaults
from tests.fuzz.doors.door import Door, Episode
from tests.fuzz.doors.registry import make_door

_SAMPLES = 20
"""Samples of memory over a campaign; not more often than every 2,000 messages, since a collection takes time."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A message that did what none may do."""

    door: str
    seed: int
    episode: int
    error: str
    where: str
    trace: str
    message: str
    """In protobuf's text format."""
    count: int = 1


@dataclass(slots=True)
class Campaign:
    """Messages at one door."""

    door: str
    seed: int
    most_findings: int = 20
    """Different ones after which it ends."""
    messages: int = 0
    episodes: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    """Longest episode."""
    rss_mib: list[float] = field(default_factory=list)
    """At even distances of messages, after a collection."""
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def run(self, messages: int, progress: Callable[[int], None] = lambda _: None, first: int = 0) -> None:
        """Goes on until so many messages have been spoilt, or there are too many findings."""
        asyncio.run(self._run(messages, progress, first))

    async def _run(self, messages: int, progress: Callable[[int], None], first: int) -> None:
        door, started = make_door(self.door), time.perf_counter()
        every, number = max(2000, messages // _SAMPLES), first
        with CaughtFaults() as caught:
            while self.messages < messages and len(self.findings) < self.most_findings:
                door = await self._episode(door, number, caught)
                number += 1
                while self.messages >= every * len(self.rss_mib):
                    self._sample()
                progress(self.messages)
        self.seconds = time.perf_counter() - started

    async def _episode(self, door: Door, number: int, caught: CaughtFaults) -> Door:
        """Returns the door for the next one: another after a crash, which may have left anything."""
        episode = Episode(Random(f"{self.seed}:{self.door}:{number}"))
        began = time.perf_counter()
        try:
            await door.run(episode)
            caught.raise_first()
        except Exception as error:  # noqa: BLE001  # any is what is looked for
            self._note(number, episode, error)
            caught.forget()
            door = make_door(self.door)
        await asyncio.sleep(0)  # the event loop closes generators that were dropped
        self.slowest_s = max(self.slowest_s, time.perf_counter() - began)
        self.episodes += 1
        self.messages += episode.messages
        self.refused += episode.refused
        return door

    def _note(self, number: int, episode: Episode, error: Exception) -> None:
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "site-packages" not in frame.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno} {ours[-1].name}"
        key = (type(error).__name__, where)
        known = self.findings.get(key)
        self.findings[key] = Finding(
            self.door,
            self.seed,
            known.episode if known else number,
            f"{type(error).__name__}: {error}"[:500],
            where,
            known.trace if known else "".join(traceback.format_exception(error)),
            known.message if known else shown(episode.last),
            known.count + 1 if known else 1,
        )

    def _sample(self) -> None:
        gc.collect()
        self.rss_mib.append(resident_mib())

    def report(self) -> dict[str, Any]:
        """Everything as JSON."""
        return {
            "door": self.door,
            "seed": self.seed,
            "messages": self.messages,
            "episodes": self.episodes,
            "refused": self.refused,
            "seconds": round(self.seconds, 1),
            "slowest_episode_s": round(self.slowest_s, 3),
            "rss_mib": [round(value, 1) for value in self.rss_mib],
            "rss_growth_mib": round(growth(self.rss_mib), 2),
            "findings": [asdict(finding) for finding in self.findings.values()],
        }


def shown(message: Any, most: int = 4000) -> str:
    """A message as text, its beginning if it is long."""
    text = text_format.MessageToString(message) if isinstance(message, Message) else repr(message)
    return text if len(text) <= most else f"{text[:most]}..."


def resident_mib() -> float:
    """Memory of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def growth(samples: list[float]) -> float:
    """By how much the last fifth lies above the second fifth: the first one warms up."""
    fifth = len(samples) // 5
    if not fifth:
        return 0.0
    return sum(samples[-fifth:]) / fifth - sum(samples[fifth : 2 * fifth]) / fifth
