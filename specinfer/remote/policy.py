"""Policy towards speculator services: deadlines, pauses and requirements."""

import secrets
from collections import deque
from dataclasses import dataclass, field
from statistics import median

from specinfer.service.outage import backoff

TIMES = 4.0
"""Deadline as a multiple of a step's usual time without drafts.

A good tree adds about four tokens, as many as plain decoding in four steps' time.
"""
MIN_S = 0.1
"""Minimum deadline: shared machines pause for tens of milliseconds.

A late service is not waited for again before it has answered, so a hung one costs this once.
"""
_REMEMBERED = 31


def draft_deadline(step_s: float | None, max_s: float) -> float:
    """Return the seconds that speculators get.

    Args:
        step_s: usual seconds of a step without drafting; None while that is not known.
        max_s: the operator's maximum.
    """
    if step_s is None:
        return max_s
    return min(max(TIMES * step_s, MIN_S), max_s)


class UsualStepTime:
    """Median seconds of steps without drafting, robust to pauses."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_REMEMBERED)
        self._drafted_at: float | None = None

    @property
    def usual_s(self) -> float | None:
        """None before the first step."""
        return median(self._latest) if self._latest else None

    def begins(self, now: float) -> None:
        """Note that a step begins to draft: the one before is over."""
        if self._drafted_at is not None:
            self._latest.append(now - self._drafted_at)

    def drafted(self, now: float) -> None:
        """Note that drafting is over; verifying and committing follow."""
        self._drafted_at = now


_STEP_BYTES = 12 * 2**20


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Treatment of the pool's services."""

    vocab_size: int
    tokenizer_fingerprint: str
    """Fingerprint of the verifier's tokenizer; a service with another one is refused."""
    deadline_s: float = 0.0
    """Deadline of speculators in a step; 0: proportional to the verifier's time."""
    hung_s: float = 10.0
    """Timeout for a silent service."""
    max_deadline_s: float = 5.0
    """Maximum of a proportional deadline."""
    scoped: bool = False
    """True if only requests of one caller share cached prompts."""
    trust_draws: bool = True
    """True if speculators may draw for sampled requests.

    One that sends a false distribution biases the output, so untrusted ones may only send points.
    """
    max_nodes: int = 128
    """Maximum nodes of a tree for the verifier, root included."""
    step_bytes: int = _STEP_BYTES
    """Maximum bytes of a step's trees, within the message of 16 MiB."""
    retry_s: float = 0.5
    """Pause before an unavailable service is retried, doubled after each consecutive loss."""
    longest_retry_s: float = 30.0
    """Maximum pause, also for unfit services: they may be replaced."""
    hidden_size: int = 0
    """Numbers in a hidden state of the target."""
    feature_layers: int = 0
    """Layers after which the verifier returns hidden states; 0: it returns none."""
    client: str = field(default_factory=lambda: secrets.token_hex(8))
    """Name of the client: services keep the requests of different clients apart."""

    def deadline(self, step_s: float | None) -> float:
        """Return the deadline of drafts, given a step's usual seconds."""
        return self.deadline_s or draft_deadline(step_s, self.max_deadline_s)

    def retry_after(self, losses: int) -> float:
        """Return the seconds until a retry after consecutive losses."""
        return backoff(self.retry_s, losses, self.longest_retry_s)
