"""How often is logged what happens again and again: the first time, then a line every five seconds."""

from dataclasses import dataclass

LOG_EVERY_S = 5.0


@dataclass(slots=True)
class LogPace:
    """Lets the first line through, then one every `LOG_EVERY_S` seconds."""

    _last: float | None = None

    def due(self, now: float) -> bool:
        """Whether a line may be written at this time."""
        if self._last is not None and now - self._last < LOG_EVERY_S:
            return False
        self._last = now
        return True
