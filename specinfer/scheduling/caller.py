"""Who asks: what an API key stands for, and what it may use. Pure data."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of an API key, or everybody where no keys are configured."""

    name: str = ""
    """Name of the key; empty where no keys are configured. Requests belong to it."""
    max_concurrent: int = 0
    """Most unfinished requests at once; 0 for no limit."""
    tokens_per_minute: int = 0
    """Most tokens generated within a minute; 0 for no limit."""
    max_priority: int = 2**31 - 1
    """Highest priority that it may ask for."""


ANYBODY = Caller()
