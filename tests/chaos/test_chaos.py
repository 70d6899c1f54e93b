"""A short run of `make chaos`: processes are killed, stopped and cut off while clients check every token."""

from pathlib import Path

import pytest

from tests.chaos.model_directory import write_model
from tests.chaos.run import ChaosRun, RunOptions
from tests.chaos.system import Shape

FAULTS = 20


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.native
@pytest.mark.timeout(300)
async def test_no_client_notices_twenty_faults(tmp_path: Path) -> None:
    shape = Shape(verifiers=1, speculators=("ngram",), resident=("suffix",), lease_s=0.6)
    options = RunOptions(
        FAULTS, seed=28, clients=12, interval_s=0.6, orders=24, longest=160, patience_s=120, shape=shape
    )
    lines: list[str] = []
    report = await ChaosRun(options, lines.append).run(write_model(tmp_path / "model"), tmp_path)
    assert report.good, "\n".join([*lines, *report.problems[:10], *logs(tmp_path)])
    assert report.faults.total() == FAULTS
    assert report.requests >= options.clients, "hardly anything was going on"


def logs(directory: Path) -> list[str]:
    """Return the ends of all logs."""
    return [f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(directory.glob("*.log"))]
