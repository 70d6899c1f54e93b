"""`make bench-acceptance`, third part: drafting methods at equal node budgets.

Writes `benchmarks/results/methods.md`: acceptance length (tokens per step) of every method alone and merged, at 4, 8,
16 and 32 nodes, greedy and at temperature 0.8, with the standard error over prompts; and by source. One process, no
services. With `--chains` it adds chains of as many nodes.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

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


class Run(NamedTuple):
    """A run of a pool (or of its chains) with one budget."""

    kind: str
    name: str
    nodes: int
    result: Result


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
    chains: bool = False,
) -> list[Run]:
    """Measure every pool, temperature and budget; with `chains` also chains."""
    runs = []
    for kind, temperature in KINDS.items():
        for pool in pools:
            for budget in nodes:
                say(f"{kind}, {' + '.join(pool)}, {budget} nodes")
                for width in (None, 1) if len(pool) == 1 and chains else (None,):
                    plan = DecodingPlan(
                        *(budget, DEPTH, temperature, new_tokens), calibrated=True, width=width
                    )
                    result = Decoding(runner, [fresh(methods[name]) for name in pool], plan).run(prompts)
                    name = " + ".join(pool) + (", chain" if width == 1 else "")
                    runs.append(Run(kind, name, budget, result))
    return runs


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
        runs = compare(runner, methods, pools, budgets, rows, new_tokens, spinner.update, chains)
    about = about_this_run("python -m benchmarks methods")
    publish(out, markdown({"about": about, "prompts": len(rows), "new_tokens": new_tokens}, runs))


def markdown(report: dict[str, Any], runs: Sequence[Run]) -> str:
    """Return tokens per step by nodes, and by source for the largest budget."""
    rest = (
        " at most, bfloat16. Drafts are points; merged trees are calibrated and cut to the budget as by the "
        "gateway. ±: standard error over prompts."
    )
    lines = opening("Drafting methods at equal budgets", report, rest)
    budgets = list(dict.fromkeys(run.nodes for run in runs))
    for kind in KINDS:
        cells: dict[str, dict[int, str]] = {}
        for run in runs:
            if run.kind == kind:
                length = f"{run.result.tokens_per_step():.2f} ± {run.result.standard_error():.2f}"
                cells.setdefault(run.name, {})[run.nodes] = length
        lines += [f"## Tokens per step by nodes, {kind}", "", *head([str(nodes) for nodes in budgets])]
        lines += [line(name, [row.get(nodes, "") for nodes in budgets]) for name, row in cells.items()]
        largest = [run for run in runs if run.kind == kind and run.nodes == max(budgets)]
        sources = list(largest[0].result.by_source())
        label = f"Tokens per step by source at {max(budgets)} nodes, {kind}:"
        lines += ["", label, "", *head(sources)]
        for run in largest:
            lines.append(line(run.name, [f"{length:.2f}" for length in run.result.by_source().values()]))
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
