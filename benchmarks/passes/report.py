"""Sections of the report of passes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.tables import head, line, origin
from specinfer.scheduling.limits import SchedulerLimits

TITLE = """# Passes by rows

A pass reads all matrices once and gives logits for each of its rows, which follow a context.
Medians of turns, in which the systems take turns too; in brackets the minimum and maximum.
Prompts: 512 tokens after a short context; after a long one the context itself, read once in chunks of 512.
llama.cpp reads the same file with as many threads, by `llama_decode`.
GB/s: bytes of the matrices that a pass reads, over its seconds. Ratio: to the pass of the fewest rows.
"""
CHUNK = SchedulerLimits().prefill_chunk
"""Rows of a pass that reads a prompt, as it is served."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Measured figures of one system after one context."""

    passes: dict[int, list[float]] = field(default_factory=dict)
    """Rows of a pass -> seconds, several times."""
    prompt_rates: list[float] = field(default_factory=list)
    """Tokens a second of a prompt."""

    def add(self, sizes: Sequence[int], seconds: Sequence[float]) -> None:
        """Add passes."""
        for size, taken in zip(sizes, seconds, strict=True):
            if size == CHUNK:
                self.prompt_rates.append(size / taken)
            else:
                self.passes.setdefault(size, []).append(taken)

    def median(self, rows: int) -> float:
        """Return the median seconds of passes of so many rows."""
        return median(self.passes[rows])


def section(title: str, figures: dict[str, Figures], size: int, about: dict[str, Any]) -> str:
    """Return the section of one model and context.

    Args:
        figures: by system; the first is compared with the others.
        size: bytes of the matrices.
        about: origin of the run, with the formats in `weights`.
    """
    first, *others = figures
    rows = [*figures[first].passes]
    columns = [f"{system}{unit}" for system in figures for unit in (", ms", ", GB/s", ", ratio")]
    lines = [
        f"## {title}",
        "",
        f"{origin(about)}.",
        f"Weights {about['weights']};",
        f"{size / 1e6:.0f} MB a pass.",
        "",
    ]
    lines += head([*columns, *(f"{other} / {first}" for other in others)], "rows")
    for count in rows:
        cells = [cell for own in figures.values() for cell in _cells(own, count, rows[0], size)]
        factors = [figures[other].median(count) / figures[first].median(count) for other in others]
        lines.append(line(str(count), [*cells, *(f"{factor:.2f}" for factor in factors)]))
    rates = [f"{system} {_spread(own.prompt_rates)}" for system, own in figures.items()]
    return "\n".join([*lines, "", f"Tokens of a prompt a second: {', '.join(rates)}.", ""])


def _cells(own: Figures, count: int, fewest: int, size: int) -> list[str]:
    milliseconds = _spread([1000 * seconds for seconds in own.passes[count]])
    middle = own.median(count)
    return [milliseconds, f"{size / middle / 1e9:.1f}", f"{middle / own.median(fewest):.2f}"]


def _spread(values: list[float]) -> str:
    """Return for example "12.3 (12.0..13.1)"."""
    return f"{_short(median(values))} ({_short(min(values))}..{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
