"""Measure the parts of a plain step, of `LLM` and services.

    python -m benchmarks step                              2 minutes
    python -m benchmarks step --before ../other-checkout   services of another commit take turns, too

Writes `benchmarks/results/step-ledger.md`: wall time by phase, processor time by process, messages, and
Redis commands of a step.
"""

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.prompts import load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.step.ledger import IN_PROCESS, Reading, markdown
from benchmarks.step.systems import InProcess, Prompts, Services, System
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console
from specinfer.system.turns import alternate

ROOT = Path(__file__).resolve().parents[2]
Columns = dict[str, list[Reading]]


async def take_turns(systems: Mapping[str, System], parts: Sequence[Prompts], new_tokens: int) -> Columns:
    """Measure each system in turns, every second time in reverse order."""
    columns: Columns = {name: [] for name in systems}
    for number, prompts in enumerate(parts):
        for system in systems.values():
            await system.turn(prompts, 1)  # caches the prompts before the measurement
        for name in alternate(systems, number):
            columns[name].append(await systems[name].turn(prompts, new_tokens))
    return columns


async def measure(
    roots: Mapping[str, Path], prompts: Prompts, batches: Sequence[int], turns: int, new_tokens: int
) -> dict[str, Columns]:
    """Return the turns of every system by batch size."""
    async with AsyncExitStack() as stack:
        systems: dict[str, System] = {}
        for name, root in roots.items():
            systems[name] = await stack.enter_async_context(Services(root, max(batches)))
        in_process = InProcess()
        stack.callback(in_process.close)
        systems = {IN_PROCESS: in_process, **systems}
        await take_turns(systems, [prompts[:1]], 16)  # not measured
        columns = {}
        for batch in batches:
            starts = [turn * batch % len(prompts) for turn in range(turns)]
            parts = [[*prompts, *prompts][start : start + batch] for start in starts]
            columns[str(batch)] = await take_turns(systems, parts, new_tokens)
    return columns


def commit_of(root: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=root).stdout.strip()


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    batches: Annotated[str, typer.Option(help="Requests at once, with commas between.")] = "1,16",
    turns: Annotated[int, typer.Option(help="Turns of each system at each batch size.")] = 12,
    new_tokens: Annotated[int, typer.Option(help="Tokens per request.")] = 128,
    before: Annotated[
        Path | None, typer.Option(help="Another checkout, whose services take turns, too.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "step-ledger",
) -> None:
    """Measure wall time, processor time and messages of a plain step."""
    sizes = read_numbers("batches", batches)
    tokens = [prompt.tokens for prompt in load_prompts(prompts, -(-max(sizes) // 4))]
    roots = ({"services before": before} if before is not None else {}) | {"services": ROOT}
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks step"),
        "new_tokens": new_tokens,
    }
    report["commits"] = {name: commit_of(root) for name, root in roots.items()}
    with console.status("measuring"):
        report["batches"] = asyncio.run(measure(roots, tokens, sizes, turns, new_tokens))
    publish(out, markdown(report))


if __name__ == "__main__":
    typer.run(main)
