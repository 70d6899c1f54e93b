"""Compare offered with served weights by steps on held-out texts."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

MIN_TEXTS = 16
"""Minimum number of held-out texts of a judgement."""
MAX_TEXTS = 96
"""Maximum held-out texts of a judgement: about 3,000 drafts."""
MIN_GAIN = 0.01
"""Minimum relative gain in tokens per step, averaged over callers.

New weights must read all contexts again; a smaller gain would not pay for this.
"""
MAX_LOSS = 0.02
"""Maximum relative loss of a caller in tokens per step."""
MIN_TEXTS_OF_CALLER = 4
"""Minimum held-out texts of a caller to be judged alone.

Callers with fewer texts are judged together.
"""


class Trial(NamedTuple):
    """Steps of a held-out text with the initial, served and offered weights."""

    caller: int
    tokens: int
    """Number of tokens of the answer."""
    start_steps: int
    """Steps with the initial weights.

    Offered weights are compared with them, too, so that small losses of versions cannot add up.
    """
    served_steps: int
    offered_steps: int


class Judgement(NamedTuple):
    """Tokens per step, averaged over callers, and the reason for a refusal."""

    served: float
    offered: float
    texts: int
    why_not: str = ""

    @property
    def better(self) -> bool:
        """True if the offered weights are accepted."""
        return not self.why_not


def judge(trials: Sequence[Trial]) -> Judgement:
    """Judge offered weights.

    The weights must be better on average over callers, which count equally, and not worse for any caller.
    """
    by_caller = _by_caller(trials)
    served = _mean([_rate(of_caller, [t.served_steps for t in of_caller]) for of_caller in by_caller])
    offered = _mean([_rate(of_caller, [t.offered_steps for t in of_caller]) for of_caller in by_caller])
    judgement = Judgement(served, offered, len(trials))
    if len(trials) < MIN_TEXTS:
        return judgement._replace(why_not=f"{len(trials)} held-out texts, {MIN_TEXTS} are needed")
    if offered < served * (1 + MIN_GAIN):
        reason = f"{offered:.3f} tokens per step, {served:.3f} as served: less than {MIN_GAIN:.0%} better"
        return judgement._replace(why_not=reason)
    if _costs_a_caller(by_caller):
        return judgement._replace(
            why_not=f"a caller would lose more than {MAX_LOSS:.0%} of its tokens per step"
        )
    return judgement


def loses(trials: Sequence[Trial]) -> bool:
    """Return whether the offered weights are worse, overall or for a caller."""
    back = [t._replace(served_steps=t.offered_steps, offered_steps=t.served_steps) for t in trials]
    return judge(back).better or (len(trials) >= MIN_TEXTS and _costs_a_caller(_by_caller(trials)))


def _by_caller(trials: Sequence[Trial]) -> list[list[Trial]]:
    by_caller: dict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_caller[trial.caller].append(trial)
    return list(by_caller.values())


def _costs_a_caller(by_caller: Sequence[Sequence[Trial]]) -> bool:
    """Return whether a caller loses more than `MAX_LOSS`.

    Offered weights are compared with the initial and with the served weights.
    """
    small = [trial for trials in by_caller if len(trials) < MIN_TEXTS_OF_CALLER for trial in trials]
    return any(
        _loses(trials, before)
        for trials in (*by_caller, small)
        if len(trials) >= MIN_TEXTS_OF_CALLER
        for before in ([t.start_steps for t in trials], [t.served_steps for t in trials])
    )


def _loses(trials: Sequence[Trial], before: Sequence[int]) -> bool:
    """Return whether steps exceed the number at `MAX_LOSS` by a standard error."""
    excess = [t.offered_steps - steps / (1 - MAX_LOSS) for t, steps in zip(trials, before, strict=True)]
    mean = _mean(excess)
    variance = sum((value - mean) ** 2 for value in excess) / max(1, len(excess) - 1)
    return mean > math.sqrt(variance / len(excess))


def _rate(trials: Sequence[Trial], steps: Sequence[int]) -> float:
    return sum(t.tokens for t in trials) / max(1, sum(steps))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
