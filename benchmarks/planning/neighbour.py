"""A real run beside a neighbour that comes and goes: what speculation costs or brings in each of its phases.

    python -m benchmarks.planning.neighbour --prompts prompts.jsonl

Two systems of the default model, one that decodes plainly and one with resident speculators, answer the same prompts
in turns, at batch 1, while a process that keeps one core busy runs every other phase. A mode is compared with plain
decoding of the same phase. Writes `benchmarks/results/neighbour.json` and `.md`.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.drafts.end_to_end import Tally, warm_up
from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.show import console
from specinfer.client import AsyncClient
from specinfer.drafters.pools import default_resident
from specinfer.hub import DEFAULT_MODEL

PLAIN, TREES = "plain", "trees"


@contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core busy."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            yield
        finally:
            neighbour.kill()


async def phase(
    addresses: Mapping[str, str], prompts: Sequence[EvaluationPrompt], seconds: float, new_tokens: int
) -> dict[str, Tally]:
    """Return the time and tokens of each mode's answers, which take turns until the time is up."""
    clients = {mode: AsyncClient(address) for mode, address in addresses.items()}
    found = {mode: Tally() for mode in clients}
    until, number = time.monotonic() + seconds, 0
    try:
        while time.monotonic() < until or number % 2:
            prompt = list(prompts[number % len(prompts)].tokens)
            for mode in list(clients)[:: -1 if number % 2 else 1]:
                options: Any = {"max_new_tokens": new_tokens, "temperature": 0.0, "ignore_eos": True}
                found[mode].add(await clients[mode].generate(prompt, **options))
            number += 1
    finally:
        for client in clients.values():
            await client.close()
    return found


async def measure(
    addresses: Mapping[str, str],
    prompts: Sequence[EvaluationPrompt],
    phases: int,
    seconds: float,
    new_tokens: int,
    say: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Return speeds by phase; every other one has the neighbour."""
    for address in addresses.values():
        await warm_up(address, prompts, 1)
    rows = []
    for number in range(phases):
        beside = bool(number % 2)
        say(f"phase {number + 1} of {phases}{', beside a neighbour' if beside else ''}")
        with busy_core() if beside else ExitStack():
            found = await phase(addresses, prompts, seconds, new_tokens)
        speeds = {mode: tally.tokens / tally.seconds for mode, tally in found.items()}
        rows.append({"neighbour": beside, **speeds, "gain": speeds[TREES] / speeds[PLAIN]})
    return rows


def main(
    prompts: Annotated[Path, typer.Option(help="Prompts, JSONL.")],
    phases: Annotated[int, typer.Option(help="Phases, every other one beside the neighbour.")] = 8,
    seconds: Annotated[float, typer.Option(help="Seconds of a phase.")] = 15.0,
    new_tokens: Annotated[int, typer.Option(help="Tokens of an answer.")] = 64,
) -> None:
    """Measure trees beside plain decoding while a neighbour comes and goes."""
    found, resident = load_prompts(prompts, 3), default_resident(DEFAULT_MODEL)
    with ExitStack() as stack, console.status("starting") as spinner:
        plain = stack.enter_context(LocalSystem(LocalOptions(speculators={}, resident="")))
        trees = stack.enter_context(LocalSystem(LocalOptions(speculators={}, resident=resident)))
        addresses = {PLAIN: plain.address, TREES: trees.address}
        rows = asyncio.run(measure(addresses, found, phases, seconds, new_tokens, spinner.update))
    report = {"about": about_this_run(), "seconds": seconds, "prompts": len(found), "rows": rows}
    publish(RESULTS / "neighbour", report, markdown(report))


def markdown(report: dict[str, Any]) -> str:
    """Return the report's table."""
    lines = [
        "# Beside a neighbour that comes and goes",
        "",
        f"{origin(report['about'])}; {report['prompts']} prompts, batch 1, greedy, phases of {report['seconds']:g} s,",
        "answers of both modes in turns.",
        "",
        *head(["neighbour", "plain, tokens/s", "trees, tokens/s", "trees over plain"], "phase"),
    ]
    for number, row in enumerate(report["rows"], 1):
        cells = [f"{row[PLAIN]:.0f}", f"{row[TREES]:.0f}", f"{row['gain']:.2f}x"]
        lines.append(line(str(number), ["one busy core" if row["neighbour"] else "none", *cells]))
    worst = min(row["gain"] for row in report["rows"])
    return "\n".join([*lines, "", f"The worst phase has {worst:.2f}x of plain decoding's speed.", ""])


if __name__ == "__main__":
    typer.run(main)
