"""Define panels: title, meaning, bad values and queries."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DATASOURCE = {"type": "prometheus", "uid": "specinfer-prometheus"}
"""Data source; the uid is set in provisioning/datasources."""
_GREEN, _RED = "green", "red"
PER_SECOND = "suffix:/s"
"""Grafana's unit for numbers followed by "/s"."""


@dataclass(frozen=True, slots=True)
class Query:
    """An expression and its legend; `{{label}}` is a label's value."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """Queries shown in one box of a dashboard."""

    title: str
    shows: str
    """Meaning of the lines, in one sentence."""
    bad: str
    """A bad value, and what it means."""
    queries: tuple[Query, ...]
    unit: str = "short"
    """Grafana's id of a unit."""
    kind: str = "timeseries"
    """Type of panel.

    timeseries: lines over time; stat: the latest number; heatmap; table: present labels.
    """
    width: int = 8
    """Width in columns; a dashboard has 24."""
    height: int = 8
    stacked: bool = False
    most: float | None = None
    """Maximum of the axis, for example 1 for shares."""
    alarm: float | None = None
    """Value from which the panel is shown in red."""
    alarm_below: bool = False
    """True if values below `alarm` are bad."""

    @property
    def description(self) -> str:
        """Text of the panel's info tooltip in Grafana."""
        return f"{self.shows}\n\n**Bad:** {self.bad}"

    def to_json(self, number: int, x: int, y: int) -> dict[str, Any]:
        """Return the panel's JSON with its upper left corner at (x, y)."""
        return {
            "id": number,
            "type": self.kind,
            "title": self.title,
            "description": self.description,
            "datasource": DATASOURCE,
            "gridPos": {"h": self.height, "w": self.width, "x": x, "y": y},
            "targets": list(self._targets()),
            "fieldConfig": {"defaults": self._field(), "overrides": []},
            "options": _OPTIONS[self.kind],
            "transparent": False,
            "transformations": [],
        }

    def _targets(self) -> Iterator[dict[str, Any]]:
        forms = {"heatmap": "heatmap", "table": "table"}
        for number, query in enumerate(self.queries):
            yield {
                "refId": chr(ord("A") + number),
                "datasource": DATASOURCE,
                "editorMode": "code",
                "expr": query.expression,
                "legendFormat": query.legend,
                "format": forms.get(self.kind, "time_series"),
                "instant": self.kind == "table",
                "range": self.kind != "table",
            }

    def _field(self) -> dict[str, Any]:
        field: dict[str, Any] = {"unit": self.unit, "min": 0, "thresholds": self._thresholds()}
        if self.most is not None:
            field["max"] = self.most
        if self.kind == "timeseries":
            field["color"] = {"mode": "palette-classic"}
            field["custom"] = self._lines()
        if self.kind == "stat":
            field["color"] = {"mode": "thresholds"}
        return field

    def _lines(self) -> dict[str, Any]:
        return {
            "drawStyle": "line",
            "lineWidth": 1,
            "fillOpacity": 30 if self.stacked else 8,
            "showPoints": "never",
            "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
            "thresholdsStyle": {"mode": "off" if self.alarm is None else "dashed"},
        }

    def _thresholds(self) -> dict[str, Any]:
        first, second = (_RED, _GREEN) if self.alarm_below else (_GREEN, _RED)
        steps: list[dict[str, Any]] = [{"color": first, "value": None}]
        if self.alarm is None:
            steps = [{"color": _GREEN, "value": None}]
        else:
            steps.append({"color": second, "value": self.alarm})
        return {"mode": "absolute", "steps": steps}


_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "values": False},
        "graphMode": "area",
        "colorMode": "value",
        "justifyMode": "auto",
        "textMode": "auto",
        "orientation": "auto",
    },
    "heatmap": {
        "calculate": False,
        "cellGap": 1,
        "color": {
            "mode": "scheme",
            "scheme": "Oranges",
            "fill": "dark-orange",
            "exponent": 0.5,
            "steps": 64,
            "reverse": False,
        },
        "yAxis": {"axisPlacement": "left"},
        "showValue": "never",
        "tooltip": {"show": True, "yHistogram": False},
        "legend": {"show": True},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    },
    "table": {"showHeader": True, "cellHeight": "sm", "frameIndex": 0},
}
