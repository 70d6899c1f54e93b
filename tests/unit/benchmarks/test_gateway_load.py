"""The load on a gateway: a few streams on real processes, and what is made of the figures."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.gateway_load import main
from benchmarks.serving.report import markdown
from benchmarks.serving.scenarios import with_callers
from benchmarks.serving.steps import FixedStep, added_ms, read_steps, slope, spread
from benchmarks.serving.streams import Order
from benchmarks.serving.system import GATEWAY_WITHOUT_STORE, ServingSystem, Setup
from benchmarks.serving.usage import cpu_seconds, resident_mib
from tests.support.system import ascii_tokenizer


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    """Passes of a millisecond and a tokenizer that nobody has to pull."""
    directory = tmp_path_factory.mktemp("model")
    ascii_tokenizer()._fast.save(str(directory / "tokenizer.json"))
    return Setup(str(directory), step_ms=1.0, max_batch=8)


async def test_twenty_streams_get_their_tokens_and_the_added_time_is_seen(setup: Setup) -> None:
    async with ServingSystem(setup) as system:
        used = cpu_seconds(system.gateway_pid)
        many, one = await system.run([Order(20, 30, prompt_tokens=3), Order(1, 4, delay_s=0.05)])
        assert cpu_seconds(system.gateway_pid) >= used
        assert resident_mib(system.gateway_pid) > 10
        steps = system.steps()
    assert [outcome.error for outcome in (*many, *one)] == [""] * 21
    assert all(0 < outcome.replies <= 30 for outcome in many), "a reader that is late gets several at once"
    assert all(0 < outcome.ttft_s <= outcome.total_s for outcome in many)
    assert max(step.batch for step in steps) == 8, "no more run at once than the gateway was told"
    assert sum(step.batch for step in steps) == 20 * 30 + 4, "every token comes of one step"
    assert added_ms(steps, 8)["median"] > 0


async def test_the_gateway_that_writes_nothing_answers_all_the_same(setup: Setup) -> None:
    async with ServingSystem(replace(setup, module=GATEWAY_WITHOUT_STORE)) as system:
        (outcomes,) = await system.run([Order(3, 12)])
    assert [(outcome.error, outcome.replies > 0) for outcome in outcomes] == [("", True)] * 3


async def test_callers_have_keys_that_the_gateway_knows(setup: Setup, tmp_path: Path) -> None:
    keyed, keys = with_callers(setup, tmp_path / "keys", 2)
    async with ServingSystem(keyed) as system:
        first, second, nobody = await system.run([*(Order(1, 4, key=key) for key in keys), Order(1, 4)])
    assert [outcome.error for outcome in (*first, *second)] == ["", ""]
    assert nobody[0].error.startswith("UNAUTHENTICATED")


def test_steps_come_back_from_their_file(tmp_path: Path) -> None:
    steps = [FixedStep(1.5, 4, 0.02, 0.001, True), FixedStep(1.6, 4, 0.02, 0.003, False)]
    path = tmp_path / "steps"
    path.write_text("".join(step.line() for step in steps) + "1.7 4 0.0")
    assert read_steps(path) == steps, "the line that is being written does not count"
    assert read_steps(path, 1) == steps[1:]


def test_only_full_steps_without_prompts_count() -> None:
    def step(batch: int, gap_ms: float, plain: bool = True) -> FixedStep:
        return FixedStep(0.0, batch, 0.02, gap_ms / 1000, plain)

    steps = [step(4, 1), step(4, 2), step(4, 3), step(4, 0), step(4, 50, plain=False), step(3, 70)]
    found = added_ms(steps, 4)
    assert (found["count"], round(found["median"], 6)) == (3, 2.0)
    assert added_ms(steps, 5) == {}


def test_spread_and_slope() -> None:
    found = spread([float(value) for value in range(101)])
    assert (found["p25"], found["median"], found["p75"], found["p95"]) == (25, 50, 75, 95)
    assert spread([1.0]) == {}
    assert math.isclose(slope([0, 1, 2, 3], [5, 7, 9, 11]), 2)
    assert slope([1], [1]) == slope([1, 1], [1, 2]) == 0


def test_the_report_says_what_the_store_takes_and_who_waited() -> None:
    store = {"batch": 16, "share": 0.02, "shares": [0.01, 0.02, 0.04]} | {
        "cpu_share": 0.03,
        "cpu_shares": [0.03],
    }
    times = {"p25": 1.0, "median": 2.0, "p75": 3.0, "p95": 12.25}
    who = {"requests": 9, "ttft_s": times, "failed": 0}
    about = {"command": "c", "commit": "1", "time": "t", "cores": 2, "cpu": "x"}
    empty: dict[str, object] = {"streams": 1, "max_batch": 1, "failed": 0, "ttft_s": {}, "added_ms": {}}
    report = {"about": about, "step_ms": 20, "new_tokens": 8, "steps": {}, "store": store}
    report |= {"crowd": empty | {"grown_mib": {"1": 100.0}, "kib_per_stream": 30.0}}
    report |= {"fairness": {"keys": 0, "greedy": who, "modest": who}}
    text = markdown(report)
    assert "takes 2.0 % of a step at batch 16 (1.0 to 4.0 % in 3 turns)" in text
    assert "| modest: 9 requests | 2.00 [1.00, 3.00] | 12.2 | 0 |" in text


@pytest.mark.thorough
@pytest.mark.slow
def test_the_command_measures_and_reports(setup: Setup, tmp_path: Path) -> None:
    import typer

    app = typer.Typer()
    app.command()(main)
    flags = {"batches": "1,4", "streams": "12", "new-tokens": "20", "step-ms": "1", "minutes": "0.02"}
    arguments = [part for name, value in flags.items() for part in (f"--{name}", value)]
    arguments += ["--parts", "steps,crowd,soak", "--model", setup.model, "--out", str(tmp_path / "load")]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = (tmp_path / "load.md").read_text()
    for part in ("| added to a step, ms |", "KiB a stream", "MiB an hour"):
        assert part in report
