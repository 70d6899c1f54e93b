"""The command. Results are written after every pool; a suite that was interrupted goes on behind the last."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.suite.measure import measure_pool
from benchmarks.suite.peer import measure_assisted
from benchmarks.suite.perplexity import Scorer
from benchmarks.suite.plan import FULL, QUICK, SuitePlan
from benchmarks.suite.plots import draw_all
from benchmarks.suite.pools import ASSISTED, DEFAULT, SuitePool, suite_pools
from benchmarks.suite.report import suite_markdown
from specinfer.cli.about import about_this_run
from specinfer.cli.local.system import LocalOptions
from specinfer.cli.options.shared import Dtype, Model, Raw, Weights, check_writable
from specinfer.cli.show import console, output
from specinfer.drafters.pools import trained_for
from specinfer.errors import InvalidInputError
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.prompts import read_prompts_by_source

Report = dict[str, Any]


def suite(
    prompts: Annotated[
        Path, typer.Option(help=r"JSONL file of objects with `turns: \[text]` and, if you like, `source`.")
    ],
    out: Annotated[Path, typer.Option(help="Result, JSON; tables (.md) and pictures (.png) lie beside it.")],
    full: Annotated[bool, typer.Option("--full/--quick", help="Hours, or ten minutes.")] = False,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "bfloat16",
    weights: Weights = "auto",
    raw: Raw = False,
) -> None:
    """Measure every drafting method alone and merged, in turns with plain decoding and with sequences."""
    size = FULL if full else QUICK
    plan = SuitePlan(read_prompts_by_source(prompts, size.prompts), size, temperature, chat=not raw)
    if out.suffix == ".md":
        raise InvalidInputError("--out", str(out), "is where the tables go: name a file of JSON")
    check_writable("--out", out)
    report = load_report(out, {"model": model, "dtype": dtype, "weights": weights, "plan": plan.to_json()})
    scorer = Scorer(resolve_model(model), dtype, weights, chat=plan.chat)
    for name, pool in suite_pools(model).items():
        if name not in _measured(report):
            _measure(report, name, pool, plan, scorer)
            _store(out, report)
    ssm = trained_for(model).get("ssm")
    if ssm is not None and temperature == 0 and ASSISTED not in _measured(report):
        with console.status(ASSISTED):
            report["runs"] += measure_assisted(model, ssm, plan, scorer)
        _store(out, report)
    pictures = draw_all(out, report)
    if not pictures:
        console.print("no pictures: matplotlib is not installed")
    markdown = suite_markdown(report, pictures)
    out.with_suffix(".md").write_text(markdown)
    output.print(markdown, markup=False, highlight=False)


def load_report(out: Path, asked: Mapping[str, Any]) -> Report:
    """The report to go on with, or a new one.

    Raises:
        InvalidInputError: if another suite was begun there.
    """
    if not out.is_file() or not out.stat().st_size:
        return {"about": about_this_run(), **asked, "runs": []}
    try:
        report: Report = json.loads(out.read_text())
    except ValueError as error:
        raise InvalidInputError("out", str(out), "holds something else") from error
    if not isinstance(report, dict) or not isinstance(report.get("runs"), list):
        raise InvalidInputError("out", str(out), "holds something else")
    different = [key for key, value in asked.items() if report.get(key) != value]
    if different:
        raise InvalidInputError("out", str(out), f"holds a suite with another {', '.join(different)}")
    return report


def _store(out: Path, report: Report) -> None:
    """In the place of what is there at once, so that an interruption cannot cost what was measured."""
    whole = out.with_name(f".{out.name}.new")
    whole.write_text(json.dumps(report, indent=2) + "\n")
    whole.replace(out)


def _measured(report: Report) -> set[str]:
    return {run["pool"] for run in report["runs"]}


def _measure(report: Report, name: str, pool: SuitePool, plan: SuitePlan, scorer: Scorer) -> None:
    """Adds a pool to the report."""
    options = LocalOptions(
        model=report["model"],
        dtype=report["dtype"],
        verifier={"weights": report["weights"], **pool.verifier},
        gateway={"max-batch": str(max(plan.size.batches)), **pool.gateway},
        speculators=pool.speculators,
    )
    runs, passes = measure_pool(name, pool, options, plan, scorer)
    report["runs"] += runs
    if name == DEFAULT:
        report["passes"] = passes
