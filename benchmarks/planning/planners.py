"""The learned planner beside the measured one, through the real services.

    python -m benchmarks.planning.planners record --prompts train.jsonl --out steps.jsonl
    specinfer train scheduler --recording steps.jsonl --out scheduler.json
    python -m benchmarks.planning.planners compare --prompts eval.jsonl --planner-weights scheduler.json

`record` lets all speculators draft whole trees in every step, which tells what any choice would have brought.
`compare` runs a system of each planner; plain decoding, the measured planner and the learned one take turns
over the same prompts, and a mode is compared with plain decoding, and the learned planner with the measured
one, in the same turns. The learned one goes on learning while it is measured, as it does in service.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import harmonic_mean, stdev
from typing import Annotated, Any

import typer

from benchmarks.drafts.end_to_end import Measured, part_of, run_turn, warm_up
from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.drafts.report import HELD
from benchmarks.load import Load, generate_all
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.show import console
from specinfer.client import AsyncClient
from specinfer.v1 import generation_pb2

ROOT = Path(__file__).resolve().parents[2]
NODES = 16
"""Nodes of a recorded tree."""
OFF, TREE = generation_pb2.SPECULATION_OFF, generation_pb2.SPECULATION_TREE
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
ORACLE = {"bf16": "1.81x", "auto": "1.45x"}
"""Over plain decoding at batch 1, in its own simulation (results/scheduler.md)."""

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def record(
    prompts: Annotated[Path, typer.Option(help="Training prompts, JSONL.")],
    out: Annotated[Path, typer.Option(help="File to which steps are appended.")],
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 100,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 64,
    batch: Annotated[int, typer.Option(help="Requests at a time.")] = 8,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    weights: Annotated[str, typer.Option(help="How the verifier holds the target.")] = "auto",
) -> None:
    """Record steps of the default pool."""
    flags = {
        "adaptive": "false",
        "tree-nodes": str(NODES),
        "step-nodes": str(NODES * batch),
        "max-batch": str(batch),
        "draft-deadline-ms": "20000",
        "record-steps": str(out),
    }
    tokens = [prompt.tokens for prompt in load_prompts(prompts, per_source)]
    load = Load(batch, TREE, new_tokens, temperature, ignore_eos=False)
    with LocalSystem(LocalOptions(gateway=flags, verifier={"weights": weights})) as system:
        asyncio.run(_generate(system.address, tokens, load))


async def _generate(address: str, prompts: Sequence[Sequence[int]], load: Load) -> None:
    client = AsyncClient(address)
    try:
        await generate_all(client, prompts, load)
    finally:
        await client.close()


@app.command()
def compare(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")],
    planner_weights: Annotated[Path, typer.Option(help="From `specinfer train scheduler`.")],
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 12,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 64,
    turns: Annotated[int, typer.Option(min=2, help="Turns of every mode.")] = 10,
    weights: Annotated[str, typer.Option(help="Ways to hold the target, with commas.")] = "bf16,auto",
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "planners",
) -> None:
    """Compare the planners on prompts that taught nothing."""
    found = load_prompts(prompts, per_source)
    sizes = [int(size) for size in batches.split(",")]
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    report["turns"], report["runs"] = turns, {}
    for held in weights.split(","):
        with console.status(f"starting, {held}") as spinner:
            report["runs"][held] = _of_weights(
                found,
                planner_weights,
                held,
                Load(0, TREE, new_tokens, ignore_eos=False),
                sizes,
                turns,
                spinner,
            )
        publish(out, report, markdown(report))


def _of_weights(
    prompts: Sequence[EvaluationPrompt],
    planner_weights: Path,
    held: str,
    load: Load,
    batches: Sequence[int],
    turns: int,
    spinner: Any,
) -> dict[str, Any]:
    """By kind of sampling and batch, all modes."""
    learned = {"planner": "learned", "planner-weights": str(planner_weights)}
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        systems = [
            stack.enter_context(
                LocalSystem(
                    LocalOptions(
                        gateway={"max-batch": str(max(batches)), **flags}, verifier={"weights": held}
                    )
                )
            )
            for flags in ({"planner": "measured"}, learned)
        ]
        modes = {
            "plain": (systems[0].address, OFF),
            "measured": (systems[0].address, TREE),
            "learned": (systems[1].address, TREE),
        }
        for system in systems:
            asyncio.run(warm_up(system.address, prompts, max(batches)))
        for kind, temperature in KINDS.items():
            found[kind] = {}
            for batch in batches:
                spinner.update(f"{held}, {kind}, batch {batch}")
                own = replace(load, batch=batch, temperature=temperature)
                found[kind][str(batch)] = asyncio.run(_in_turns(prompts, own, modes, turns))
    return found


async def _in_turns(
    prompts: Sequence[EvaluationPrompt],
    load: Load,
    modes: Mapping[str, tuple[str, generation_pb2.Speculation]],
    turns: int,
) -> dict[str, Any]:
    measured = {mode: Measured() for mode in modes}
    for turn in range(turns):
        part = part_of(prompts, turn, load.batch, turns)
        for mode in list(modes)[:: -1 if turn % 2 else 1]:
            address, speculation = modes[mode]
            await run_turn(address, part, replace(load, speculation=speculation), measured[mode])
    found: dict[str, Any] = {mode: own.beside(measured["plain"]) for mode, own in measured.items()}
    ratios = [a / b for a, b in zip(measured["learned"].rates, measured["measured"].rates, strict=True)]
    found["learned over measured"] = {
        "ratio": harmonic_mean(measured["learned"].rates) / harmonic_mean(measured["measured"].rates),
        "error": stdev(ratios) / len(ratios) ** 0.5,
        "by_turn": ratios,
    }
    return found


def markdown(report: dict[str, Any]) -> str:
    """A table per way to hold the target and kind of sampling."""
    rest = (
        f" at most, the default pool (n-gram and the shipped SSM). Modes take {report['turns']} turns; gains "
        "are over plain decoding in the same turns, ± the standard error over them."
    )
    lines = opening("The learned planner beside the measured one", report, rest)
    for held, kinds in report["runs"].items():
        for kind, batches in kinds.items():
            lines += [f"## {HELD[held]}, {kind}: tokens/s", "", *head([f"batch {b}" for b in batches])]
            for mode in ("plain", "measured", "learned"):
                lines.append(line(mode, [_cell(found[mode]) for found in batches.values()]))
            lines.append(line("learned over measured", [_ratio(found) for found in batches.values()]))
            lines.append("")
        lines += [
            f"An oracle, simulated at batch 1, greedy: {ORACLE.get(held, 'not known')} of plain decoding.",
            "",
        ]
    return "\n".join(lines)


def _cell(run: dict[str, Any]) -> str:
    gain = f"{run['gain']:.2f}x ± {run['gain_error']:.2f}, " if run["gain_error"] else ""
    return f"{run['tokens_per_second']:.0f} ({gain}{run['acceptance_length']:.2f} per step)"


def _ratio(found: dict[str, Any]) -> str:
    both = found["learned over measured"]
    return f"{both['ratio']:.3f}x ± {both['error']:.3f}"


if __name__ == "__main__":
    app()
