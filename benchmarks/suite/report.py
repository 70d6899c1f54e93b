"""The suite's report in Markdown: a table per batch size, by source, and whether merging keeps its rule."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from benchmarks.suite.pools import ASSISTED, MERGED, WINDOW_TOKENS, methods
from specinfer.cli.compare import NOISE

Run = Mapping[str, Any]
Runs = Sequence[Run]

COLUMNS: Mapping[str, tuple[str, Callable[[Run], str]]] = {
    "plain, tokens/s": ("incremental", lambda run: f"{run['tokens_per_second']:.0f}"),
    "tree, tokens/s": ("tree", lambda run: f"{run['tokens_per_second']:.0f}"),
    "tree over plain": ("tree", lambda run: _gain(run)),
    "tokens a step": ("tree", lambda run: f"{run['acceptance_length']:.2f}"),
    "accepted, %": ("tree", lambda run: f"{100 * run['acceptance_rate']:.0f}"),
    "sequence over plain": ("sequence", lambda run: _gain(run)),
    "its tokens a step": ("sequence", lambda run: f"{run['acceptance_length']:.2f}"),
    "TTFT p50, ms": ("tree", lambda run: f"{run['ttft_ms']['p50']:.0f}"),
    "TPOT p50 / p99, ms": ("tree", lambda run: f"{run['tpot_ms']['p50']:.1f} / {run['tpot_ms']['p99']:.1f}"),
    "perplexity": ("tree", lambda run: f"{run['perplexity']:.3f}"),
}


def suite_markdown(report: Mapping[str, Any], pictures: Sequence[str] = ()) -> str:
    """Everything that was measured."""
    runs, plan = report["runs"], report["plan"]
    lines = [*_opening(report), ""]
    for batch in plan["batches"]:
        lines += [*_batch_table(batch, [run for run in runs if run["batch"] == batch]), ""]
    alone = [run for run in runs if run["batch"] == 1 and run["mode"] == "tree"]
    if any(len(run["by_source"]) > 1 for run in alone):
        lines += [*_by_source(alone), "", *_budget_rule(alone, methods(report["model"])), ""]
    lines += _memory(runs)
    return "\n".join([*lines, *(f"![{name}]({name})" for name in pictures), ""])


def _opening(report: Mapping[str, Any]) -> list[str]:
    about, plan = report["about"], report["plan"]
    origin = f"{about['time']}, {about['cores']} cores of {about['cpu']}"
    target = f"{report['model']} in {report['dtype']}, weights {report['weights']}"
    return [
        "# Drafting methods side by side, through the services",
        "",
        f"`{about['command']}` at {about['commit']}, {origin}; {target}, {plan['prompts']} prompts, "
        f"{plan['new_tokens']} new tokens each, temperature {plan['temperature']:g}, end of sequence "
        "ignored. Each pool is a system of its own, in which modes take turns; gains are over plain decoding "
        "in the same turns, ± their standard error. All pools have the same budget of verified nodes.",
        "",
        "Perplexity is that of the answers under the target with a whole cache: where it differs from plain "
        f"decoding's the text does. A windowed cache of {WINDOW_TOKENS} tokens is lossy by design, and its "
        f"plain decoding is windowed, too. {ASSISTED}: the SSM of the default pool as the assistant of its "
        "target, in bfloat16; gains are over plain generation of the same library.",
    ]


def _batch_table(batch: int, runs: Runs) -> list[str]:
    turns = max(run["turns"] for run in runs)
    lines = [f"## Batch {batch}, {turns} turns", ""]
    lines += [_line("pool", COLUMNS), "|---" * (len(COLUMNS) + 1) + "|"]
    for pool in _pools(runs):
        modes = {run["mode"]: run for run in runs if run["pool"] == pool}
        cells = [_cell(modes.get(mode), write) for mode, write in COLUMNS.values()]
        lines.append(_line(pool, cells))
    return lines


def _cell(run: Run | None, write: Callable[[Run], str]) -> str:
    return "" if run is None else write(run)


def _by_source(runs: Runs) -> list[str]:
    """Speed and tokens per step of trees, by the prompts' source."""
    sources = list(runs[0]["by_source"])
    lines = ["## By source, batch 1: trees over plain decoding (tokens a step)", ""]
    lines += [_line("pool", sources), "|---" * (len(sources) + 1) + "|"]
    for run in runs:
        cells = [f"{_gain(of)} ({of['acceptance_length']:.2f})" for of in run["by_source"].values()]
        lines.append(_line(run["pool"], cells))
    return lines


def _budget_rule(runs: Runs, members: Collection[str]) -> list[str]:
    """Report if the merged pool is as fast as its best member, within noise, on every source."""
    by_pool = {run["pool"]: run["by_source"] for run in runs}
    merged = by_pool.get(MERGED)
    if merged is None:
        return []
    lines = ["## All merged against its best member, batch 1", ""]
    lines += ["| source | best member | its gain | merged | kept |", "|---|---|---|---|---|"]
    for source, own in merged.items():
        known = (pool for pool in by_pool if pool in members)
        best = max(known, key=lambda pool: by_pool[pool][source]["speedup"])
        other = by_pool[best][source]
        lines.append(f"| {source} | {best} | {_gain(other)} | {_gain(own)} | {_kept(own, other)} |")
    return [*lines, "", f"Kept: behind by no more than {NOISE:g} standard errors of the difference."]


def _kept(own: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    errors = own["speedup_error"], other["speedup_error"]
    if None in errors:
        return "noise unknown"
    noise = (errors[0] ** 2 + errors[1] ** 2) ** 0.5
    return "yes" if own["speedup"] >= other["speedup"] - NOISE * noise else "no"


def _memory(runs: Runs) -> list[str]:
    """Report what the services of each pool hold, and how much more after all modes of a batch size."""
    batches = sorted({run["batch"] for run in runs if "memory_mib" in run})
    columns = [f"batch {batch}: MiB (growth)" for batch in batches] + ["dropped by windows, tokens"]
    lines = ["## Memory of all services", "", _line("pool", columns), "|---" * (len(columns) + 1) + "|"]
    for pool in _pools(runs):
        by_batch = {run["batch"]: run for run in runs if run["pool"] == pool and "memory_mib" in run}
        if by_batch:
            held = [f"{run['memory_mib']:.0f} ({run['memory_growth_mib']:+.1f})" for run in by_batch.values()]
            dropped = sum(run["dropped_tokens"] for run in by_batch.values())
            lines.append(_line(pool, [*held, str(dropped)]))
    return [*lines, ""]


def _pools(runs: Runs) -> list[str]:
    return list(dict.fromkeys(run["pool"] for run in runs))


def _line(label: str, cells: Any) -> str:
    return f"| {label} | {' | '.join(cells)} |"


def _gain(run: Mapping[str, Any]) -> str:
    error = "" if run["speedup_error"] is None else f" ± {run['speedup_error']:.2f}"
    return f"{run['speedup']:.2f}x{error}"
