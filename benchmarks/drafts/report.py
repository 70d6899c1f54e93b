"""The report of `make bench-acceptance` as Markdown, with the paper's figures beside ours."""

from typing import Any

from benchmarks.tables import head, line, opening, row

WIDTHS = (1, 2, 3, 4, 5)
# SpecInfer, tables 1 and 2 (LLaMA-7B with LLaMA-68M)
PAPER_SUCCESS = {
    "Alpaca": (68, 77, 81, 84, 85),
    "CP": (69, 79, 83, 86, 87),
    "WebQA": (62, 72, 77, 80, 82),
    "CIP": (70, 81, 85, 88, 89),
    "PIQA": (63, 75, 79, 83, 85),
}
PAPER_WIDTHS = {"greedy": (2.54, 3.04, 3.20, 3.32, 3.42), "stochastic": (1.70, 1.98, 2.14, 2.22, 2.26)}
PAPER_MULTI_STEP = 1.27


def markdown(report: dict[str, Any]) -> str:
    """All of it."""
    rest = ", bfloat16, temperature 0 and 1. The paper's figures are of LLaMA-7B with LLaMA-68M."
    lines = opening("How good the drafts are", report, rest)
    parts = [success_table(report), width_table(report), pool_table(report), figures()]
    return "\n".join([*lines, *(line for part in parts for line in part)]) + "\n"


def success_table(report: dict[str, Any]) -> list[str]:
    """Table 1."""
    lines = ["## Success of one token by top-k, % (Table 1)", "", *head(["1", "2", "3", "4", "5"])]
    lines += [row(f"paper, greedy, {name}", values) for name, values in PAPER_SUCCESS.items()]
    for kind, by_source in report["success"].items():
        lines += [row(f"{kind}, {source}", values) for source, values in by_source.items()]
        mean = [sum(v[k] for v in by_source.values()) / len(by_source) for k in range(5)]
        lines.append(row(f"{kind}, mean of sources", mean))
    return [*lines, ""]


def width_table(report: dict[str, Any]) -> list[str]:
    """Tables 2 and 3."""
    steps = report["tokens_per_step"]
    lines = ["## Tokens per step by tree width (Table 2)", "", *head([str(k) for k in WIDTHS])]
    for kind, paper in PAPER_WIDTHS.items():
        lines.append(row(f"paper, {kind}, <1,1,k,1,...>, mean", paper))
        for label, name in (
            ("<1,1,k,1,...>", "<1,1,{k},1,...>"),
            ("<k,1,1,...>", "<{k},1,1,...>"),
            ("best-first, 8k nodes", "best-first, {n} nodes"),
        ):
            values = [steps[f"{kind} {name.format(k=k, n=8 * k)}"]["all"] for k in WIDTHS]
            lines.append(row(f"{kind}, {label}", values))
    naive, multi = steps["stochastic <5,1,1,...>, naive"]["all"], steps["stochastic <5,1,1,...>"]["all"]
    return [
        *lines,
        "",
        f"Naive sampling {naive:.2f}, multi-step {multi:.2f} at <5,1,...>: {multi / naive:.2f}x "
        f"(Table 3, paper: {PAPER_MULTI_STEP}x).",
        "",
    ]


def pool_table(report: dict[str, Any]) -> list[str]:
    """The merged pool against its members."""
    steps = report["tokens_per_step"]
    names = [name for name in steps if "ngram" in name or "ssm" in name]
    sources = list(steps[names[0]])
    lines = ["## Pool: tokens per step at 16 verified nodes", "", *head(sources)]
    return [*lines, *(row(name, [steps[name][source] for source in sources]) for name in names), ""]


def figures() -> list[str]:
    """The plots."""
    return [
        "## Figures 9 and 10",
        "",
        "![tokens per step, greedy](tokens-per-step-greedy.png) "
        "![tokens per step, stochastic](tokens-per-step-stochastic.png)",
        "",
        "![latency by width and batch](latency-by-width.png)",
        "",
    ]


def services_report(report: dict[str, Any]) -> str:
    """Through the services: by batch, and by source at batch 1."""
    rest = (
        " at most, bfloat16, the default pool (n-gram and the shipped SSM), adaptive. Modes take turns; "
        "gains are over plain decoding in the same turns, with the standard error over them."
    )
    lines = opening("What speculation brings through the services", report, rest)
    for kind, modes in report["services"].items():
        lines += [*batch_table(kind, modes), *source_table(kind, modes)]
    return "\n".join(lines)


def batch_table(kind: str, modes: dict[str, Any]) -> list[str]:
    """Tokens per second of every mode by batch, and against plain decoding."""
    batches = list(modes["plain"])
    lines = [f"## Through the services, {kind}: tokens/s", "", *head([f"batch {b}" for b in batches])]
    return [*lines, *(line(mode, [_cell(runs[b]) for b in batches]) for mode, runs in modes.items()), ""]


def _cell(run: dict[str, Any]) -> str:
    gain = f"{run['gain']:.2f}x ± {run['gain_error']:.2f}, " if run["gain_error"] else ""
    return f"{run['tokens_per_second']:.0f} ({gain}{run['acceptance_length']:.2f} per step)"


def source_table(kind: str, modes: dict[str, Any]) -> list[str]:
    """The gain at batch 1, source by source."""
    found = {name: runs["1"]["by_source"] for name, runs in modes.items()}
    sources = list(found.pop("plain"))
    lines = [f"By source at batch 1, {kind}, over plain decoding:", "", *head(sources)]
    for mode, own in found.items():
        cells = [f"{own[s]['gain']:.2f}x ({own[s]['acceptance_length']:.2f})" for s in sources]
        lines.append(line(mode, cells))
    return [*lines, ""]
