"""The time of a step by part, computed from counters; benchmarks are run by name."""

import subprocess
import sys

import pytest

from benchmarks.step.ledger import (
    IN_PROCESS,
    beside_pass,
    hop,
    markdown,
    rates,
    tokens_per_second,
    used,
)
from specinfer.system.turns import ratios

ALONE = {"wall": 2.0, "steps": 1000.0, "tokens": 1000.0, "pass": 1.5, "pass_cpu": 2.5, "cpu.process": 3.0}
SERVED = {
    "wall": 4.0,
    "steps": 1000.0,
    "tokens": 1000.0,
    "pass": 1.6,
    "verifier_step": 2.0,
    "phase.draft": 0.1,
    "phase.merge": 0.1,
    "phase.verify": 3.0,
    "phase.commit": 0.2,
    "cpu.gateway": 0.8,
    "cpu.verifier": 3.2,
    "sleeps.gateway": 6000.0,
    "sleeps.verifier": 9000.0,
    "messages.verifier": 2000.0,
    "messages.clients": 990.0,
    "redis.evalsha": 1001.0,
    "redis.get": 20.0,
    "redis_seconds": 0.03,
}


def test_the_difference_of_two_readings_is_what_was_used() -> None:
    assert used({"a": 1.0}, {"a": 3.5, "new": 2.0}) == {"a": 2.5, "new": 2.0}


def test_a_step_is_the_sum_of_its_parts() -> None:
    assert tokens_per_second([ALONE, SERVED]) == pytest.approx(2000 / 6)
    assert ratios(rates([SERVED, SERVED]), rates([ALONE, SERVED])) == [0.5, 1.0]
    assert beside_pass([ALONE]) == pytest.approx(0.5)
    assert hop([SERVED]) == pytest.approx(1.0)
    assert hop([ALONE]) is None


def test_the_report_has_a_line_for_every_part_that_a_system_has() -> None:
    about = {"command": "c", "commit": "abc", "time": "t", "cores": 2, "cpu": "x"}
    report = {"about": about, "new_tokens": 8, "commits": {"services": "abc"}}
    text = markdown(report | {"batches": {"1": {IN_PROCESS: [ALONE], "services": [SERVED]}}})
    cells = {
        row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in text.split("\n") if row[:1] == "|"
    }
    assert [cell.strip(" |") for cell in cells["CPU: gateway"]] == ["", "0.800"]
    assert [cell.strip(" |") for cell in cells["CPU: verifier beside the pass of one process"]] == [
        "",
        "0.700",
    ]
    assert [cell.strip(" |") for cell in cells["CPU: `LLM` beside the pass"]] == ["0.500", ""]
    assert [cell.strip(" |") for cell in cells["phase verify"]] == ["", "3.00"]
    assert [cell.strip(" |") for cell in cells["Redis commands a step: evalsha"]] == ["", "1.00"]
    assert "Redis commands a step: get" not in cells, "what a step does not do is no part of it"
    assert "0.50x" in cells[f"speed over {IN_PROCESS} (median of turns)"][1]


def test_benchmarks_run_by_name() -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    shown = run("step", "--help")
    assert shown.returncode == 0, shown.stderr
    assert "--before" in shown.stdout
    unknown = run("nothing")
    assert unknown.returncode == 1
    assert "NAME is one of decoding," in unknown.stderr
