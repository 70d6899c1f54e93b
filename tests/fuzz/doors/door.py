"""Targets of the fuzzer: a door is a place where messages of others come in."""

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol


@dataclass(slots=True)
class Episode:
    """A short run at a door, reproducible by itself: everything in it follows from its generator."""

    rng: Random
    messages: int = 0
    """Spoilt messages so far."""
    refused: int = 0
    """Messages that were answered with a typed error, wholly or in part."""
    last: Any = None
    """The latest spoilt message."""

    def spoilt(self, message: Any) -> Any:
        """Counts and keeps a message."""
        self.messages += 1
        self.last = message
        return message


class Door(Protocol):
    """Lives for a whole campaign, so that what it leaks adds up."""

    async def run(self, episode: Episode) -> None:
        """One episode; raises AssertionError or whatever the code under test raises where it must not."""
