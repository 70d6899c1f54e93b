"""Define dashboards: variables, and rows of panels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from deploy.grafana.panel import DATASOURCE, Panel

_COLUMNS = 24
_TAG = "specinfer"
MODEL_FILTER = 'and on (instance) specinfer_model_info{model=~"$model"}'


@dataclass(frozen=True, slots=True)
class Variable:
    """A dashboard variable: the values of a label in an expression's result."""

    name: str
    title: str
    expression: str
    label: str

    def to_json(self) -> dict[str, Any]:
        """Return Grafana's variable with several choices, all by default."""
        everything = {"selected": True, "text": ["All"], "value": ["$__all"]}
        query = f"query_result({self.expression})"
        return {
            "type": "query",
            "name": self.name,
            "label": self.title,
            "datasource": DATASOURCE,
            "query": {"query": query, "refId": "StandardVariableQuery"},
            "regex": rf'/\b{self.label}="([^"]*)"/',
            "current": everything,
            "multi": True,
            "includeAll": True,
            # "All" instances means only those of the chosen models
            "allValue": None if self.name == "instance" else ".*",
            "refresh": 2,
            "sort": 1,
            "hide": 0,
        }


MODEL = Variable("model", "Model", "specinfer_model_info", "model")
GATEWAY = Variable("instance", "Gateway", f"specinfer_gateway_ready {MODEL_FILTER}", "instance")
VERIFIER = Variable("instance", "Verifier", f"specinfer_kv_cache_usage_ratio {MODEL_FILTER}", "instance")
HTTP = Variable("instance", "HTTP service", "specinfer_http_calls_running", "instance")
SPECULATOR = Variable(
    "speculator",
    "Speculator",
    'specinfer_spec_decode_num_drafts_total{instance=~"$instance"}',
    "speculator",
)


@dataclass(frozen=True, slots=True)
class PanelRow:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Dashboard:
    uid: str
    title: str
    description: str
    variables: Sequence[Variable]
    rows: Sequence[PanelRow]

    def to_json(self) -> dict[str, Any]:
        """Return the dashboard's JSON for Grafana."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.description,
            "tags": [_TAG],
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": 38,
            "timezone": "browser",
            "refresh": "10s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [_LINKS],
            "templating": {"list": [variable.to_json() for variable in self.variables]},
            "annotations": {"list": [_ALERTS]},
            "panels": list(self._panels()),
        }

    def _panels(self) -> Iterator[dict[str, Any]]:
        number, y = 1, 0
        for row in self.rows:
            yield {
                "id": number,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "gridPos": {"h": 1, "w": _COLUMNS, "x": 0, "y": y},
                "panels": [],
            }
            number, y = number + 1, y + 1
            for panel, x, line in placed(row.panels, y):
                yield panel.to_json(number, x, line)
                number += 1
                y = max(y, line + panel.height)


def placed(panels: Sequence[Panel], y: int) -> Iterator[tuple[Panel, int, int]]:
    """Yield each panel with its column and line, from left to right."""
    x = 0
    height = 0
    for panel in panels:
        if x + panel.width > _COLUMNS:
            x, y = 0, y + height
        yield panel, x, y
        x, height = x + panel.width, panel.height


_LINKS = {
    "title": "SpecInfer",
    "type": "dashboards",
    "tags": [_TAG],
    "asDropdown": False,
    "includeVars": True,
    "keepTime": True,
    "targetBlank": False,
    "icon": "",
    "tooltip": "",
    "url": None,
}
_ALERTS = {
    "name": "Alerts",
    "datasource": DATASOURCE,
    "enable": True,
    "hide": False,
    "iconColor": "red",
    "expr": 'ALERTS{alertname=~"Specinfer.*", alertstate="firing"}',
    "titleFormat": "{{alertname}}",
    "textFormat": "{{instance}}",
    "step": "30s",
}
