"""`make bench-acceptance`, third part: drafting methods at equal node budgets.

Writes `benchmarks/results/methods.md`: acceptance length (tokens per step) of every method alone and merged,
at 4, 8, 16 and 32 nodes, greedy and at temperature 0.8, with the standard error over prompts; by source; and
how often the next token of a path is accepted, by depth. One process, no services. With `--batch 1` it also
measures drafts and passes, to compare methods at equal milliseconds (on a quiet machine); with `--chains` it
adds chains of as many nodes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.decoding import Decoding, DecodingPlan, Result
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console
from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.drafters.recycling import RecyclingDrafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner

ROOT = Path(__file__).resolve().parent.parent
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
DEPTH = 10
KV_TOKENS = 32768
Methods = dict[str, Drafter]


def load_methods(specs: Sequence[str], datastore: str = "") -> Methods:
    """Load drafters by `NAME[=MODEL]`; low probability never ends their trees.

    The key is NAME; if NAME repeats, it is "NAME CHECKPOINT".

    Raises:
        SettingError: if a drafter or its model is missing.
    """
    methods: Methods = {}
    for spec in specs:
        name, _, model = spec.partition("=")
        options = DrafterOptions(
            model=model,
            kv_tokens=KV_TOKENS,
            beam=8,
            depth=DEPTH,
            min_path_probability=0.0,
            datastore=datastore,
        )
        methods[f"{name} {Path(model).name}" if name in methods else name] = make_drafter(name, options)
    return methods


def fresh(drafter: Drafter) -> Drafter:
    """Return a drafter without state of earlier runs."""
    return RecyclingDrafter(drafter.description) if isinstance(drafter, RecyclingDrafter) else drafter


def compare(
    runner: ModelRunner,
    methods: Methods,
    pools: Sequence[Sequence[str]],
    nodes: Sequence[int],
    prompts: Sequence[EvaluationPrompt],
    new_tokens: int,
    say: Callable[[str], None],
    batch: int = 8,
    chains: bool = False,
) -> list[dict[str, Any]]:
    """Measure every pool, temperature and budget; with `chains` also chains."""
    rows = []
    for kind, temperature in KINDS.items():
        for pool in pools:
            for budget in nodes:
                say(f"{kind}, {' + '.join(pool)}, {budget} nodes")
                for width in (None, 1) if len(pool) == 1 and chains else (None,):
                    plan = DecodingPlan(
                        *(budget, DEPTH, temperature, new_tokens, batch), calibrated=True, width=width
                    )
                    result = Decoding(runner, [fresh(methods[name]) for name in pool], plan).run(prompts)
                    row = {"kind": kind, "pool": list(pool), "nodes": budget, "chain": width == 1}
                    rows.append(row | summary(result))
    return rows


def summary(result: Result) -> dict[str, Any]:
    """Return a run's tokens per step, errors and acceptance by depth."""
    return {
        "tokens_per_step": round(result.tokens_per_step(), 3),
        "standard_error": round(result.standard_error(), 3),
        "draft_ms": round(1000 * result.draft_s / max(result.timed_steps, 1), 3),
        "verify_ms": round(1000 * result.verify_s / max(result.timed_steps, 1), 3),
        "by_source": result.by_source(),
        "by_depth": by_depth(result),
        "reliability": [
            {
                "said": _rounded(said.calibration_error),
                "corrected": _rounded(corrected.calibration_error),
                "auc": _rounded(corrected.auc),
            }
            for said, corrected in result.reliability
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def by_depth(result: Result, deepest: int = 6) -> list[float]:
    """Return the share of steps that reach depth d from d - 1."""
    reached = [sum(n for length, n in result.accepted.items() if length >= d) for d in range(deepest + 1)]
    return [round(reached[d] / reached[d - 1], 3) for d in range(1, deepest + 1) if reached[d - 1]]


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Maximum tokens per prompt.")] = 64,
    method: Annotated[
        list[str] | None, typer.Option(help="NAME[=MODEL] of a drafter; several times.")
    ] = None,
    pool: Annotated[
        list[str] | None, typer.Option(help="NAME+NAME: methods whose trees are merged; several times.")
    ] = None,
    nodes: Annotated[str, typer.Option(help="Verified nodes of a tree, with commas between.")] = "4,8,16,32",
    batch: Annotated[int, typer.Option(help="Prompts decoded at once; 1 for times.")] = 8,
    chains: Annotated[bool, typer.Option("--chains", help="Measure chains, too.")] = False,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "methods",
) -> None:
    """Measure drafting methods alone and merged."""
    torch.set_num_threads(2)
    rows, budgets = load_prompts(prompts, per_source), read_numbers("nodes", nodes)
    specs = method or [
        "ngram",
        "ssm=ssm-smollm2-135m",
        "suffix",
    ]
    with console.status("loading") as spinner:
        methods = load_methods(specs)
        usual = ["ngram+ssm", "suffix+ssm", "+".join(methods)] if method is None else []
        merged = [names.split("+") for names in pool or usual]
        pools = [*([name] for name in methods), *merged]
        runner = load_checked(resolve_model(DEFAULT_MODEL), RunnerOptions())
        runs = compare(runner, methods, pools, budgets, rows, new_tokens, spinner.update, batch, chains)
    report = {
        "about": about_this_run("python -m benchmarks methods"),
        "prompts": len(rows),
        "new_tokens": new_tokens,
        "runs": runs,
    }
    report["batch"] = batch
    publish(out, methods_markdown(report))


BY_SOURCE_NODES = 16


def methods_markdown(report: dict[str, Any]) -> str:
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
    """Tabulate milliseconds of draft and pass, and tokens per millisecond."""
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
    """Tabulate the share of steps at depth d - 1 that reach d."""
    some = _of_middle(runs)
    deepest = max(len(run["by_depth"]) for run in some)
    label = f"Accepted at depth d where d - 1 was, % at {some[0]['nodes']} nodes, {kind}:"
    lines = [label, "", *head([str(d) for d in range(1, deepest + 1)])]
    lines += [line(_name(run), [f"{100 * share:.0f}" for share in run["by_depth"]]) for run in some]
    return [*lines, ""]


def _reliability(kind: str, runs: list[dict[str, Any]]) -> list[str]:
    """Tabulate the calibration error and AUC of each method's scores."""
    some = [run for run in _of_middle(runs) if len(run.get("reliability", ())) == 1]
    if not some:
        return []
    label = f"Scores and acceptance at {some[0]['nodes']} nodes, {kind}: expected calibration error, AUC:"
    lines = [label, "", *head(["as said", "as corrected", "AUC"])]
    for run in some:
        (reliability,) = run["reliability"]
        cells = [
            "" if reliability[key] is None else f"{reliability[key]:.3f}"
            for key in ("said", "corrected", "auc")
        ]
        lines += [line(_name(run), cells)]
    return [*lines, ""]


def _of_middle(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of 16 nodes, else of the largest budget."""
    budgets = {run["nodes"] for run in runs}
    nodes = BY_SOURCE_NODES if BY_SOURCE_NODES in budgets else max(budgets)
    return [run for run in runs if run["nodes"] == nodes]


def _name(run: dict[str, Any]) -> str:
    return " + ".join(run["pool"]) + (", chain" if run.get("chain") else "")


def _length(run: dict[str, Any]) -> str:
    return f"{run['tokens_per_step']:.2f} ± {run['standard_error']:.2f}"


if __name__ == "__main__":
    typer.run(main)
