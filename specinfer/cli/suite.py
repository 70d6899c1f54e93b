"""`specinfer bench suite`: every drafting method alone, the default pool, and all of them merged.

Each pool is a local system of its own; in it the modes take turns as in `specinfer bench`, so gains are over
plain decoding of the same minutes. Results are written after every pool, and a suite that was interrupted
goes on behind the last one.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from specinfer.cli.about import about_this_run
from specinfer.cli.bench import BenchPlan, Run, run_bench
from specinfer.cli.connection import Connection
from specinfer.cli.local import LocalOptions
from specinfer.cli.options import Dtype, Model, Weights, check_writable
from specinfer.cli.running import local_system
from specinfer.cli.show import output, progress_bar
from specinfer.cli.speculators import Flags, default_speculators, trained_for
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL
from specinfer.prompts import read_prompts

UNTRAINED = ("ngram", "suffix", "recycling", "lookahead")
"""Drafters that need neither training nor a text to search."""
DEFAULT, MERGED = "default pool", "all merged"
COLUMNS = (
    *("pool", "plain, tokens/s", "tree, tokens/s", "over plain", "tokens a step", "sequence over plain"),
    "TPOT p50 / p99, ms",
)
Pool = Mapping[str, Flags]


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    prompts: int
    new_tokens: int
    batches: tuple[int, ...]


QUICK, FULL = Size(8, 48, (1, 4)), Size(40, 128, (1, 4, 16))
"""Quick: ten minutes on two cores with the default model."""


def suite_pools(model: str) -> dict[str, Pool]:
    """The pools by name: each method alone, the usual pool, everybody."""
    alone: dict[str, Flags] = {name: {"drafter": name} for name in UNTRAINED}
    alone |= {kind: {"drafter": kind, "model": trained} for kind, trained in trained_for(model).items()}
    pools: dict[str, Pool] = {name: {name: flags} for name, flags in alone.items()}
    return {**pools, DEFAULT: default_speculators(model), MERGED: alone}


def suite(
    prompts: Annotated[Path, typer.Option(help=r"JSONL file of objects with `turns: \[text]`.")],
    out: Annotated[Path, typer.Option(help="Result, JSON; the table lies beside it as .md.")],
    full: Annotated[bool, typer.Option("--full/--quick", help="Hours, or ten minutes.")] = False,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "auto",
) -> None:
    """Measure every drafting method alone and merged, in turns with plain decoding and with sequences."""
    size = FULL if full else QUICK
    texts = read_prompts(prompts, size.prompts)
    plan = BenchPlan(texts, ("incremental", "sequence", "tree"), size.batches, size.new_tokens, temperature)
    check_writable("--out", out)
    asked = {"model": model, "dtype": dtype, "weights": weights, "plan": json.loads(json.dumps(asdict(plan)))}
    report = load_report(out, asked)
    for name, pool in suite_pools(model).items():
        if any(run["pool"] == name for run in report["runs"]):
            continue
        gateway = {"max-batch": str(max(size.batches))}
        options = LocalOptions(
            model=model, dtype=dtype, verifier={"weights": weights}, gateway=gateway, speculators=pool
        )
        report["runs"] += [{"pool": name, **asdict(run)} for run in _measure(name, options, plan)]
        out.write_text(json.dumps(report, indent=2) + "\n")
    markdown = suite_markdown(report)
    out.with_suffix(".md").write_text(markdown)
    output.print(markdown, markup=False, highlight=False)


def load_report(out: Path, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The report to go on with, or a new one.

    Raises:
        InvalidInputError: if another suite was begun there.
    """
    if not out.is_file() or not out.stat().st_size:
        return {"about": about_this_run(), **asked, "runs": []}
    try:
        report: dict[str, Any] = json.loads(out.read_text())
    except ValueError as error:
        raise InvalidInputError("out", str(out), "holds something else") from error
    different = [key for key, value in asked.items() if report.get(key) != value]
    if different:
        raise InvalidInputError("out", str(out), f"holds a suite with another {', '.join(different)}")
    return report


def _measure(name: str, options: LocalOptions, plan: BenchPlan) -> list[Run]:
    with local_system(options) as system, progress_bar() as bar:
        task = bar.add_task(name, total=len(plan.prompts) * len(plan.modes) * len(plan.batches))
        return asyncio.run(
            _bench(
                system.address,
                plan,
                lambda label: bar.update(task, advance=1, description=f"{name}: {label}"),
            )
        )


async def _bench(address: str, plan: BenchPlan, advance: Any) -> list[Run]:
    async with Connection(address).client() as client:
        return await run_bench(client, plan, advance)


def suite_markdown(report: Mapping[str, Any]) -> str:
    """The report as a table per batch size."""
    about, plan = report["about"], report["plan"]
    origin = f"{about['time']}, {about['cores']} cores of {about['cpu']}"
    target = f"{report['model']} in {report['dtype']}, weights {report['weights']}"
    work = f"{len(plan['prompts'])} prompts, {plan['max_new_tokens']} new tokens each"
    lines = [
        "# Drafting methods side by side, through the services",
        "",
        f"`{about['command']}` at {about['commit']}, {origin}; {target}, {work}, temperature "
        f"{plan['temperature']:g}. Modes take turns; gains are over plain decoding in the same turns, ± "
        "their standard error.",
        "",
    ]
    for batch in plan["batches"]:
        lines += [*_batch_table(batch, [run for run in report["runs"] if run["batch"] == batch]), ""]
    return "\n".join(lines)


def _batch_table(batch: int, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"## Batch {batch}", "", f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    for pool in dict.fromkeys(run["pool"] for run in runs):
        mode = {run["mode"]: run for run in runs if run["pool"] == pool}
        plain, tree, sequence = mode["incremental"], mode["tree"], mode["sequence"]
        cells = [
            pool,
            f"{plain['tokens_per_second']:.0f}",
            f"{tree['tokens_per_second']:.0f}",
            _gain(tree),
            f"{tree['acceptance_length']:.2f}",
            _gain(sequence),
            f"{tree['tpot_ms']['p50']:.1f} / {tree['tpot_ms']['p99']:.1f}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def _gain(run: Mapping[str, Any]) -> str:
    error = "" if run["speedup_error"] is None else f" ± {run['speedup_error']:.2f}"
    return f"{run['speedup']:.2f}x{error}"
