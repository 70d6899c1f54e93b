"""The suite's pictures; into the one like figure 9 of the SpecInfer paper the paper's means are drawn."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.suite.paper import TOKENS_PER_STEP
from benchmarks.suite.pools import DEFAULT, MERGED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Run = Mapping[str, Any]
Runs = Sequence[Run]
Report = Mapping[str, Any]

PAPER_WIDTHS = (1, 5)
"""Nodes of trees, whose means are in the paper's table 2."""


def draw_all(out: Path, report: Report) -> list[str]:
    """Writes one picture per figure beside `out`; their file names. Nothing without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        return []
    matplotlib.use("Agg")
    found = []
    for name, draw in FIGURES.items():
        path = out.with_name(f"{out.stem}-{name}.png")
        if _draw(path, draw, report):
            found.append(path.name)
    return found


def _draw(path: Path, draw: "Callable[[Axes, Report], bool]", report: Report) -> bool:
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 4.0), layout="constrained")
    done = draw(axes, report)
    if done:
        axes.grid(alpha=0.3)
        figure.savefig(path, dpi=130)
    plt.close(figure)
    return done


def _trees(report: Report, batch: int) -> list[Run]:
    return [run for run in report["runs"] if run["mode"] == "tree" and run["batch"] == batch]


def speed(axes: "Axes", report: Report) -> bool:
    """Bars per pool: trees over plain decoding, by batch size."""
    batches = report["plan"]["batches"]
    pools = [run["pool"] for run in _trees(report, batches[0])]
    height = 0.8 / len(batches)
    for index, batch in enumerate(batches):
        runs = _trees(report, batch)
        places = [place + index * height for place in range(len(runs))]
        errors = [run["speedup_error"] or 0.0 for run in runs]
        axes.barh(places, [run["speedup"] for run in runs], height, xerr=errors, label=f"batch {batch}")
    axes.set_yticks([place + 0.4 - height / 2 for place in range(len(pools))], pools)
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.set(xlabel="speed over plain decoding", title=f"{report['model']}: methods, through the services")
    axes.legend(frameon=False, fontsize="small")
    return bool(pools)


def acceptance(axes: "Axes", report: Report) -> bool:
    """Speed against tokens per step, one point per pool."""
    runs = _trees(report, report["plan"]["batches"][0])
    for run in runs:
        axes.errorbar(
            run["acceptance_length"], run["speedup"], yerr=run["speedup_error"] or 0.0, marker="o", capsize=3
        )
        axes.annotate(
            run["pool"],
            (run["acceptance_length"], run["speedup"]),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize="small",
        )
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(
        xlabel="tokens per step",
        ylabel="speed over plain decoding",
        title="Speed against acceptance, batch 1",
    )
    return bool(runs)


def node_cost(axes: "Axes", report: Report) -> bool:
    """Milliseconds of a pass of the target by its tokens."""
    passes = report.get("passes", [])
    if not passes:
        return False
    tokens, micros = zip(*passes, strict=True)
    axes.plot(tokens, [each / 1000 for each in micros], marker="o")
    axes.set(
        xlabel="tokens and nodes in a pass", ylabel="ms", title="Cost of a pass of the target", ylim=(0, None)
    )
    axes.set_xscale("log", base=2)
    powers = [each for each in tokens if each & (each - 1) == 0]
    axes.set_xticks(powers, [str(each) for each in powers])
    return True


def latency(axes: "Axes", report: Report) -> bool:
    """Milliseconds per token of a request by batch size: plain decoding, and the pools."""
    batches = report["plan"]["batches"]
    for pool in (DEFAULT, MERGED):
        for mode, style in (("incremental", "--"), ("sequence", ":"), ("tree", "-")):
            own = {run["batch"]: run for run in report["runs"] if run["pool"] == pool and run["mode"] == mode}
            values = [own[batch]["tpot_ms"]["p50"] for batch in batches if batch in own]
            if len(values) == len(batches):
                axes.plot(range(len(batches)), values, style, marker="o", label=f"{pool}, {mode}")
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set(
        xlabel="batch", ylabel="ms per token of a request, median", title="Latency by batch", ylim=(0, None)
    )
    axes.legend(frameon=False, fontsize="small")
    return bool(axes.lines)


def distribution(axes: "Axes", report: Report) -> bool:
    """Share of prompts with at most so many tokens per step, by pool; bands are the paper's means."""
    kind = "stochastic" if report["plan"]["temperature"] else "greedy"
    runs = [run for run in _trees(report, 1) if run.get("tokens_per_step")]
    for run in runs:
        ordered = sorted(run["tokens_per_step"])
        shares = [(place + 1) / len(ordered) for place in range(len(ordered))]
        axes.step(ordered, shares, where="post", label=run["pool"])
    for width in PAPER_WIDTHS:
        means = [by_width[width - 1] for by_width in TOKENS_PER_STEP[kind].values()]
        axes.axvspan(
            min(means), max(means), alpha=0.12, color=f"C{width}", label=f"paper, width {width}: means"
        )
    axes.set(
        xlabel="tokens per step", ylabel="share of prompts", ylim=(0, 1), title=f"Figure 9, {kind}, batch 1"
    )
    axes.legend(frameon=False, fontsize="x-small")
    return bool(runs)


FIGURES: "Mapping[str, Callable[[Axes, Report], bool]]" = {
    "speed": speed,
    "acceptance": acceptance,
    "node-cost": node_cost,
    "latency": latency,
    "distribution": distribution,
}
