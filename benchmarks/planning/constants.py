"""Measure the worth of the planner's constants in a simulation: each halved and doubled, everything else as it is.

    python -m benchmarks.planning.constants [--runs 6] [--steps 500]

Writes `benchmarks/results/planner-constants.md`: tokens per simulated second over those of the
constants as they are, averaged over batch sizes, with the standard error over runs.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import sqrt
from statistics import mean, stdev
from types import ModuleType
from typing import Annotated, Any

import typer

from benchmarks.planning.world import World
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.planning import acceptance, by_nodes, calibration, latency, pass_times, trials

CONSTANTS: tuple[tuple[ModuleType, str], ...] = (
    *(
        (acceptance, name)
        for name in ("_REQUEST_MEMORY", "_PRIOR", "_TEXT", "_HOPE", "_RECORDS", "_SHARES_KNOWN")
    ),
    *((by_nodes, name) for name in ("_FIRST", "_PRIOR", "_MEMORY")),
    *((calibration, name) for name in ("_TRUST", "_MEMORY")),
    *((pass_times, name) for name in ("_PACE", "_LASTING", "_KNOWN", "_PER_OCTAVE")),
    *((latency, name) for name in ("_COLD", "_PART")),
    *((trials, name) for name in ("_MARGIN", "_TIMES", "_CREDIT", "_CREDIT_SHARE", "_SHARE", "_NEARNESS")),
    *((trials, name) for name in ("_TREES", "_LEAST")),
    *((pass_times, name) for name in ("_WINDOW", "_FEW")),
)
BATCHES = (1, 4, 16)


def main(
    runs: Annotated[int, typer.Option(help="Runs of each variant, with texts and noise of their own.")] = 6,
    steps: Annotated[int, typer.Option(help="Steps of one run and batch size.")] = 500,
) -> None:
    """Halve and double each constant of the planner."""
    usual = [speeds(run, steps) for run in range(runs)]
    plain = [speeds(run, steps, speculates=False) for run in range(runs)]
    rows: dict[str, dict[str, Any]] = {"(as they are, over plain decoding)": compared(usual, plain)}
    for module, name in CONSTANTS:
        value = getattr(module, name)
        for other in variants(name, value):
            with changed(module, name, other):
                found = [speeds(run, steps) for run in range(runs)]
            label = f"{module.__name__.rpartition('.')[2]}.{name}"
            rows[f"{label} {value:g} -> {other:g}"] = compared(found, usual)
    report = {
        "about": about_this_run(),
        "runs": runs,
        "steps": steps,
        "rows": rows,
    }
    publish(RESULTS / "planner-constants", as_markdown(report))


def variants(name: str, value: float) -> tuple[float, float]:
    """Half and twice of it; of what lies near 1, half and twice of how far it is from 1."""
    if name == "_MARGIN":
        return 1 - (1 - value) / 2, 1 - 2 * (1 - value)
    if isinstance(value, int):
        return max(value // 2, 1), 2 * value
    return value / 2, 2 * value


@contextmanager
def changed(module: ModuleType, name: str, value: float) -> Iterator[None]:
    """A module with another constant."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


def speeds(run: int, steps: int, speculates: bool = True) -> list[float]:
    """Tokens per simulated second by batch size."""
    fixed = None if speculates else 0
    return [World(1000 * run + batch, batch, fixed).run(steps) for batch in BATCHES]


def compared(found: list[list[float]], usual: list[list[float]]) -> dict[str, Any]:
    """Ratios of speeds by batch size, and their mean with the standard error over runs."""
    ratios = [
        [a / b for a, b in zip(ours, theirs, strict=True)] for ours, theirs in zip(found, usual, strict=True)
    ]
    means = [mean(run) for run in ratios]
    error = stdev(means) / sqrt(len(means)) if len(means) > 1 else 0.0
    by_batch = [mean(run[i] for run in ratios) for i in range(len(BATCHES))]
    return {"ratio": mean(means), "error": error, "by_batch": by_batch}


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table."""
    lines = [
        "# What the planner's constants are worth",
        "",
        f"{origin(report['about'])}; {report['runs']} runs of {report['steps']} steps at each batch size, "
        f"simulated (`benchmarks/planning/world.py`). Speed over that with the constants as they are; "
        "± is the standard error over runs.",
        "",
        *head(["mean", *(f"batch {batch}" for batch in BATCHES)], "constant"),
    ]
    for label, row in report["rows"].items():
        cells = [f"{row['ratio']:.3f} ± {row['error']:.3f}", *(f"{ratio:.3f}" for ratio in row["by_batch"])]
        lines.append(line(label, cells))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
