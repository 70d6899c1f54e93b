"""Interface of fuzzing targets ("doors"): parts that read messages of others."""

from dataclasses import dataclass
from random import Random
from typing import Any, Protocol


@dataclass(slots=True)
class Episode:
    """Short fuzzing run, reproducible from its random generator."""

    rng: Random
    messages: int = 0
    """Number of mutated messages."""
    refused: int = 0
    """Number of messages answered with a typed error, as a whole or in part."""
    last: Any = None
    """Last mutated message."""

    def spoilt(self, message: Any) -> Any:
        """Count and store a mutated message; return it."""
        self.messages += 1
        self.last = message
        return message


class Door(Protocol):
    """Fuzzing target; used for a whole campaign, so that leaks add up."""

    async def run(self, episode: Episode) -> None:
        """Run an episode.

        Raises:
            Exception: any error of the code under test or of the checks is a finding.
        """
