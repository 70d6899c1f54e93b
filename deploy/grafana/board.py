"""Build panels and dashboards with Grafana's own types (grafana-foundation-sdk).

All panels are lines over time; a panel's tooltip states what it shows and what a bad value looks like.
"""

import json
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from grafana_foundation_sdk.builders import common, dashboard, prometheus, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as options
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

SOURCE = models.DataSourceRef("prometheus", "specinfer-prometheus")
"""Data source; the uid is set in provisioning/datasources."""
MODEL_FILTER = 'and on (instance) specinfer_model_info{model=~"$model"}'
PER_SECOND = "suffix:/s"
"""Grafana's unit for numbers followed by "/s"."""
_TAG = "specinfer"
_ALERTS = 'ALERTS{alertname=~"Specinfer.*", alertstate="firing"}'
_UNTYPED = {"titleFormat": "{{alertname}}", "textFormat": "{{instance}}", "step": "30s"}
"""Fields of Prometheus' annotations that the SDK lacks."""


def line(expression: str, legend: str) -> prometheus.Dataquery:
    """Return a query; `{{label}}` in its legend is a label's value."""
    query = prometheus.Dataquery().expr(expression).legend_format(legend).datasource(SOURCE)
    return query.editor_mode(QueryEditorMode.CODE).format(PromQueryFormat.TIME_SERIES).range()


def panel(
    title: str,
    shows: str,
    bad: str,
    *lines: prometheus.Dataquery,
    unit: str = "short",
    stacked: bool = False,
    most: float | None = None,
    alarm: float | None = None,
) -> timeseries.Panel:
    """Return a panel of a third of the width.

    Args:
        title: name of the panel, unique in its dashboard.
        shows: meaning of the lines, in one sentence.
        bad: a bad value, and what it means.
        lines: the queries.
        unit: Grafana's id of a unit.
        stacked: whether the lines are stacked.
        most: maximum of the axis, for example 1 for shares.
        alarm: value from which a dashed line marks values as bad.
    """
    steps = [models.Threshold(None, "green")]
    steps += [] if alarm is None else [models.Threshold(alarm, "red")]
    mode = options.StackingMode.NORMAL if stacked else options.StackingMode.NONE
    style = options.GraphTresholdsStyleMode.OFF if alarm is None else options.GraphTresholdsStyleMode.DASHED
    built = timeseries.Panel().title(title).description(f"{shows}\n\n**Bad:** {bad}").datasource(SOURCE)
    built = built.unit(unit).min(0).span(8).height(8)
    for letter, query in zip(ascii_uppercase, lines, strict=False):
        built = built.with_target(query.ref_id(letter))
    built = built.thresholds(dashboard.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps))
    built = built.thresholds_style(common.GraphThresholdsStyleConfig().mode(style))
    built = built.fill_opacity(30 if stacked else 8).show_points(options.VisibilityMode.NEVER)
    built = built.stacking(common.StackingConfig().mode(mode).group("A"))
    tooltip = common.VizTooltipOptions().mode(options.TooltipDisplayMode.MULTI)
    built = built.tooltip(tooltip.sort(options.SortOrder.DESCENDING))
    built = built.legend(common.VizLegendOptions().show_legend(show_legend=True))
    return built if most is None else built.max(most)


def variable(name: str, title: str, expression: str) -> dashboard.QueryVariable:
    """Return a variable with the values of the label `name` of an expression.

    All values are chosen by default.
    """
    query: dict[str, object] = {"query": f"query_result({expression})", "refId": "StandardVariableQuery"}
    built = dashboard.QueryVariable(name).label(title).datasource(SOURCE).query(query)
    built = built.regex(rf'/\b{name}="([^"]*)"/').multi(multi=True).include_all(include_all=True)
    built = built.current(models.VariableOption(True, ["All"], ["$__all"]))
    built = built.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
    built = built.sort(models.VariableSort.ALPHABETICAL_ASC)
    # "All" instances means only those of the chosen models
    return built if name == "instance" else built.all_value(".*")


def board(
    uid: str,
    title: str,
    description: str,
    variables: Sequence[dashboard.QueryVariable],
    rows: Mapping[str, Sequence[timeseries.Panel]],
) -> dict[str, Any]:
    """Return the JSON of a dashboard with rows of panels."""
    link = dashboard.DashboardLink("SpecInfer").type(models.DashboardLinkType.DASHBOARDS).tags([_TAG])
    alerts = dashboard.AnnotationQuery().name("Alerts").datasource(SOURCE).enable(enable=True)
    built = dashboard.Dashboard(title).uid(uid).description(description).tags([_TAG]).editable()
    built = built.tooltip(models.DashboardCursorSync.CROSSHAIR).timezone("browser").refresh("10s")
    built = built.time("now-1h", "now").link(link.include_vars(include_vars=True).keep_time(keep_time=True))
    built = built.annotation(alerts.icon_color("red").expr(_ALERTS)).variables(list(variables))
    number = 0
    for heading, panels in rows.items():
        built = built.with_row(dashboard.Row(heading).id(number := number + 1))
        for item in panels:
            built = built.with_panel(item.id(number := number + 1))
    finished: dict[str, Any] = json.loads(json.dumps(built.build(), cls=JSONEncoder))
    finished["annotations"]["list"][0] |= _UNTYPED
    return finished


MODEL = variable("model", "Model", "specinfer_model_info")
GATEWAY = variable("instance", "Gateway", f"specinfer_gateway_ready {MODEL_FILTER}")
