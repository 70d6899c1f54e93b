"""Notes of a verifier of fixed step time about every step, and figures that follow from them."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self


class FixedStep(NamedTuple):
    """One step as the verifier saw it."""

    arrived_s: float
    """When its message came, on a clock without meaning elsewhere."""
    batch: int
    pass_s: float
    """From the message to the answer."""
    gap_s: float
    """From the answer before to this message: what the gateway added; 0 for the first step of a stream."""
    plain: bool
    """True if no prompt was read in it."""

    def line(self) -> str:
        """As it stands in a file."""
        return " ".join(map(repr, (*self[:4], int(self.plain)))) + "\n"

    @classmethod
    def parse(cls, line: str) -> Self:
        """Reads a line."""
        arrived_s, batch, pass_s, gap_s, plain = line.split()
        return cls(float(arrived_s), int(batch), float(pass_s), float(gap_s), plain == "1")


def read_steps(path: Path, first: int = 0) -> list[FixedStep]:
    """The steps in a file from this one on; a line that is being written does not count."""
    lines = path.read_text().splitlines(keepends=True)
    return [FixedStep.parse(line) for line in lines[first:] if line.endswith("\n")]


def added_ms(steps: Sequence[FixedStep], batch: int) -> dict[str, float]:
    """Return what the gateway adds to a pass of this many requests, in milliseconds; empty if there were none."""
    gaps = [1000 * step.gap_s for step in steps if step.batch == batch and step.plain and step.gap_s]
    return spread(gaps)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles, 95th and 99th percentile, and how many there are; empty for less than two."""
    if len(values) < 2:
        return {}
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    names = {"p25": 24, "median": 49, "p75": 74, "p95": 94, "p99": 98}
    return {"count": len(values)} | {name: cuts[place] for name, place in names.items()}


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Return the slope of a straight line through the values (least squares); 0 for less than two."""
    if len(values) < 2 or len(set(times)) < 2:
        return 0.0
    return statistics.linear_regression(times, values).slope
