"""Write the report of `benchmarks.paper.acceptance`, with the paper's figures."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from benchmarks.tables import head, line, opening, row

WIDTHS = (1, 2, 3, 4, 5)
# SpecInfer, tables 1 and 3 (LLaMA-7B with LLaMA-68M)
TOKENS_PER_STEP = {
    "greedy": {
        "Alpaca": (2.95, 3.07, 3.21, 3.33, 3.43),
        "CP": (2.58, 3.24, 3.46, 3.59, 3.69),
        "WebQA": (2.27, 2.69, 2.86, 2.98, 3.07),
        "CIP": (2.73, 3.40, 3.62, 3.79, 3.91),
        "PIQA": (2.18, 2.80, 2.97, 3.10, 3.21),
    },
    "stochastic": {
        "Alpaca": (1.79, 2.11, 2.26, 2.32, 2.38),
        "CP": (1.69, 1.99, 2.15, 2.23, 2.28),
        "WebQA": (1.64, 1.93, 2.08, 2.15, 2.21),
        "CIP": (1.72, 2.05, 2.19, 2.28, 2.29),
        "PIQA": (1.67, 1.93, 2.08, 2.15, 2.21),
    },
}
"""Table 2: by data set, with trees of width 1 to 5."""
PAPER_SUCCESS = {
    "Alpaca": (68, 77, 81, 84, 85),
    "CP": (69, 79, 83, 86, 87),
    "WebQA": (62, 72, 77, 80, 82),
    "CIP": (70, 81, 85, 88, 89),
    "PIQA": (63, 75, 79, 83, 85),
}
PAPER_SAMPLING = {
    "Alpaca": (1.87, 2.38),
    "CP": (1.80, 2.28),
    "WebQA": (1.73, 2.21),
    "CIP": (1.79, 2.29),
    "PIQA": (1.73, 2.21),
}
SHAPES = {
    "<1,1,k,1,...>": "<1,1,{k},1,...>",
    "<k,1,1,...>": "<{k},1,1,...>",
    "best-first, 8k nodes": "best-first, {n} nodes",
}
"""Templates of result names (width k, n nodes), by row label."""


def markdown(report: dict[str, Any]) -> str:
    rest = ", bfloat16, temperature 0 and 1. The paper's figures are of LLaMA-7B with LLaMA-68M."
    lines = opening("How good the drafts are", report, rest)
    parts = [
        success_table(report),
        width_table(report),
        sampling_table(report),
        pool_table(report),
        figures(),
    ]
    return "\n".join([*lines, *(line for part in parts for line in part)]) + "\n"


def success_table(report: dict[str, Any]) -> list[str]:
    lines = ["## Success of one token by top-k, % (Table 1)", "", *head(["1", "2", "3", "4", "5"])]
    lines += [row(f"paper, greedy, {name}", values) for name, values in PAPER_SUCCESS.items()]
    for kind, by_source in report["success"].items():
        lines += [row(f"{kind}, {source}", values) for source, values in by_source.items()]
        mean = [sum(v[k] for v in by_source.values()) / len(by_source) for k in range(5)]
        lines.append(row(f"{kind}, mean of sources", mean))
    return [*lines, ""]


def width_table(report: dict[str, Any]) -> list[str]:
    """Return Table 2, for all prompts and for every source."""
    lines = ["## Tokens per step by tree width (Table 2)", ""]
    lines += ["The paper states <1,1,k,1,...>, but its width 5 fits <k,1,1,...>. ±: standard error.", ""]
    for kind, paper in TOKENS_PER_STEP.items():
        lines += [*head([str(k) for k in WIDTHS], kind)]
        lines += [row(f"paper, {name}", values) for name, values in paper.items()]
        for source in _sources(report):
            lines += [_shape_row(report, kind, shape, source) for shape in SHAPES]
        lines.append("")
    return lines


def _shape_row(report: dict[str, Any], kind: str, shape: str, source: str) -> str:
    """Return a row: a tree shape on a source, by width."""
    names = [f"{kind} {SHAPES[shape].format(k=k, n=8 * k)}" for k in WIDTHS]
    return line(f"{source}, {shape}", [_steps(report, name, source) for name in names])


def _steps(report: dict[str, Any], name: str, source: str) -> str:
    """Return a cell: tokens per step, with the error for all prompts."""
    value = f"{report['tokens_per_step'][name][source]:.2f}"
    return f"{value} ± {report['standard_error'][name]:.2f}" if source == "all" else value


def _sources(report: dict[str, Any]) -> list[str]:
    """Return the sources, "all prompts" first."""
    return list(next(iter(report["tokens_per_step"].values())))


def sampling_table(report: dict[str, Any]) -> list[str]:
    steps = report["tokens_per_step"]
    naive, multi = steps["stochastic <5,1,1,...>, naive"], steps["stochastic <5,1,1,...>"]
    pairs = {f"paper, {name}": pair for name, pair in PAPER_SAMPLING.items()}
    pairs |= {source: (naive[source], multi[source]) for source in _sources(report)}
    lines = ["## Naive and multi-step sampling, tokens per step, <5,1,1,...> (Table 3)", ""]
    lines += head(["naive", "multi-step", "ratio"])
    lines += [row(name, (*pair, pair[1] / pair[0])) for name, pair in pairs.items()]
    return [
        *lines,
        "",
        "All rules on the same trees, traversal next to them: [measured](../../docs/performance.md#traversal).",
        "",
    ]


def pool_table(report: dict[str, Any]) -> list[str]:
    """Return the table of the merged pool and its members."""
    names = [name for name in report["tokens_per_step"] if "ngram" in name or "ssm" in name]
    sources = _sources(report)
    lines = ["## Pool: tokens per step at 16 verified nodes", "", *head(sources)]
    lines += [line(name, [_steps(report, name, source) for source in sources]) for name in names]
    return [
        *lines,
        "",
        "Draws, but for `point`: what the noise favours by which the target chooses.",
        "",
    ]


def figures() -> list[str]:
    """Return the section with figures 9 and 10."""
    return [
        "## Figures 9 and 10",
        "",
        "![tokens per step, greedy](tokens-per-step-greedy.png) "
        "![tokens per step, stochastic](tokens-per-step-stochastic.png)",
        "",
        "![latency by width and batch](latency-by-width.png)",
        "",
    ]


_SIZE = (5.2, 3.4)
PAPER_BEST_WIDTHS = {1: (5,), 2: (5,), 4: (2, 3), 8: (2, 3), 16: (2, 3)}
"""Fastest tree widths by batch in the paper's figure 10."""


def plot_distribution(path: Path, per_width: Mapping[int, Sequence[float]], title: str) -> None:
    """Plot the share of prompts by tokens per step, per tree width."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for width, values in per_width.items():
        ordered = sorted(values)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=f"width {width}")
    axes.set(xlabel="tokens per step (bonus included)", ylabel="share of prompts", title=title, ylim=(0, 1))
    _finish(figure, axes, path)


def plot_latency(path: Path, by_batch: Mapping[int, Mapping[int, float]], title: str) -> None:
    """Plot milliseconds per token by tree width, per batch size."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for batch, by_width in by_batch.items():
        (curve,) = axes.plot(list(by_width), list(by_width.values()), marker=".", label=f"batch {batch}")
        best = [width for width in PAPER_BEST_WIDTHS.get(batch, ()) if width in by_width]
        axes.plot(best, [by_width[width] for width in best], "*", markersize=13, color=curve.get_color())
    axes.plot([], [], "*", color="grey", label="best in the paper")
    axes.set(xlabel="tree width", ylabel="ms per token of a request", title=title, ylim=(0, None))
    axes.set_xticks(sorted({width for by_width in by_batch.values() for width in by_width}))
    _finish(figure, axes, path)


def _finish(figure: "matplotlib.figure.Figure", axes: "matplotlib.axes.Axes", path: Path) -> None:
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
