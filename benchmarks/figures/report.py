"""The reports of figures 7 and 11 in Markdown, and their plots; the paper's figures beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from benchmarks.figures.latency import INCREMENTAL, SEQUENCE, TREE
from benchmarks.tables import head, line, origin

PAPER_7 = {
    "tree over incremental": "1.5x to 2.5x on one node, 2.4x to 2.8x on several",
    "tree over sequence": "1.2x to 1.5x",
}
"""Gains of the paper for LLaMA-7B with LLaMA-68M, and for larger models on several devices; batch 1 to 16."""
PAPER_11 = {"sequences / tree, latency per token": "on par at small batches, up to 1.8x at large ones"}
"""Gains of the paper for LLaMA-7B with LLaMA-68M."""
_SIZE = (5.6, 3.6)


def latency_report(report: dict[str, Any], picture: str) -> str:
    """Figure 7."""
    batches: dict[str, dict[str, Any]] = report["batches"]
    lines = [
        f"# Figure 7: latency per token, {report['model']}",
        "",
        " ".join(
            [
                f"{origin(report['about'])}; {report['prompts']} evaluation prompts,",
                f"{report['new_tokens']} new tokens at most, greedy, bfloat16, through the services;",
                f"{report['turns']} turns, in brackets their range; gains are over incremental",
                "decoding in the same turn, ± their standard error.",
                f"Sequences of {report['sequence_length']} tokens.",
                "Adaptive: where drafts do not pay the gateway decodes plainly.",
            ]
        ),
        "",
        *head([f"batch {batch}" for batch in batches], "ms per token of a request"),
    ]
    modes = (INCREMENTAL, SEQUENCE, TREE)
    lines += [line(mode, [_latency(each[mode]) for each in batches.values()]) for mode in modes]
    gains = {mode: [_gain(each[mode]) for each in batches.values()] for mode in modes[1:]}
    lines += [line(f"{mode}: gain", cells) for mode, cells in gains.items()]
    over = [f"{each[SEQUENCE]['mean_ms'] / each[TREE]['mean_ms']:.2f}x" for each in batches.values()]
    tokens = [f"{each[TREE]['tokens_per_step']:.2f}" for each in batches.values()]
    lines += [line("tree over sequence", over), line("tree: tokens per step", tokens), ""]
    gained = [each[TREE]["gain"] for each in batches.values()]
    apart = [each[SEQUENCE]["mean_ms"] / each[TREE]["mean_ms"] for each in batches.values()]
    lines += beside_paper(PAPER_7, [gained, apart])
    return "\n".join([*lines, "", f"![latency per token by batch]({picture})", ""])


def beside_paper(paper: Mapping[str, str], ours: Sequence[Sequence[float]]) -> list[str]:
    """The paper's figures, and the least and the largest of ours over all batches."""
    ranges = [f"{min(values):.2f}x to {max(values):.2f}x" for values in ours]
    rows = [line(what, [said, own]) for (what, said), own in zip(paper.items(), ranges, strict=True)]
    return [*head(["paper", "ours, by batch"]), *rows]


def _latency(cell: dict[str, Any]) -> str:
    turns = cell["latency_ms"]
    return f"{cell['mean_ms']:.1f} [{min(turns):.1f}, {max(turns):.1f}]"


def _gain(cell: dict[str, Any]) -> str:
    return f"{cell['gain']:.2f}x ± {cell['gain_error']:.2f}"


def sequences_report(report: dict[str, Any], picture: str) -> str:
    """Figure 11."""
    lines = [
        f"# Figure 11: a tree against its sequences, {report['model']}",
        "",
        f"{origin(report['about'])}; greedy, bfloat16, one process. The same drafts, verified in one pass as "
        "trees and in one pass with a row per root-to-leaf sequence, in turns; both accept the same tokens, "
        "which is checked. ± is the standard error over steps.",
        "",
        *([f"**{report['remark']}**", ""] if "remark" in report else []),
    ]
    for shape, batches in report["shapes"].items():
        lines += head([f"batch {batch}" for batch in batches], shape)
        rows = {label: [cell(each) for each in batches.values()] for label, cell in _ROWS_11.items()}
        lines += [*(line(label, cells) for label, cells in rows.items()), ""]
    cells = [each for batches in report["shapes"].values() for each in batches.values()]
    lines += [*beside_paper(PAPER_11, [[each["ratio_with_drafts"] for each in cells]]), ""]
    return "\n".join([*lines, f"![tree against sequences by batch]({picture})", ""])


_ROWS_11 = {
    "tree: ms per token": lambda each: f"{each['tree_ms']:.1f}",
    "sequences: ms per token": lambda each: f"{each['sequences_ms']:.1f}",
    "drafts of both: ms per token": lambda each: f"{each['draft_ms']:.1f}",
    "sequences / tree, passes": lambda each: f"{each['pass_ratio']:.2f}x ± {each['pass_ratio_error']:.2f}",
    "sequences / tree, with drafts": lambda each: f"{each['ratio_with_drafts']:.2f}x",
    "tokens per step": lambda each: f"{each['tokens_per_step']:.2f}",
    "rows of a pass, tree / sequences": lambda each: (
        f"{each['rows']['tree']:.0f} / {each['rows']['sequences']:.0f}"
    ),
}


def plot_latency(path: Path, report: dict[str, Any]) -> None:
    """Figure 7: one line per mode, with the range over turns."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    batches = report["batches"]
    places = range(len(batches))
    for mode, marker in ((INCREMENTAL, "s"), (SEQUENCE, "^"), (TREE, "o")):
        cells = [each[mode] for each in batches.values()]
        means = [cell["mean_ms"] for cell in cells]
        low = [cell["mean_ms"] - min(cell["latency_ms"]) for cell in cells]
        high = [max(cell["latency_ms"]) - cell["mean_ms"] for cell in cells]
        axes.errorbar(places, means, yerr=(low, high), marker=marker, capsize=3, label=mode)
    _finish(figure, axes, path, list(batches), f"Figure 7: {report['model']}")


def plot_sequences(path: Path, report: dict[str, Any]) -> None:
    """Figure 11: passes per token, trees filled and sequences dashed, one colour per shape."""
    figure, axes = plt.subplots(figsize=_SIZE, layout="constrained")
    for index, (shape, batches) in enumerate(report["shapes"].items()):
        places, colour = range(len(batches)), f"C{index}"
        tree = [each["tree_ms"] for each in batches.values()]
        apart = [each["sequences_ms"] for each in batches.values()]
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
