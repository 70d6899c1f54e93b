"""The report of drafting methods side by side, as Markdown."""

from typing import Any

from benchmarks.tables import head, line, opening

BY_SOURCE_NODES = 16


def methods_markdown(report: dict[str, Any]) -> str:
    """All of it."""
    rest = (
        " at most, bfloat16. Drafts are points; merged trees are calibrated and cut to the budget as by the "
        "gateway. ±: standard error over prompts."
    )
    lines = opening("Drafting methods at equal budgets", report, rest)
    lines += [f"{note}\n" for note in report.get("notes", ())]
    for kind in dict.fromkeys(run["kind"] for run in report["runs"]):
        runs = [run for run in report["runs"] if run["kind"] == kind]
        lines += [
            *_by_nodes(kind, runs),
            *(_by_milliseconds(kind, runs) if report.get("batch") == 1 else []),
            *_by_source(kind, runs),
            *_by_depth(kind, runs),
            *_reliability(kind, runs),
        ]
    return "\n".join(lines)


def _by_nodes(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    budgets = list(dict.fromkeys(run["nodes"] for run in runs))
    lines = [f"## Tokens per step by nodes, {kind}", "", *head([str(n) for n in budgets])]
    for pool in dict.fromkeys(_name(run) for run in runs):
        cells = {run["nodes"]: _length(run) for run in runs if _name(run) == pool}
        lines += [line(pool, [cells.get(budget, "") for budget in budgets])]
    return [*lines, ""]


def _by_milliseconds(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    """Tabulate what a step takes, and the tokens that a millisecond of drafts and passes brings."""
    budgets = list(dict.fromkeys(run["nodes"] for run in runs))
    label = f"Milliseconds of draft + pass, and tokens per millisecond, batch 1, {kind}:"
    lines = [label, "", *head([str(n) for n in budgets])]
    for pool in dict.fromkeys(_name(run) for run in runs):
        cells = {run["nodes"]: _milliseconds(run) for run in runs if _name(run) == pool}
        lines += [line(pool, [cells.get(budget, "") for budget in budgets])]
    return [*lines, ""]


def _milliseconds(run: dict[str, Any]) -> str:
    draft_ms, verify_ms = run["draft_ms"], run["verify_ms"]
    return f"{draft_ms:.2f} + {verify_ms:.2f}: {run['tokens_per_step'] / (draft_ms + verify_ms):.3f}"


def _by_source(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    some = _of_middle(runs)
    sources = list(some[0]["by_source"])
    lines = [f"Tokens per step by source at {some[0]['nodes']} nodes, {kind}:", "", *head(sources)]
    lines += [line(_name(run), [f"{run['by_source'][s]:.2f}" for s in sources]) for run in some]
    return [*lines, ""]


def _by_depth(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    """Tabulate acceptance by depth, of the steps whose path was accepted up to the depth before."""
    some = _of_middle(runs)
    deepest = max(len(run["by_depth"]) for run in some)
    label = f"Accepted at depth d where d - 1 was, % at {some[0]['nodes']} nodes, {kind}:"
    lines = [label, "", *head([str(d) for d in range(1, deepest + 1)])]
    lines += [line(_name(run), [f"{100 * share:.0f}" for share in run["by_depth"]]) for run in some]
    return [*lines, ""]


def _reliability(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    """Tabulate how well the scores of each method alone foretold acceptance; older reports do not say."""
    some = [run for run in _of_middle(runs) if len(run.get("reliability", ())) == 1]
    if not some:
        return []
    label = f"Scores and acceptance at {some[0]['nodes']} nodes, {kind}: expected calibration error, AUC:"
    lines = [label, "", *head(["as said", "as corrected", "AUC"])]
    for run in some:
        (found,) = run["reliability"]
        cells = ["" if found[key] is None else f"{found[key]:.3f}" for key in ("said", "corrected", "auc")]
        lines += [line(_name(run), cells)]
    return [*lines, ""]


def _of_middle(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of 16 nodes, or of the most."""
    budgets = {run["nodes"] for run in runs}
    nodes = BY_SOURCE_NODES if BY_SOURCE_NODES in budgets else max(budgets)
    return [run for run in runs if run["nodes"] == nodes]


def _name(run: dict[str, Any]) -> str:
    return " + ".join(run["pool"]) + (", chain" if run.get("chain") else "")


def _length(run: dict[str, Any]) -> str:
    return f"{run['tokens_per_step']:.2f} ± {run['standard_error']:.2f}"
