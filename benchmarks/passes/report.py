"""Sections of the report of passes."""

from statistics import median
from typing import Any

from benchmarks.tables import head, line, origin
from specinfer.scheduling.limits import SchedulerLimits

Times = dict[int, list[float]]
"""Rows of a pass -> its seconds in each turn."""
TITLE = """# Passes by rows

A pass reads all matrices once and gives logits for each of its rows, which follow a context.
Medians of turns, in which the systems take turns too; in brackets the minimum and maximum.
GB/s: bytes of the matrices that a pass reads, over its seconds. Ratio: to the pass of the fewest rows.
"""
CHUNK = SchedulerLimits().prefill_chunk
"""Rows of a pass that reads a prompt, as it is served."""


def section(title: str, times: dict[str, Times], size: int, about: dict[str, Any]) -> str:
    """Return the section of one model and context.

    Args:
        times: by system; the first is compared with the others.
        size: bytes of the matrices.
        about: origin of the run, with the formats in `weights`.
    """
    systems = [*times]
    rows = [count for count in times[systems[0]] if count != CHUNK]
    columns = [f"{system}{unit}" for system in systems for unit in (", ms", ", GB/s", ", ratio")]
    lines = [
        f"## {title}",
        "",
        f"{origin(about)}.",
        f"Weights {about['weights']};",
        f"{size / 1e6:.0f} MB a pass.",
        "",
    ]
    lines += head([*columns, *(f"{other} / {systems[0]}" for other in systems[1:])], "rows")
    for count in rows:
        cells = [cell for system in systems for cell in _cells(times[system], count, rows[0], size)]
        lines.append(line(str(count), [*cells, *_factors(times, count)]))
    for system in systems:
        if CHUNK in times[system]:
            rates = [CHUNK / seconds for seconds in times[system][CHUNK]]
            lines += ["", f"{system}, {CHUNK} tokens of a prompt: {_spread(rates)} tokens/s."]
    return "\n".join([*lines, ""])


def _cells(times: Times, count: int, fewest: int, size: int) -> list[str]:
    middle = median(times[count])
    milliseconds = _spread([1000 * seconds for seconds in times[count]])
    return [milliseconds, f"{size / middle / 1e9:.1f}", f"{middle / median(times[fewest]):.2f}"]


def _factors(times: dict[str, Times], count: int) -> list[str]:
    first, *others = (median(own[count]) for own in times.values())
    return [f"{other / first:.2f}" for other in others]


def _spread(values: list[float]) -> str:
    """Return for example "12.3 (12.0..13.1)"."""
    return f"{_short(median(values))} ({_short(min(values))}..{_short(max(values))})"


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"


def with_sections(report: str, sections: dict[str, str]) -> str:
    """Return a report in which sections take the place of those of the same title, or follow."""
    start, *parts = report.split("\n## ")
    texts = {part.split("\n", 1)[0]: f"## {part}" for part in parts} | sections
    return "\n\n".join(text.strip() for text in (start, *texts.values())) + "\n"
