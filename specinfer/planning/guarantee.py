"""The guarantee that speculation costs at most a part of plain decoding's speed, over any minute. Pure.

A token bucket of seconds: steps with drafts put in what they took longer than plain decoding takes for their
tokens, and take out what they saved. It leaks half of the promised part of the time. When it overflows all decode
plainly until it is empty again. So no minute loses more than twice the bucket, from full credit to overflow, and what
leaks meanwhile.

What plain decoding takes is the lower of what the planner expects and what the latest plain steps at the batch size
took: expectations go wrong when the machine's speed changes while all steps have trees or none has, and what was
measured is old when it becomes faster.
"""

from specinfer.planning.latency import batch_size_class
from specinfer.planning.pass_times import Recent

NEVER_SLOWER = 0.02
"""Part of plain decoding's speed that speculation may cost over a minute, unless said otherwise."""
_MINUTE_S = 60.0
_BUCKET = 1 / 4
"""Part of a minute's promised seconds that the bucket holds: twice that and half a promise leaking are the promise."""
_OUTLIER = 3.0
"""Times its expected seconds that a step, apart from its drafts, counts for at most: somebody else wanted the
machine."""


class Guarantee:
    """Seconds that speculation lost, and whether it may lose more."""

    def __init__(self, part: float) -> None:
        """Promise at most this part of the time; 1 promises nothing."""
        self._part = part
        self.most_lost_s = part * _MINUTE_S * _BUCKET
        """Seconds that the bucket holds."""
        self.lost_s = 0.0
        """Seconds in the bucket; below zero where speculation gained."""
        self.exhausted = False
        """True from its overflow until it is empty: all requests decode plainly."""
        self._plain: dict[int, Recent] = {}
        """Seconds of plain steps for each request, by batch size in powers of two."""

    def observe(
        self,
        batch: int,
        tokens: int,
        seconds: float,
        plain_speed: float,
        drafted: bool,
        draft_s: float = 0.0,
        once: bool = False,
    ) -> None:
        """Count a step.

        Args:
            batch: its requests.
            tokens: what it brought.
            seconds: the whole step, drafts for the next one included.
            plain_speed: tokens per second that were expected of plain decoding.
            drafted: whether it had drafts, or made some for the next step.
            draft_s: seconds that it waited for drafts, those in which speculators read prompts included.
            once: whether it is one of a process's first, whose cold caches do not come again: they fill the bucket,
                and what is lost behind them overflows it.
        """
        if self._part >= 1 or not plain_speed:
            return
        plain = self._plain.setdefault(batch_size_class(batch), Recent())
        token_s = min(1 / plain_speed, plain.value) if len(plain) else 1 / plain_speed
        seconds = min(seconds, draft_s + _OUTLIER * max(batch, tokens) / plain_speed)
        leaked_s = self._part / 2 * seconds
        if drafted:
            self.lost_s = max(self.lost_s + seconds - tokens * token_s - leaked_s, -self.most_lost_s)
            if once:
                self.lost_s = min(self.lost_s, self.most_lost_s)
        else:
            plain.add(seconds / batch)
            if self.lost_s > 0:  # what was gained stays
                self.lost_s = max(self.lost_s - leaked_s, 0.0)
        self.exhausted = self.lost_s > (0.0 if self.exhausted else self.most_lost_s)
