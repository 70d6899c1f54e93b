"""Collect the PromQL expressions of the deployment: panels, variables, recording rules and alerts."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from gateway.observability.metrics import GatewayMetrics
from http_svc.entry.middleware import HttpMetrics
from specinfer.service.metrics import service_registry
from speculator_svc.metrics import SpeculatorMetrics
from tests.support.idle_learner import idle_learner
from verifier_svc.metrics import VerifierMetrics

ROOT = Path(__file__).resolve().parents[3]
PROMETHEUS = ROOT / "deploy" / "prometheus"
CHART = ROOT / "deploy" / "helm" / "specinfer"
DASHBOARDS = CHART / "dashboards"
RULES = sorted((CHART / "rules").glob("*.yml"))
OF_PROMETHEUS = {"up", "ALERTS"}
"""Series that Prometheus itself creates."""
_VARIABLES = {"$__rate_interval": "1m", "$instance": ".+", "$speculator": ".+", "$model": ".+"}
_COMPARISON = re.compile(r"\s*(?:==|!=|>=|<=|>|<)\s*-?[\d.]+")
_NAME = re.compile(r"(?<![\w:\"])(?:\w+:)?(?:specinfer|process)_\w+(?::\w+)?|\bup(?=[{\s])|\bALERTS\b")
_LEGEND_LABEL = re.compile(r"{{(\w+)}}")


@dataclass(frozen=True, slots=True)
class Expression:
    """A PromQL expression."""

    where: str
    text: str
    """The expression with values for Grafana's variables, without an alert's comparisons."""
    labels: tuple[str, ...] = ()
    """Labels that the legend uses, so that the results must have them."""

    @property
    def metrics(self) -> set[str]:
        """Return the metric names in the expression."""
        return set(_NAME.findall(self.text))


def without_comparisons(expression: str) -> list[str]:
    """Return the operands of an alert's comparisons with numbers, which have data even if the alert does not fire.

    Operands joined by `and` stay one expression, which needs data of both; operands joined by `or` are separate.
    """
    return [part.strip() for part in re.split(r"\s+or\s+", _COMPARISON.sub("", expression))]


def dashboards() -> dict[str, dict[str, Any]]:
    """Return the committed dashboards by uid."""
    boards = [json.loads(path.read_text()) for path in sorted(DASHBOARDS.glob("*.json"))]
    return {dashboard["uid"]: dashboard for dashboard in boards}


def panels(dashboard: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the panels of a dashboard, without row headings."""
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def rules() -> list[dict[str, Any]]:
    """Return all recording rules and alerts."""
    groups = [group for path in RULES for group in yaml.safe_load(path.read_text())["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def declared_metrics() -> set[str]:
    """Return the names of all metrics that services declare, as exported."""
    registries = service_registry(), CollectorRegistry(), CollectorRegistry(), CollectorRegistry()
    GatewayMetrics(registries[0])
    VerifierMetrics(registries[1])
    SpeculatorMetrics(registries[2], ["ngram"], idle_learner())
    HttpMetrics(registries[3])
    declared = {name for registry in registries for name in registry._names_to_collectors}
    of_process = {sample.name for family in registries[0].collect() for sample in family.samples}
    return declared | of_process


def all_expressions() -> list[Expression]:
    return [*_of_dashboards(), *_of_rules()]


def _of_dashboards() -> Iterator[Expression]:
    for uid, dashboard in dashboards().items():
        for variable in dashboard["templating"]["list"]:
            query = variable["query"]["query"].removeprefix("query_result(").removesuffix(")")
            (label,) = re.findall(r"\\b(\w+)=", variable["regex"])
            yield Expression(f"{uid}: ${variable['name']}", _filled(query), (label,))
        for annotation in dashboard["annotations"]["list"]:
            yield Expression(f"{uid}: {annotation['name']}", annotation["expr"])
        for panel in panels(dashboard):
            for target in panel["targets"]:
                labels = tuple(_LEGEND_LABEL.findall(target["legendFormat"]))
                yield Expression(f"{uid}: {panel['title']}", _filled(target["expr"]), labels)


def _of_rules() -> Iterator[Expression]:
    for rule in rules():
        if "alert" in rule:
            for part in without_comparisons(rule["expr"]):
                yield Expression(rule["alert"], part)
        else:
            yield Expression(rule["record"], rule["expr"])


def _filled(expression: str) -> str:
    for variable, value in _VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression
