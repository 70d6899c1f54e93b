"""The fuzzer's command: two parts of a campaign are one."""

from json import loads
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.fuzz import main, markdown, together
from tests.fuzz.campaign import Campaign

SEED = "7"


@pytest.mark.thorough
def test_a_second_part_goes_on_after_the_first_ones_episodes(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(main)
    report = tmp_path / "fuzz.json"
    for _ in range(2):
        arguments = [
            "--door",
            "draft-request",
            "--messages",
            "60",
            "--seed",
            SEED,
            "--json",
            str(report),
            "--add",
        ]
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    (door,) = loads(report.read_text())["doors"]
    whole = Campaign("draft-request", int(SEED))
    whole.run(120)
    assert (door["messages"], door["episodes"], door["refused"]) == (120, 4, whole.refused)
    assert door["parts"] == 2
    assert "| draft-request | 120 | 4 | 2 |" in report.with_suffix(".md").read_text()
    other = CliRunner().invoke(app, [*arguments, "--seed", "8"])
    assert other.exit_code == 2
    assert "8: the report has 7" in other.output


def test_of_parts_the_worst_counts() -> None:
    first = Campaign("generate", 1).report() | {
        "slowest_episode_s": 2.0,
        "rss_growth_mib": 0.5,
        "rss_mib": [9.0],
    }
    second = first | {"slowest_episode_s": 1.0, "rss_growth_mib": 3.0, "rss_mib": [8.0], "findings": []}
    both = together(first, second)
    assert (both["slowest_episode_s"], both["rss_growth_mib"], both["rss_mib"]) == (2.0, 3.0, [9.0, 8.0])
    about = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
    assert "| 2000 | 9 | +3.0 |" in markdown({"about": about, "seed": 1, "doors": [both]})
