"""Figure 7 of the paper: latency per token of incremental, sequence and tree decoding at batch 1 to 16.

Writes `benchmarks/results/figure-7.md` and `.png`, or others with `--out` (a widened target).
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.drafts.prompts import load_prompts
from benchmarks.figures.latency import ByMode, LatencySetup, latencies
from benchmarks.figures.report import latency_report, plot_latency
from benchmarks.publish import RESULTS, publish, write
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import DEFAULT_MODEL

ROOT = Path(__file__).resolve().parents[2]
BATCHES = "1,2,4,8,16"


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    name: Annotated[str, typer.Option(help="What the report calls it; empty: as it is.")] = "",
    ssm: Annotated[str, typer.Option(help="The SSM, beside n-grams.")] = "ssm-smollm2-135m",
    batches: Annotated[str, typer.Option(help="Requests at once.")] = BATCHES,
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 32,
    turns: Annotated[int, typer.Option(help="Turns of every mode.")] = 3,
    sequence_length: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 5,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "figure-7",
) -> None:
    """Measure latency per token through the services."""
    found = load_prompts(prompts, per_source)
    pool = {"ngram+ssm": {"drafter": "ngram+ssm", "model": ssm}}
    sizes = [int(size) for size in batches.split(",")]
    setup = LatencySetup(model, pool, sizes, new_tokens, turns, sequence_length)
    report: dict[str, Any] = {
        "about": about_this_run(),
        "model": name or model,
        "prompts": len(found),
        "new_tokens": new_tokens,
        "turns": turns,
        "sequence_length": sequence_length,
        "batches": {},
    }
    picture = out.with_name(f"{out.name}.png")

    def keep(batch: int, by_mode: ByMode) -> None:
        report["batches"][str(batch)] = by_mode
        plot_latency(picture, report)
        write(out, latency_report(report, picture.name))

    with console.status("starting") as spinner:
        latencies(setup, found, spinner.update, keep)
    publish(out, latency_report(report, picture.name))


if __name__ == "__main__":
    typer.run(main)
