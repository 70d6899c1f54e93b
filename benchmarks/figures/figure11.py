"""Figure 11 of the paper: trees verified as trees against their sequences verified separately, by batch.

Writes `benchmarks/results/figure-11.md` and `.png`, or others with `--out` (a widened target).
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.figures.report import plot_sequences, sequences_report
from benchmarks.figures.sequences import Comparison, MeasuredSteps
from benchmarks.publish import RESULTS, publish, write
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.tree import TreeLimits

ROOT = Path(__file__).resolve().parents[2]
BATCHES = "1,2,4,8,16"
DEPTH = 8
SHAPES = {"<1,1,3,1,1,1,1,1>": ("1,1,3,1,1,1,1,1", 20), "best-first, 16 nodes": ("", 16)}
"""The paper's tree, and one of our own kind: expansion vector and nodes."""
LEAST_PROMPTS = 5
"""Least number of prompts for every batch size, in batches one after another: one of each source."""
WARM_UP = 2
"""Steps of the first batch that do not count."""


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    name: Annotated[str, typer.Option(help="What the report calls it; empty: as it is.")] = "",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    batches: Annotated[str, typer.Option(help="Requests at once.")] = BATCHES,
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of every batch.")] = 12,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "figure-11",
) -> None:
    """Measure passes over trees and over their sequences."""
    torch.set_num_threads(2)
    found = mixed(load_prompts(prompts, per_source))
    sizes = [int(size) for size in batches.split(",")]
    picture = out.with_name(f"{out.name}.png")
    report: dict[str, Any] = {"about": about_this_run(), "model": name or model, "shapes": {}}
    with console.status("loading") as spinner:
        runner = ModelRunner.load(resolve_model(model), RunnerOptions())
        for shape, (expansion, nodes) in SHAPES.items():
            options = DrafterOptions(model=ssm, expansion=expansion, depth=DEPTH, min_path_probability=0.0)
            comparison = Comparison(runner, make_drafter("ssm", options), TreeLimits(nodes, DEPTH))
            comparison.run(found[: sizes[0]], WARM_UP, MeasuredSteps())
            report["shapes"][shape] = by_batch = {}
            for size in sizes:
                spinner.update(f"{shape}, batch {size}")
                few = found[: max(size, LEAST_PROMPTS)]
                by_batch[str(size)] = comparison.measure(few, size, steps).report(size)
                plot_sequences(picture, report)
                write(out, sequences_report(report, picture.name))
    publish(out, sequences_report(report, picture.name))


def mixed(prompts: list[EvaluationPrompt]) -> list[EvaluationPrompt]:
    """The prompts with their sources in turns."""
    sources = list(dict.fromkeys(prompt.source for prompt in prompts))
    queues = {source: [p for p in prompts if p.source == source] for source in sources}
    longest = max(len(queue) for queue in queues.values())
    return [queue[i] for i in range(longest) for queue in queues.values() if i < len(queue)]


if __name__ == "__main__":
    typer.run(main)
