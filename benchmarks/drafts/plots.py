"""The figures: 9 (tokens per step, as distributions over prompts) and 10 (latency by width and batch)."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

_SIZE = (5.2, 3.4)
PAPER_BEST_WIDTHS = {1: (5,), 2: (5,), 4: (2, 3), 8: (2, 3), 16: (2, 3)}
"""Figure 10 of the paper, by batch: the tree widths that were fastest (LLaMA-7B with LLaMA-68M on a GPU)."""


def plot_distribution(path: Path, per_width: Mapping[int, Sequence[float]], title: str) -> None:
    """Share of prompts with at most so many tokens per step, one line per tree width."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for width, values in per_width.items():
        ordered = sorted(values)
        shares = [(i + 1) / len(ordered) for i in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=f"width {width}")
    axes.set(xlabel="tokens per step (bonus included)", ylabel="share of prompts", title=title, ylim=(0, 1))
    _finish(figure, axes, path)


def plot_latency(path: Path, by_batch: Mapping[int, Mapping[int, float]], title: str) -> None:
    """Milliseconds per token of a request by tree width, one line per batch size; stars mark the widths that
    were fastest in the paper."""
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
