"""Check scrape configuration, rules and alerts with the real Prometheus and its promtool."""

import asyncio
import re
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.helm.chart import render
from tests.deploy.helm.chart_cases import MONITORING
from tests.deploy.monitoring.expressions import (
    OF_PROMETHEUS,
    PROMETHEUS,
    ROOT,
    RULES,
    Expression,
    alerts,
    all_expressions,
    declared_metrics,
    rules,
    without_comparisons,
)
from tests.deploy.monitoring.observed_system import Observed, observed_system

UNIT_TESTS = ROOT / "tests" / "deploy" / "alerts_test.yml"
RUNBOOK = "docs/operations.md"
_PATIENCE_S = 150.0
needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="no prometheus and promtool: apt-get install prometheus",
)


def promtool(*arguments: str | Path) -> str:
    """Run promtool; return its output, or fail with it."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_prometheus
def test_promtool_accepts_configuration_and_rules() -> None:
    assert f"{len(RULES)} rule files found" in promtool("check", "config", PROMETHEUS / "prometheus.yml")
    promtool("check", "rules", *RULES)


@needs_prometheus
def test_every_alert_fires_when_it_should_and_is_silent_otherwise() -> None:
    promtool("test", "rules", UNIT_TESTS)


@needs_prometheus
def test_prometheus_can_read_every_expression(tmp_path: Path) -> None:
    """Checked as rules, without a running system."""
    asked = [
        {"record": "x", "expr": e.text, "labels": {"n": str(n)}} for n, e in enumerate(all_expressions())
    ]
    path = tmp_path / "expressions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": asked}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", path)


def test_scraped_names_and_ports_are_those_of_the_compose_file() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())["services"]
    for job in scrape_jobs():
        (lookup,) = job["dns_sd_configs"]
        (name,) = lookup["names"]
        assert job["job_name"] == f"specinfer-{name}"
        if name == "http":
            assert [f"127.0.0.1:{lookup['port']}:{lookup['port']}"] == services[name]["ports"]
            continue
        variable = f"SPECINFER_{name.upper()}_METRICS_PORT"
        assert services[name]["environment"][variable] == str(lookup["port"])


def test_jobs_have_the_same_names_on_kubernetes() -> None:
    objects = render(values=MONITORING)
    (monitor,) = objects.of_kind("ServiceMonitor")
    ports = {endpoint["port"] for endpoint in monitor["spec"]["endpoints"]}
    jobs = {
        service["metadata"]["labels"][monitor["spec"]["jobLabel"]]
        for service in objects.of_kind("Service")
        if ports & {port["name"] for port in service["spec"]["ports"]}
    }
    assert jobs == {job["job_name"] for job in scrape_jobs()}


def scrape_jobs() -> list[dict[str, Any]]:
    """Return the committed scrape configurations."""
    jobs: list[dict[str, Any]] = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())["scrape_configs"]
    return jobs


def test_every_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    tests = yaml.safe_load(UNIT_TESTS.read_text())["tests"]
    checks = [check for test in tests for check in test["promql_expr_test"]]
    fires, silent = set(), set()
    for check in checks:
        for name in re.findall(r'^ALERTS\{alertname="(\w+)", alertstate="firing"}$', check["expr"]):
            (fires if check["exp_samples"] else silent).add(name)
    names = {alert["alert"] for alert in alerts()}
    assert fires == names
    assert silent == names


def test_every_alert_says_what_it_is_and_links_to_its_paragraph() -> None:
    runbook = (ROOT / RUNBOOK).read_text()
    for alert in alerts():
        name = alert["alert"]
        assert alert["labels"]["severity"] in ("critical", "warning"), name
        notes = alert["annotations"]
        assert set(notes) == {"summary", "description", "runbook_url"}, name
        assert notes["runbook_url"] == f"{RUNBOOK}#{name.lower()}"
        assert f"\n### {name}\n" in runbook, name
    headings = set(re.findall(r"^### (Specinfer\w+)$", runbook, re.MULTILINE))
    assert headings == {alert["alert"] for alert in alerts()}


def test_no_expression_names_a_metric_that_nobody_declares() -> None:
    known = declared_metrics() | OF_PROMETHEUS | {rule["record"] for rule in rules() if "record" in rule}
    for expression in all_expressions():
        assert expression.metrics, expression
        assert expression.metrics <= known, expression


def test_every_recorded_series_is_used() -> None:
    used = set().union(*(expression.metrics for expression in all_expressions()))
    assert {rule["record"] for rule in rules() if "record" in rule} <= used


def test_names_are_found_in_expressions() -> None:
    """The negative control of the two tests above."""
    text = 'sum(rate(specinfer_a_total{x="specinfer_b"}[5m])) / a:specinfer_c:rate5m > process_d and up == 1'
    assert Expression("", text).metrics == {"specinfer_a_total", "a:specinfer_c:rate5m", "up", "process_d"}


def test_comparisons_are_taken_away_and_matchers_are_not() -> None:
    assert without_comparisons('sum(x{code!="A"}) / (y > 0) == 0 and z{a=~"1|2"} >= -1.5\n or w < 3') == [
        'sum(x{code!="A"}) / (y) and z{a=~"1|2"}',
        "w",
    ]


@dataclass
class Evaluation:
    """Answers of the Prometheus of a running system."""

    without_data: list[Expression] = field(default_factory=list)
    rules: list[dict[str, Any]] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    firing: list[str] = field(default_factory=list)
    metrics: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> Evaluation:
    """Send requests until every expression has data, or until the time limit."""
    return asyncio.run(_evaluate(tmp_path_factory.mktemp("observed")))


_LEARNING = "specinfer_speculator_learning_"
"""Prefix of the metrics of speculators that learn; the system of these tests has none."""


async def _evaluate(directory: Path) -> Evaluation:
    asked = [e for e in all_expressions() if not all(name.startswith(_LEARNING) for name in e.metrics)]
    evaluation = Evaluation()
    async with observed_system(directory) as system:
        evaluation.without_data = await _without_data(system, asked)
        groups = (await system.prometheus.ask("rules"))["groups"]
        evaluation.rules = [rule for group in groups for rule in group["rules"]]
        evaluation.targets = (await system.prometheus.ask("targets"))["activeTargets"]
        evaluation.metrics = set(await system.prometheus.ask("label/__name__/values"))
        firing = await system.prometheus.query('ALERTS{alertstate="firing"}')
        evaluation.firing = [sample["metric"]["alertname"] for sample in firing]
    return evaluation


async def _without_data(system: Observed, expressions: list[Expression]) -> list[Expression]:
    """Send requests until all expressions have data or the time limit; return those without data."""
    deadline = time.monotonic() + _PATIENCE_S
    while expressions and time.monotonic() < deadline:
        await system.work()
        await asyncio.sleep(0.5)
        expressions = [e for e in expressions if not await _has_data(system, e)]
    return expressions


async def _has_data(system: Observed, expression: Expression) -> bool:
    if expression.metrics == {"ALERTS"}:  # there are none while all is well; that Prometheus reads it must do
        return await system.prometheus.query(expression.text) == []
    samples = await system.prometheus.query(expression.text)
    return any(set(expression.labels) <= sample["metric"].keys() for sample in samples)


@pytest.mark.slow
@needs_prometheus
def test_every_service_is_scraped(evaluation: Evaluation) -> None:
    assert sorted(target["labels"]["job"] for target in evaluation.targets) == [
        "specinfer-gateway",
        "specinfer-http",
        "specinfer-speculator",
        "specinfer-speculator",
        "specinfer-verifier",
    ]
    assert {target["health"] for target in evaluation.targets} == {"up"}, evaluation.targets


@pytest.mark.slow
@needs_prometheus
def test_every_expression_has_data(evaluation: Evaluation) -> None:
    assert evaluation.without_data == []


@pytest.mark.slow
@needs_prometheus
def test_every_rule_is_evaluated_and_no_alert_fires(evaluation: Evaluation) -> None:
    assert {rule["health"] for rule in evaluation.rules} == {"ok"}, evaluation.rules
    assert len(evaluation.rules) == len(rules())
    assert evaluation.firing == []


@pytest.mark.slow
@needs_prometheus
def test_services_say_what_they_declare(evaluation: Evaluation) -> None:
    """Services export exactly the declared metrics with our prefix, without `_created` series."""
    ours = {name for name in evaluation.metrics if name.startswith("specinfer_")}
    assert ours <= declared_metrics()
    assert not [name for name in ours if name.endswith("_created")]
