"""The planner against constant choices, through the real services, on prompts that taught nothing.

    python -m benchmarks.planning.choices --prompts eval.jsonl [--batches 1,4] [--turns 6]

Runs a system with the planner and one for each constant number of nodes (`--no-adaptive --tree-nodes N`);
they and plain decoding take turns over the same prompts. A mode is compared with plain decoding, and the
planner with every constant, in the same turns. Before the clock starts the planner has seen one turn of every
batch size.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import harmonic_mean, stdev
from typing import Annotated, Any

import typer

from benchmarks.load import Load
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.speed.turns import Measured, part_of, run_turn, warm_up
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.options.shared import read_numbers
from specinfer.v1 import generation_pb2

OFF, TREE = generation_pb2.SPECULATION_OFF, generation_pb2.SPECULATION_TREE
PLAIN, PLANNER = "plain", "planner"

Modes = Mapping[str, tuple[str, generation_pb2.Speculation]]
"""By name, the address of a gateway and what is asked of it."""


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")],
    count: Annotated[int, typer.Option(help="Prompts, of all sources alike.")] = 16,
    nodes: Annotated[str, typer.Option(help="Constant numbers of nodes, with commas.")] = "2,4,8",
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 96,
    turns: Annotated[int, typer.Option(min=2, help="Turns of every mode.")] = 6,
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS
    / "planner-choices",
) -> None:
    """Compare the planner with constants."""
    found = part_of(load_prompts(prompts, count), 0, 1, 1)[:count]
    sizes = read_numbers("batches", batches)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found)}
    report |= {"new_tokens": new_tokens, "turns": turns}
    flags: dict[str, dict[str, str]] = {PLANNER: {}}
    flags |= {f"{n} nodes": {"adaptive": "false", "tree-nodes": str(n)} for n in read_numbers("nodes", nodes)}
    with ExitStack() as stack:
        modes: dict[str, tuple[str, generation_pb2.Speculation]] = {}
        for mode, own in flags.items():
            options = LocalOptions(gateway={"max-batch": str(max(sizes)), **own})
            modes[mode] = stack.enter_context(LocalSystem(options)).address, TREE
        modes = {PLAIN: (modes[PLANNER][0], OFF), **modes}
        for mode in flags:
            asyncio.run(warm_up(modes[mode][0], found, max(sizes)))
        load = Load(0, TREE, new_tokens, ignore_eos=False)
        report["runs"] = {
            str(size): asyncio.run(in_turns(found, replace(load, batch=size), modes, turns)) for size in sizes
        }
    publish(out, markdown(report))


async def in_turns(
    prompts: Sequence[EvaluationPrompt], load: Load, modes: Modes, turns: int
) -> dict[str, Any]:
    """By mode what it brought, and the planner over it."""
    measured = {mode: Measured() for mode in modes}
    for address, speculation in modes.values():
        part = part_of(prompts, 0, load.batch, turns)
        await run_turn(address, part, replace(load, speculation=speculation), Measured())
    for turn in range(turns):
        part = part_of(prompts, turn, load.batch, turns)
        for mode in list(modes)[:: -1 if turn % 2 else 1]:
            address, speculation = modes[mode]
            await run_turn(address, part, replace(load, speculation=speculation), measured[mode])
    planner = measured[PLANNER]
    return {
        mode: own.beside(measured[PLAIN]) | {"planner_over": _over(planner, own), "rates": own.rates}
        for mode, own in measured.items()
    }


def _over(planner: Measured, other: Measured) -> dict[str, float]:
    ratios = [a / b for a, b in zip(planner.rates, other.rates, strict=True)]
    ratio = harmonic_mean(planner.rates) / harmonic_mean(other.rates)
    return {"ratio": ratio, "error": stdev(ratios) / len(ratios) ** 0.5}


def markdown(report: dict[str, Any]) -> str:
    """Two tables: over plain decoding, and the planner over each mode."""
    rest = (
        f" at most, greedy, default weights and pool. Modes take {report['turns']} turns; ± is the standard "
        "error over them."
    )
    runs = report["runs"]
    lines = opening("The planner beside constant choices", report, rest)
    lines += ["## Tokens/s, over plain decoding", "", *head([f"batch {size}" for size in runs])]
    modes = list(next(iter(runs.values())))
    for mode in modes:
        lines.append(line(mode, [_cell(found[mode]) for found in runs.values()]))
    lines += ["", "## The planner over each", "", *head([f"batch {size}" for size in runs])]
    for mode in modes:
        if mode != PLANNER:
            cells = [found[mode]["planner_over"] for found in runs.values()]
            lines.append(line(mode, [f"{cell['ratio']:.3f}x ± {cell['error']:.3f}" for cell in cells]))
    return "\n".join([*lines, ""])


def _cell(run: dict[str, Any]) -> str:
    gain = f"{run['gain']:.2f}x ± {run['gain_error']:.2f}, {run['acceptance_length']:.2f} per step"
    return f"{run['tokens_per_second']:.0f} ({gain})"


if __name__ == "__main__":
    typer.run(main)
