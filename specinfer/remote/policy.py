"""Set deadlines, retries and requirements of speculator services."""

import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median

from specinfer.service.outage import backoff

TIMES = 4.0
"""Deadline as a multiple of a step's usual time without drafts.

A good tree adds about four tokens, so waiting for longer than four plain steps would not pay.
"""
MIN_S = 0.1
"""Minimum deadline in seconds, as shared machines pause for tens of milliseconds.

A late service is not called again before it has answered, so a hung service costs this time once.
"""
_REMEMBERED = 31


def draft_deadline(step_s: float | None, max_s: float) -> float:
    """Return the seconds that a step waits for speculators.

    Args:
        step_s: usual seconds of a step without drafting; None before any measurement.
        max_s: the operator's maximum.
    """
    if step_s is None:
        return max_s
    return min(max(TIMES * step_s, MIN_S), max_s)


class UsualStepTime:
    """Measures the median seconds of steps, without drafting."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_REMEMBERED)
        self._drafted_at: float | None = None

    @property
    def usual_s(self) -> float | None:
        """Median seconds; None before the first step."""
        return median(self._latest) if self._latest else None

    def begins(self, now: float) -> None:
        """Record that a step begins to draft; the previous step has ended."""
        if self._drafted_at is not None:
            self._latest.append(now - self._drafted_at)

    def drafted(self, now: float) -> None:
        """Record that drafting has ended."""
        self._drafted_at = now


_STEP_BYTES = 12 * 2**20


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Deadlines, retries and requirements of a pool's services."""

    vocab_size: int
    tokenizer_fingerprint: str
    """Fingerprint of the tokenizer that services must have."""
    deadline_s: float = 0.0
    """Seconds to wait for drafts; 0: `TIMES` times the usual step seconds.

    The wait is then at least `MIN_S` and at most `max_deadline_s`.
    """
    hung_s: float = 10.0
    """Seconds without an answer until a service counts as dead."""
    max_deadline_s: float = 5.0
    """Maximum seconds to wait for drafts if `deadline_s` is 0."""
    scoped: bool = False
    """True if only requests of one caller share cached prompts."""
    trust_draws: bool = True
    """True if speculators may draw for sampled requests.

    A speculator that sends a false distribution biases the output, so an untrusted one may only send points.
    """
    max_nodes: int = 128
    """Maximum nodes of a tree for the verifier, root included."""
    step_bytes: int = _STEP_BYTES
    """Maximum bytes of a step's trees, within the message of 16 MiB."""
    retry_s: float = 0.5
    """Seconds before an unavailable service is retried, doubled after each failure."""
    longest_retry_s: float = 30.0
    """Maximum seconds before a retry; incompatible services wait as long."""
    hidden_size: int = 0
    """Size of the target's hidden states."""
    feature_layers: int = 0
    """Number of layers whose hidden states the verifier returns; 0: none."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic seconds."""
    client: str = field(default_factory=lambda: secrets.token_hex(8))
    """Name of this client; services separate the requests of different clients."""

    def deadline(self, step_s: float | None) -> float:
        """Return the seconds to wait for drafts, given a step's usual seconds."""
        return self.deadline_s or draft_deadline(step_s, self.max_deadline_s)

    def retry_after(self, losses: int) -> float:
        """Return the seconds before a retry after `losses` consecutive failures."""
        return backoff(self.retry_s, losses, self.longest_retry_s)
