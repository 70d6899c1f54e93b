"""Measure figure 11 of the paper: trees and separate sequences, by batch.

Writes `benchmarks/results/figure-11.md` and `.png`; `--out` sets another path.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib
import torch
import typer
from matplotlib import pyplot as plt

from benchmarks.paper.sequences import Comparison, MeasuredSteps
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish, write
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.tree import TreeLimits

ROOT = Path(__file__).resolve().parents[2]
BATCHES = "1,2,4,8,16"
DEPTH = 8
SHAPES = {"<1,1,3,1,1,1,1,1>": ("1,1,3,1,1,1,1,1", 20), "best-first, 16 nodes": ("", 16)}
"""(expansion vector, nodes) of the paper's tree and of a best-first tree."""
MIN_PROMPTS = 5
"""Minimum prompts per batch size: one of each source."""
WARM_UP = 2
"""Number of untimed steps of the first batch."""


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    name: Annotated[str, typer.Option(help="Name in the report; empty: that of the model.")] = "",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    batches: Annotated[str, typer.Option(help="Requests at once.")] = BATCHES,
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 4,
    steps: Annotated[int, typer.Option(help="Steps of every batch.")] = 12,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "figure-11",
) -> None:
    """Measure passes over trees and over their sequences."""
    torch.set_num_threads(2)
    rows = mixed(load_prompts(prompts, per_source))
    sizes = [int(size) for size in batches.split(",")]
    picture = out.with_name(f"{out.name}.png")
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks.paper.figure11"),
        "model": name or model,
        "shapes": {},
    }
    with console.status("loading") as spinner:
        runner = load_checked(resolve_model(model), RunnerOptions())
        for shape, (expansion, nodes) in SHAPES.items():
            options = DrafterOptions(model=ssm, expansion=expansion, depth=DEPTH, min_path_probability=0.0)
            comparison = Comparison(runner, make_drafter("ssm", options), TreeLimits(nodes, DEPTH))
            comparison.run(rows[: sizes[0]], WARM_UP, MeasuredSteps())
            report["shapes"][shape] = by_batch = {}
            for size in sizes:
                spinner.update(f"{shape}, batch {size}")
                few = rows[: max(size, MIN_PROMPTS)]
                by_batch[str(size)] = comparison.measure(few, size, steps).report(size)
                plot_sequences(picture, report)
                write(out, sequences_report(report, picture.name))
    publish(out, sequences_report(report, picture.name))


def mixed(prompts: list[EvaluationPrompt]) -> list[EvaluationPrompt]:
    """Reorder prompts so that sources alternate."""
    sources = list(dict.fromkeys(prompt.source for prompt in prompts))
    queues = {source: [p for p in prompts if p.source == source] for source in sources}
    longest = max(len(queue) for queue in queues.values())
    return [queue[i] for i in range(longest) for queue in queues.values() if i < len(queue)]


matplotlib.use("Agg")


PAPER_11 = {"sequences / tree, latency per token": "on par at small batches, up to 1.8x at large ones"}
"""The paper's gains, of LLaMA-7B with LLaMA-68M."""
_SIZE = (5.6, 3.6)


def beside_paper(paper: Mapping[str, str], ours: Sequence[Sequence[float]]) -> list[str]:
    """Tabulate the paper's figures and the range of ours over batches."""
    ranges = [f"{min(values):.2f}x to {max(values):.2f}x" for values in ours]
    rows = [
        line(what, [said, our_range]) for (what, said), our_range in zip(paper.items(), ranges, strict=True)
    ]
    return [*head(["paper", "ours, by batch"]), *rows]


def sequences_report(report: dict[str, Any], picture: str) -> str:
    lines = [
        f"# Figure 11: a tree against its sequences, {report['model']}",
        "",
        f"{origin(report['about'])}; greedy, bfloat16, one process. The same drafts, verified in one pass as "
        "trees and in one pass with a row per root-to-leaf sequence, in turns; both accept the same tokens, "
        "which is checked. ± is the standard error over steps.",
        "",
    ]
    for shape, batches in report["shapes"].items():
        lines += head([f"batch {batch}" for batch in batches], shape)
        rows = {label: [cell(row) for row in batches.values()] for label, cell in _ROWS_11.items()}
        lines += [*(line(label, cells) for label, cells in rows.items()), ""]
    cells = [row for batches in report["shapes"].values() for row in batches.values()]
    lines += [*beside_paper(PAPER_11, [[row["ratio_with_drafts"] for row in cells]]), ""]
    return "\n".join([*lines, f"![tree against sequences by batch]({picture})", ""])


_ROWS_11: dict[str, Callable[[Any], str]] = {
    "tree: ms per token": lambda row: f"{row['tree_ms']:.1f}",
    "sequences: ms per token": lambda row: f"{row['sequences_ms']:.1f}",
    "drafts of both: ms per token": lambda row: f"{row['draft_ms']:.1f}",
    "sequences / tree, passes": lambda row: f"{row['pass_ratio']:.2f}x ± {row['pass_ratio_error']:.2f}",
    "sequences / tree, with drafts": lambda row: f"{row['ratio_with_drafts']:.2f}x",
    "tokens per step": lambda row: f"{row['tokens_per_step']:.2f}",
    "rows of a pass, tree / sequences": lambda each: (
        f"{each['rows']['tree']:.0f} / {each['rows']['sequences']:.0f}"
    ),
}


def plot_sequences(path: Path, report: dict[str, Any]) -> None:
    """Plot figure 11: passes per token, trees solid and sequences dashed."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for index, (shape, batches) in enumerate(report["shapes"].items()):
        places, colour = range(len(batches)), f"C{index}"
        tree = [row["tree_ms"] for row in batches.values()]
        apart = [row["sequences_ms"] for row in batches.values()]
        axes.plot(places, tree, marker="o", color=colour, label=f"{shape}: tree")
        axes.plot(places, apart, marker="^", linestyle="--", color=colour, label=f"{shape}: sequences")
    names = list(next(iter(report["shapes"].values())))
    _finish(figure, axes, path, names, f"Figure 11: {report['model']}")


def _finish(
    figure: "matplotlib.figure.Figure",
    axes: "matplotlib.axes.Axes",
    path: Path,
    batches: list[str],
    title: str,
) -> None:
    axes.set(xlabel="batch", ylabel="ms per token of a request", title=title, ylim=(0, None))
    axes.set_xticks(range(len(batches)), batches)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize="small")
    figure.savefig(path, dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    typer.run(main)
