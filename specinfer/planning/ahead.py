"""Decides if drafting ahead of verdicts pays: tried for some steps, measured against those without. Pure.

With V the time of a step besides drafting, D that of a draft, h the part of drafts that were made ahead and t the
tokens of a step with a draft, a token takes without drafts ahead (D + V) / t, and with them

    ahead         (max(D, V) + (1 - h) * D) / t          a miss is drafted now (arXiv 2603.03251)
    ahead only    max(D, V) / (1 + f * (t - 1))          a miss goes without, and f of the steps have drafts

A path through a tree often ends where no child was right, at a token that the draft model holds unlikely: then h is
low. Behind a step without a draft the outcome is one token, which is easy to foresee, so half the steps have drafts.
Where either promises something it is tried. What counts then is what steps took over what they take without, at the
same nodes: where drafts ahead take cores from the pass, it is more.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from specinfer.planning.latency import batch_size_class
from specinfer.planning.pass_times import Recent

NOW, ONLY = "always", "only"
"""Ways of drafting ahead: a miss is drafted now, or goes without."""
DRAFT_AHEAD = ("auto", NOW, ONLY, "never")
"""When drafts are made ahead: as measured, in every step in one of these ways, or not."""
_NONE: Mapping[int, int] = MappingProxyType({})
_GAIN = 0.98
"""Part of the time of a token that it must take at most, by the promise and as measured."""
_HOPE = 0.5
"""Part of drafts that are made ahead before any was."""
_NEWEST = 0.05
"""Weight of the latest step in that part."""
_FIRST, _LONGEST, _GROWTH = 128, 8192, 8
"""Steps with drafts before the first trial; most before the next one; times that a trial that failed adds."""
_TRIAL, _EARLY, _FAR = 12, 3, 1.15
"""Steps of a trial; steps after which one that is so much slower ends."""
_REFRESH, _BLOCK = 256, 4
"""Steps ahead after which some are made without, so that it is known what those take; how many."""
_CHANGED = 0.9
"""Part of the promise at the latest trial at which a new one is due soon, whatever failed before."""
_VAIN = 64
"""Steps after which a trial ends in which nobody drafted ahead."""


class AheadStep(NamedTuple):
    """Drafts made ahead of verdicts, in one step."""

    ordered: bool = False
    """True if some were ordered behind this step's trees."""
    hits: Mapping[int, int] = _NONE
    """Drafts of this step that were made ahead, by speculator."""
    misses: Mapping[int, int] = _NONE
    """Drafts of this step that had to be made now, though others were made ahead."""
    wasted: Mapping[int, int] = _NONE
    """Drafts made ahead for contexts that did not come."""
    idle_s: float = 0.0
    """Seconds in which services that draft ahead had nothing to do while the verifier worked."""

    @property
    def used(self) -> bool:
        """True if drafts for this step were made ahead."""
        return bool(self.hits or self.misses)


NOT_AHEAD = AheadStep()


@dataclass(slots=True)
class _AheadSize:
    """Measurements of one batch size."""

    way: str | None = None
    """Way in which drafts are made ahead now; None if they are not."""
    proved: str | None = None
    """Way that a trial has shown to pay."""
    steps: int = 0
    """Steps with drafts since this way began."""
    wait: int = _FIRST
    """Steps until the next trial."""
    failed: dict[str, float] = field(default_factory=dict)
    """Ways that did not pay, with the measured part, until both were tried."""
    promised: float = 0.0
    """Least promise when the latest trial began."""
    measured: float = 1.0
    """Time of a token with drafts ahead over that without, in the latest trial."""
    with_s: Recent = field(default_factory=Recent)
    """Seconds of steps with drafts ahead over those expected without, since this way began."""
    without_s: Recent = field(default_factory=Recent)
    """The same of steps without."""
    pass_s: Recent = field(default_factory=Recent)
    """Seconds of passes beside drafts over those expected, of the first steps since this way began."""

    @property
    def slowness(self) -> float:
        """Seconds of a step with drafts ahead over those of one without; 0 before the first."""
        return self.with_s.value / (self.without_s.value or 1.0)

    def start(self, way: str) -> None:
        self.way, self.steps = way, 0
        self.with_s, self.pass_s = Recent(), Recent()

    def stop(self, wait: int) -> None:
        self.way, self.steps, self.wait = None, 0, min(wait, _LONGEST)


class AheadModel:
    """Learns whether drafts ahead pay, and how, by batch size."""

    def __init__(self, mode: str = "never") -> None:
        """Create it; `mode` is one of `DRAFT_AHEAD`."""
        self._mode = mode
        self._sizes: dict[int, _AheadSize] = {}
        self._rates: dict[tuple[str, int], float] = {}
        """Parts of drafts that were made ahead, by way and speculator."""

    @property
    def never(self) -> bool:
        """True if nothing is made ahead."""
        return self._mode == "never"

    def part(self, way: str, speculators: Iterable[int]) -> float:
        """Return the part of the drafts that are made ahead, of the speculator whose part is the least."""
        return min((self._rates.get((way, s), _HOPE) for s in speculators), default=0.0)

    def promises(
        self, speculators: Iterable[int], requests: int, draft_s: float, rest_s: float, tokens: float
    ) -> dict[str, float]:
        """Return the time of a token over that without drafts ahead, where nobody lacks a core, by way.

        Args:
            speculators: who drafts.
            requests: that are drafted for; a step waits if one of them is missing.
            draft_s: seconds of a draft.
            rest_s: seconds of a step besides.
            tokens: of one request in a step with a draft.
        """
        asked, whole = list(speculators), draft_s + rest_s
        if not whole:
            return {}
        longer, missing = max(draft_s, rest_s), 1 - self.part(NOW, asked) ** requests
        lost = tokens / (1 + self.part(ONLY, asked) * (tokens - 1))
        return {NOW: (longer + missing * draft_s) / whole, ONLY: longer / whole * lost}

    def factor(self, batch: int) -> float:
        """Return the measured time of tokens as they are now made over that without drafts ahead."""
        size = self._of(batch)
        return size.measured if self._mode == "auto" and size.way and size.way == size.proved else 1.0

    def way(self, batch: int, promises: Mapping[str, float]) -> str | None:
        """Return how drafts are to be made ahead for the next step; None if they are not."""
        if self._mode != "auto":
            return self._mode if self._mode in (NOW, ONLY) else None
        size, least = self._of(batch), min(promises.values(), default=1.0)
        if least < _CHANGED * size.promised and size.proved is None:  # other times, other network
            size.wait, size.promised = _FIRST, least
            size.failed.clear()
        if size.way is None and size.steps >= size.wait:
            if size.proved is not None:
                size.start(size.proved)
            elif promises:
                size.promised = least
                best = min(promises, key=lambda way: size.failed.get(way, promises[way]))
                if size.failed.get(best, promises[best]) < _GAIN:
                    size.start(best)
                elif len(size.failed) == len(promises):
                    size.failed.clear()
        return size.way

    def observe(self, batch: int, step: AheadStep, seconds: float, expected_s: float, tokens: float) -> None:
        """Count a step with drafts.

        Args:
            batch: its requests.
            step: use of drafts made ahead.
            seconds: that it took.
            expected_s: that it should take without drafts ahead.
            tokens: expected of one request with a draft.
        """
        size = self._of(batch)
        for speculator in {*step.hits, *step.misses}:
            hits, misses = step.hits.get(speculator, 0), step.misses.get(speculator, 0)
            key = (size.way or NOW) if self._mode == "auto" else self._mode, speculator
            known = self._rates.get(key, _HOPE)
            self._rates[key] = known + _NEWEST * (hits / (hits + misses) - known)
        size.steps += 1
        if step.ordered and step.used:
            size.with_s.add(seconds / expected_s)
        elif not step.ordered and not step.used:
            size.without_s.add(seconds / expected_s)
        if size.way is not None and (step.used or not len(size.with_s)):
            self._judge(size, size.way, [*step.hits, *step.misses], tokens)

    def usual_pass(self, batch: int, seconds: float, expected_s: float) -> float:
        """Return the seconds that a pass beside drafts would take without them."""
        size = self._of(batch)
        if len(size.pass_s) < _TRIAL:
            size.pass_s.add(seconds / expected_s)
            return expected_s
        return seconds / size.pass_s.value

    def _judge(self, size: _AheadSize, way: str, speculators: Iterable[int], tokens: float) -> None:
        """Stop what does not pay; stop for a few steps now and then."""
        seen, vain = len(size.with_s), not len(size.with_s) and size.steps >= _VAIN
        lost = tokens / (1 + self.part(ONLY, speculators) * (tokens - 1)) if way == ONLY else 1.0
        now = size.slowness * lost
        if seen >= _TRIAL:
            size.measured = now
        elif not vain and not (seen >= _EARLY and now > _FAR):
            return
        if now >= _GAIN or vain:
            size.proved, size.failed[way] = None, max(now, 1.0)
            size.stop(size.wait * _GROWTH)
        else:
            size.proved = way
            if size.steps >= _REFRESH:
                size.stop(_BLOCK)

    def _of(self, batch: int) -> _AheadSize:
        return self._sizes.setdefault(batch_size_class(batch), _AheadSize())
