"""Draw dashboards from Prometheus's data, in Grafana's colours.

`python -m benchmarks.dashboard` makes the README's picture with it.
"""

import io
import json
import math
import re
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter
from PIL import Image

from deploy.grafana.build import DASHBOARDS
from deploy.grafana.panel import PER_SECOND, Panel

_COLUMNS = 3
_MAX_LINES = 6
_COLOURS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#ffa6b0")
_STYLE = {
    "figure.facecolor": "#111217",
    "axes.facecolor": "#181b1f",
    "axes.edgecolor": "#2c3235",
    "axes.labelcolor": "#ccccdc",
    "axes.prop_cycle": plt.cycler(color=_COLOURS),
    "grid.color": "#2c3235",
    "text.color": "#ccccdc",
    "xtick.color": "#9fa7b3",
    "ytick.color": "#9fa7b3",
    "font.size": 9,
}
_UNITS: Mapping[str, Callable[[float], str]] = {
    "s": lambda value: f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms",
    "percentunit": lambda value: f"{value:.0%}",
    "bytes": lambda value: f"{value / 2**20:.0f} MiB",
    "reqps": lambda value: f"{value:g}/s",
    "cps": lambda value: f"{value:g}/s",
    PER_SECOND: lambda value: f"{value:g}/s",
}
_VARIABLES = re.compile(r"\$(instance|speculator|model)\b")


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Shown time range, in whole seconds since 1970."""

    start: int
    stop: int
    step: int = 2
    window: str = "20s"
    """Window of rates, as in PromQL."""

    @property
    def times(self) -> range:
        """Times at which Prometheus evaluates queries."""
        return range(self.start, self.stop + 1, self.step)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a panel."""

    name: str
    minutes: list[float]
    """Minutes since the start."""
    values: list[float]
    """Values; NaN where there is no value."""


def panels_named(titles: Sequence[str]) -> list[Panel]:
    """Return panels of any dashboard by their titles.

    Raises:
        KeyError: if no panel has one of the titles.
    """
    known = {panel.title: panel for board in DASHBOARDS for row in board.rows for panel in row.panels}
    return [known[title] for title in titles]


def draw(titles: Sequence[str], prometheus: str, span: TimeRange, target: Path) -> None:
    """Write the picture; `prometheus` is a URL without path."""
    panels = panels_named(titles)
    lines = -(-len(panels) // _COLUMNS)
    with plt.rc_context(_STYLE):
        figure, places = plt.subplots(lines, _COLUMNS, figsize=(15, 3.1 * lines), squeeze=False)
        for place, panel in zip(places.flat, panels, strict=False):
            _draw_panel(place, panel, _shown(_lines(panel, prometheus, span)), (span.stop - span.start) / 60)
        for place in places.flat[len(panels) :]:
            place.set_axis_off()
        figure.tight_layout(h_pad=1.6, w_pad=1.4)
        _save(figure, target)
        plt.close(figure)


def _shown(lines: Iterator[Line]) -> list[Line]:
    """Return at most `_MAX_LINES` lines, sorted by numbers in their names."""
    by_number = sorted(lines, key=lambda line: [int(n) for n in re.findall(r"\d+", line.name)])
    return by_number[:_MAX_LINES]


def _lines(panel: Panel, prometheus: str, span: TimeRange) -> Iterator[Line]:
    for query in panel.queries:
        text = _VARIABLES.sub(".+", query.expression).replace("$__rate_interval", span.window)
        for series in _query_range(prometheus, text, span):
            values = {float(at): float(value) for at, value in series["values"]}
            minutes = [(at - span.start) / 60 for at in span.times]
            yield Line(
                _name(query.legend, series["metric"]),
                minutes,
                [values.get(at, math.nan) for at in span.times],
            )


def _name(legend: str, labels: Mapping[str, str]) -> str:
    """Return a line's name without addresses, which differ in every run."""
    shown = {key: value for key, value in labels.items() if key != "instance"}
    return re.sub(r"{{(\w+)}}", lambda found: shown.get(found[1], ""), legend).strip()


def _query_range(prometheus: str, expression: str, span: TimeRange) -> list[dict[str, Any]]:
    parameters = {"query": expression, "start": span.start, "end": span.stop, "step": span.step}
    url = f"{prometheus}/api/v1/query_range?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def _draw_panel(place: Axes, panel: Panel, lines: Sequence[Line], minutes: float) -> None:
    place.set_title(panel.title, loc="left", fontsize=10.5, fontweight="bold")
    if panel.stacked and lines:
        _stack(place, lines)
    else:
        for line in lines:
            place.plot(line.minutes, line.values, linewidth=1.4, label=line.name)
    place.grid(True, linewidth=0.6)
    place.set_xlim(0, minutes)
    place.set_ylim(bottom=0, top=panel.most)
    place.set_xlabel("minutes", fontsize=8)
    written = _UNITS.get(panel.unit, "{:g}".format)
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: written(value)))
    if lines:
        columns = min(3, len(lines))
        below = {"loc": "upper left", "bbox_to_anchor": (0, -0.2), "frameon": False}
        place.legend(ncols=columns, fontsize=8, handlelength=1.2, columnspacing=1.0, **below)


def _stack(place: Axes, lines: Sequence[Line]) -> None:
    """Draw stacked areas; missing values count as zero."""
    heights = [[0.0 if math.isnan(value) else value for value in line.values] for line in lines]
    place.stackplot(lines[0].minutes, heights, labels=[line.name for line in lines], alpha=0.7)


def _save(figure: Any, target: Path) -> None:
    """Save a PNG with 64 colours, for a third of the size."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=100)
    Image.open(data).convert("RGB").quantize(64).save(target, optimize=True)
