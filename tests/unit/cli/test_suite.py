"""`specinfer bench suite` and `bench compare`: what is measured, resumed, and called a difference."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from specinfer.cli import suite as under_test
from specinfer.cli.bench import BenchPlan, Run
from specinfer.cli.differences import compare, differences, read_runs
from specinfer.cli.suite import DEFAULT, MERGED, UNTRAINED, suite, suite_pools
from specinfer.errors import InvalidInputError, UnavailableError
from specinfer.hub import DEFAULT_MODEL


def run(mode: str, batch: int, rate: float = 100.0, error: float | None = 2.0) -> Run:
    times = {"p50": 1.0, "p90": 2.0, "p99": 3.0}
    return Run(
        *(
            mode,
            batch,
            8,
            64,
            1.0,
            4,
            rate,
            error,
            rate / 100,
            error and error / 100,
            40,
            1.6,
            0.3,
            True,
            1.0,
        ),
        *(times, times, {}),
    )


def result(path: Path, *runs: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"runs": runs}))
    return path


def test_every_method_is_there_alone_and_in_the_merged_pool() -> None:
    pools = suite_pools(DEFAULT_MODEL)
    alone = [name for name in pools if name not in (DEFAULT, MERGED)]
    assert {*UNTRAINED, "ssm"} <= set(alone)
    assert list(pools[MERGED]) == alone
    assert pools["ssm"]["ssm"]["model"] == "ssm-smollm2-135m"
    assert [name for name in suite_pools("other") if name not in (DEFAULT, MERGED)] == list(UNTRAINED)


def test_a_suite_that_was_interrupted_goes_on_and_another_plan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "suite.json"
    prompts.write_text(json.dumps({"turns": ["hi"]}))
    measured: list[str] = []

    def measure(name: str, _: Any, plan: BenchPlan) -> list[Run]:
        if name == "recycling" and "recycling" not in failed:
            failed.append(name)
            raise UnavailableError("the machine was switched off")
        measured.append(name)
        return [run(mode, batch) for batch in plan.batches for mode in plan.modes]

    failed: list[str] = []
    monkeypatch.setattr(under_test, "_measure", measure)
    with pytest.raises(UnavailableError):
        suite(prompts, out, model="other")
    suite(prompts, out, model="other")
    assert measured == [*UNTRAINED, DEFAULT, MERGED], "nothing twice"
    text = out.with_suffix(".md").read_text()
    assert "| recycling | 100 | 100 | 1.00x ± 0.02 | 1.60 | 1.00x ± 0.02 | 1.0 / 3.0 |" in text
    assert text.count("## Batch") == 2
    with pytest.raises(InvalidInputError, match="holds a suite with another plan"):
        suite(prompts, out, model="other", temperature=0.8)
    out.write_text("not JSON")
    with pytest.raises(InvalidInputError, match="holds something else"):
        suite(prompts, out, model="other")


def test_only_what_is_beyond_the_noise_is_called_a_difference(tmp_path: Path) -> None:
    def rows(rate: float, error: float | None) -> Iterator[dict[str, Any]]:
        yield {"pool": "p", **asdict(run("tree", 1, rate, error))}

    def verdict(second: float, error: float | None = 2.0) -> str:
        first = read_runs(result(tmp_path / "a.json", *rows(100.0, 2.0)))
        return differences(first, read_runs(result(tmp_path / "b.json", *rows(second, error))))[0].verdict

    # the ratio's standard error is 0.028 here
    assert [verdict(rate) for rate in (100.0, 105.0, 107.0, 93.0)] == [
        *("within noise", "within noise"),
        *("faster", "slower"),
    ]
    assert verdict(200.0, None) == "noise unknown"


def test_results_that_cannot_be_compared_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = result(tmp_path / "a.json", asdict(run("tree", 1)), asdict(run("tree", 4)))
    b = result(tmp_path / "b.json", asdict(run("tree", 1)))
    compare(a, b)
    said = "".join(capsys.readouterr().out.split())  # a terminal as narrow as that of tests breaks lines
    assert f"notin{b}:tree,batch4" in said
    with pytest.raises(InvalidInputError, match="no run in common"):
        compare(a, result(tmp_path / "c.json", asdict(run("sequence", 1))))
    (tmp_path / "d.json").write_text("[1]")
    for name, why in (("d.json", "is no result"), ("none.json", "No such file")):
        with pytest.raises(InvalidInputError, match=why):
            compare(a, tmp_path / name)
