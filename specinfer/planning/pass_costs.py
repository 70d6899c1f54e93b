"""Seconds of steps: measured as wholes, and estimated from passes and drafts where not measured. Pure.

A row is (batch class, speculator set, nodes). Its seconds are those of whole steps, relative to the machine's
pace: the common factor by which all rows are slower at present than when they were measured.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log, log2, sqrt
from statistics import median
from typing import NamedTuple

from specinfer.planning.accepted import SpeculatorSet
from specinfer.planning.latency import DraftTime, batch_size_class
from specinfer.planning.pass_times import PassCurve

_WINDOW = 24
"""Number of latest values of a row that count."""
_HALF = 400.0
"""Steps after which a value has half its weight."""
_FEW = 5
"""Number of values below which the lowest counts as the middle: disturbances only prolong."""
_CLIP = 0.4
"""Part of a value by which it may differ from the median; what is beyond counts as a disturbance."""
_PACE, _ERRORS = 0.2, 5
"""Part of the median of the latest errors that the pace follows; number of these errors."""
_KNOWN = 4
"""Number of values of a row from which its errors count for the pace."""
_DRAFT_PART = 0.25
"""Seconds of a draft before any was measured, as part of a pass over one token."""
_NOISE, _GUESS = 0.1, 0.2
"""Relative error of one measured step, and of an estimate."""
_LEAST_S = 1e-6


class Estimate(NamedTuple):
    """Seconds to expect of a row."""

    seconds: float
    error: float
    """Relative standard error."""
    measured: bool


@dataclass(slots=True)
class Recent:
    """Mean of the latest values, older ones with less weight.

    A value is the sum of a part that is known without noise, such as the price of the nodes that a pass had,
    and a rest that is measured. Only the rest is clipped: expensive steps count, disturbed ones hardly do.
    """

    values: deque[tuple[float, float, int]] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    """Rest, known part, and step."""
    rest: float = 0.0
    value: float = 0.0
    weight: float = 0.0
    """Weight of all values at the time of the latest."""
    batch: int = 1
    """Requests of the first step."""

    def add(self, value: float, step: int, known: float = 0.0) -> None:
        """Count a value, of which a part is known."""
        self.values.append((value - known, known, step))
        rests = [rest for rest, _, _ in self.values]
        middle = median(rests) if len(rests) >= _FEW else min(rests)
        wide = _CLIP * (abs(middle) + known)
        low, high = middle - wide, middle + wide
        self.rest = self.weight = parts = 0.0
        for rest, part, at in self.values:
            weight = 0.5 ** ((step - at) / _HALF)
            self.rest += weight * min(max(rest, low), high)
            parts += weight * part
            self.weight += weight
        self.rest /= self.weight
        self.value = self.rest + parts / self.weight

    def weight_at(self, step: int) -> float:
        """Return the weight that age leaves."""
        return self.weight * 0.5 ** ((step - self.values[-1][2]) / _HALF)


class StepSeconds:
    """Learns the seconds of rows."""

    def __init__(self, curve: PassCurve) -> None:
        self._curve = curve
        self._pace = 0.0
        """Logarithm of the pace."""
        self._errors = deque[float](maxlen=_ERRORS)
        self._rows: dict[tuple[int, SpeculatorSet], dict[int, Recent]] = {}
        """By class and set: by nodes."""
        self._passes = Recent()
        """Seconds of passes over those of the curve, relative to the pace."""
        self._drafts: dict[object, dict[tuple[int, int], Recent]] = {}
        """Seconds of a speculator, or of a service's messages, by batch and nodes."""
        self._services: Sequence[SpeculatorSet] = ()
        self._step = 0

    def enrol(self, services: Sequence[SpeculatorSet]) -> None:
        """Set the speculators, by service."""
        self._services = services

    @property
    def pace(self) -> float:
        """Seconds over those when rows were measured."""
        return exp(self._pace)

    @property
    def _factor(self) -> float:
        """Seconds of passes over those of the curve, relative to the pace."""
        return self._passes.value if self._passes.values else 1.0

    def observe(
        self,
        batch: int,
        asked: SpeculatorSet,
        nodes: int,
        tokens: int,
        seconds: float,
        step: int,
    ) -> None:
        """Count a whole step, with so many tokens in its pass."""
        self._step = step
        row = self._rows.setdefault((batch_size_class(batch), asked), {}).setdefault(nodes, Recent())
        if not row.values:
            row.batch = batch
        scale = self._curve.at(row.batch) / self._curve.at(batch)
        value = scale * max(seconds, _LEAST_S) / self.pace
        known = scale * self._factor * self._curve.at(tokens)
        if len(row.values) >= _KNOWN:
            self._errors.append(log(value / max(row.rest + known, known / 2)))
            self._pace += _PACE * median(self._errors)
        row.add(value, step, known)

    def observe_parts(
        self, batch: int, nodes: int, tokens: int, pass_s: float, drafts: Iterable[DraftTime], step: int
    ) -> None:
        """Count the seconds of a pass and of drafts, from which unmeasured rows are estimated."""
        pace = self.pace
        self._passes.add(max(pass_s, _LEAST_S) / pace / self._curve.at(tokens), step)
        for draft in drafts:
            if draft.read:
                continue
            for key, seconds in ((draft.service, draft.wire_s), *draft.own_s.items()):
                found = self._drafts.setdefault(key, {})
                found.setdefault((batch, nodes), Recent()).add(seconds / pace, step)

    def estimate(self, batch: int, requests: int, asked: SpeculatorSet, sizes: Sequence[int]) -> list[Estimate]:
        """Return the seconds to expect of steps with so many nodes for each request, in rising order."""
        pace, size = self.pace, batch_size_class(batch)
        rows = self._rows.get((size, asked), {})
        shapes = {n: self._shape(batch, requests, asked, n) for n in {*sizes, *rows}}
        found: list[Estimate] = []
        for nodes in sizes:
            row = rows.get(nodes)
            if row is not None:
                seconds = row.value * self._curve.at(batch) / self._curve.at(row.batch)
                error = _NOISE / sqrt(row.weight_at(self._step))
                found.append(Estimate(pace * seconds, min(error, _GUESS), len(row.values) >= 2))
                continue
            less = max((n for n in rows if n < nodes), default=None)
            more = min((n for n in rows if n > nodes), default=None)
            if less is not None and more is not None and shapes[more] > shapes[less]:
                part = (shapes[nodes] - shapes[less]) / (shapes[more] - shapes[less])
                seconds = rows[less].value * (1 - part) + rows[more].value * part
                found.append(Estimate(pace * seconds, _GUESS / 2, False))
                continue
            near = less if less is not None else more
            if near is not None:
                rest = rows[near].value - shapes[near]
            else:
                rest = self._rest(batch, requests)
            seconds = max(shapes[nodes] + rest, shapes[nodes] / 2)
            found.append(Estimate(pace * seconds, _GUESS, False))
        return found

    def pass_seconds(self, tokens: float) -> float:
        """Return the seconds to expect of a pass."""
        return self.pace * self._factor * self._curve.at(tokens)

    def _rest(self, batch: int, requests: int) -> float:
        """Return the seconds besides passes and drafts, by the nearest row."""
        size = batch_size_class(batch)
        keys = list(self._rows)
        if not keys:
            return 0.0
        key = min(keys, key=lambda key: (abs(key[0] - size), len(key[1])))
        nodes, row = min(self._rows[key].items())
        return row.value - self._shape(row.batch, row.batch, key[1], nodes)

    def _shape(self, batch: int, requests: int, asked: SpeculatorSet, nodes: int) -> float:
        """Return the seconds of a pass and of drafts."""
        return self._factor * self._curve.at(batch + nodes * requests) + self._drafting(batch, asked, nodes)

    def _drafting(self, batch: int, asked: SpeculatorSet, nodes: int) -> float:
        """Return the seconds of drafts: services draft side by side, speculators of one in turn."""
        if not asked or not nodes:
            return 0.0
        longest = 0.0
        for service in self._services:
            own = asked & service
            if not own:
                continue
            parts = [self._part(key, batch, nodes) for key in (service, *own)]
            known = [part for part in parts if part is not None]
            longest = max(longest, sum(known) if known else _DRAFT_PART * self._curve.at(1))
        return longest

    def _part(self, key: object, batch: int, nodes: int) -> float | None:
        """Return the seconds of one speculator, or of one service's messages."""
        found = self._drafts.get(key)
        if not found:
            return None
        b, n = min(found, key=lambda at: (abs(log2(at[0] / batch)), abs(log2(at[1] / nodes))))
        value = found[b, n].value
        return value * sqrt(batch / b) * log2(1 + nodes) / log2(1 + n)
