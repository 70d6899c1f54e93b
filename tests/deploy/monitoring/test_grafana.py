"""Dashboards and provisioning; Grafana's own types write the JSON, as Grafana itself is in no package registry."""

import json
import re
from typing import Any

import yaml

from deploy.grafana.board import PER_SECOND, SOURCE
from deploy.grafana.build import DASHBOARDS, DIRECTORY, path_of, text_of
from tests.deploy.monitoring.expressions import ROOT, dashboards, panels

PROVISIONING = ROOT / "deploy" / "grafana" / "provisioning"
UNITS = {"short", "s", "reqps", "cps", "bytes", "Bps", "percentunit", PER_SECOND}
"""Ids of Grafana's units that the dashboards use, checked against Grafana's list."""


def test_committed_dashboards_are_what_the_generator_writes() -> None:
    assert {path_of(dashboard) for dashboard in DASHBOARDS} == set(DIRECTORY.glob("*.json"))
    for dashboard in DASHBOARDS:
        assert path_of(dashboard).read_text() == text_of(dashboard), "run python -m deploy.grafana.build"


MAX_PANELS = 36


def test_panels_are_few() -> None:
    assert sum(len(panels(dashboard)) for dashboard in dashboards().values()) <= MAX_PANELS


def test_every_panel_says_what_it_shows_and_what_a_bad_value_looks_like() -> None:
    for dashboard in dashboards().values():
        for panel in panels(dashboard):
            shows, bad = panel["description"].split("\n\n**Bad:** ")
            assert shows.endswith("."), panel["title"]
            assert len(bad) > 20, panel["title"]
            queries = {target["refId"] for target in panel["targets"]}
            assert "" not in queries, panel["title"]
            assert len(queries) == len(panel["targets"]), panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]


def test_the_guide_names_panels_that_exist() -> None:
    """docs/operations.md writes panels in italics in its sections on dashboards and alerts."""
    text = (ROOT / "docs" / "operations.md").read_text()
    guide = "".join(
        re.findall(r"^## (?:Reading the dashboards|Alerts)$.*?(?=^## )", text, re.MULTILINE | re.DOTALL)
    )
    titles = {panel["title"] for dashboard in dashboards().values() for panel in panels(dashboard)}
    named = {" ".join(name.split()) for name in re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", guide)}
    assert named <= titles
    assert len(named) > 10


def test_panels_have_different_titles_and_do_not_overlap() -> None:
    for dashboard in dashboards().values():
        titles = [panel["title"] for panel in panels(dashboard)]
        assert len(set(titles)) == len(titles)
        assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
        taken: set[tuple[int, int]] = set()
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24, panel["title"]
            cells = {
                (place["x"] + column, place["y"] + line)
                for column in range(place["w"])
                for line in range(place["h"])
            }
            assert not cells & taken, panel["title"]
            taken |= cells


def test_expressions_use_only_variables_that_the_dashboard_has() -> None:
    for dashboard in dashboards().values():
        has = {variable["name"] for variable in dashboard["templating"]["list"]}
        text = json.dumps([panels(dashboard), dashboard["templating"]])
        used = set(re.findall(r"\$(\w+)", text)) - {"__rate_interval", "__all"}
        assert used == has | ({"model"} & has), dashboard["uid"]


def test_variables_are_those_that_were_promised() -> None:
    names = {
        uid: [variable["name"] for variable in dashboard["templating"]["list"]]
        for uid, dashboard in dashboards().items()
    }
    assert names == {
        "specinfer-http": ["instance"],
        "specinfer-overview": ["model", "instance"],
        "specinfer-speculation": ["model", "instance", "speculator"],
        "specinfer-verifier": ["model", "instance"],
    }


def test_the_provisioned_source_is_the_one_that_panels_ask() -> None:
    (source,) = provisioned("datasources")["datasources"]
    assert {"type": source["type"], "uid": source["uid"]} == {"type": SOURCE.type_val, "uid": SOURCE.uid}
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    assert source["jsonData"]["timeInterval"] == scraped["global"]["scrape_interval"]


def test_the_dashboards_are_provisioned() -> None:
    (provider,) = provisioned("dashboards")["providers"]
    assert provider["type"] == "file"
    services = yaml.safe_load((ROOT / "deploy" / "docker" / "compose.yaml").read_text())["services"]
    grafana = services["grafana"]
    assert f"../helm/specinfer/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]
    assert "../grafana/provisioning:/etc/grafana/provisioning:ro" in grafana["volumes"]
    assert provisioned("datasources")["datasources"][0]["url"].removeprefix("$") in grafana["environment"]


def provisioned(kind: str) -> Any:
    (path,) = (PROVISIONING / kind).iterdir()
    provider = yaml.safe_load(path.read_text())
    assert provider["apiVersion"] == 1
    return provider
