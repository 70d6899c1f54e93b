"""Run fuzzing episodes at a target until enough messages are sent; record findings and memory."""

import asyncio
import faulthandler
import gc
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import torch
from google.protobuf import text_format
from google.protobuf.message import Message

from tests.fuzz.caught import CaughtFaults
from tests.fuzz.doors.door import Door, Episode
from tests.fuzz.doors.registry import make_door

_SAMPLES = 20
"""Number of memory samples in a campaign; at least 2,000 messages apart, as collections are slow."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Error caused by a mutated message, with the number of its occurrences."""

    door: str
    seed: int
    episode: int
    error: str
    where: str
    trace: str
    message: str
    """The message in protobuf's text format."""
    count: int = 1


@dataclass(slots=True)
class Campaign:
    """Campaign of mutated messages at one target."""

    door: str
    seed: int
    most_findings: int = 20
    """Number of different findings after which the campaign ends."""
    messages: int = 0
    episodes: int = 0
    refused: int = 0
    seconds: float = 0.0
    slowest_s: float = 0.0
    """Duration of the longest episode in seconds."""
    rss_mib: list[float] = field(default_factory=list)
    """Resident memory after garbage collections, at even distances of messages."""
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def run(self, messages: int, progress: Callable[[int], None] = lambda _: None, first: int = 0) -> None:
        """Run until the number of messages or of findings is reached."""
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
        """Run an episode; return the target for the next one, a new one after an error."""
        episode = Episode(Random(f"{self.seed}:{self.door}:{number}"))
        began = time.perf_counter()
        try:
            await door.run(episode)
            caught.raise_first()
        except Exception as error:  # noqa: BLE001  # every error is a finding
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
        """Return the results as JSON values."""
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


def shown(message: Any, limit: int = 4000) -> str:
    """Return a message as text, shortened if it is long."""
    text = text_format.MessageToString(message) if isinstance(message, Message) else repr(message)
    return text if len(text) <= limit else f"{text[:limit]}..."


def resident_mib() -> float:
    """Return the resident memory of this process in MiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return 0.0


def growth(samples: list[float]) -> float:
    """Return the difference of the means of the last and second fifth; the first is warm-up."""
    fifth = len(samples) // 5
    if not fifth:
        return 0.0
    return sum(samples[-fifth:]) / fifth - sum(samples[fifth : 2 * fifth]) / fifth


_HUNG_S = 120.0
"""Timeout of an episode in seconds; an episode usually takes 0.1 s."""


def fuzz(door: str, seed: int, messages: int, first: int) -> dict[str, Any]:
    """Fuzz one door; a hanging episode ends the process with a traceback."""
    torch.set_num_threads(1)  # two threads took twice the processor time, by spinning
    campaign = Campaign(door, seed)
    campaign.run(messages, lambda _: faulthandler.dump_traceback_later(_HUNG_S, exit=True), first)
    faulthandler.cancel_dump_traceback_later()
    return campaign.report()
