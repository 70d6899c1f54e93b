"""`python -m benchmarks.ahead.half_batches`: one batch, and two half-batches in turn.

One half-batch is drafted while the other is verified. The verifier replays the target's texts on a simulated device
that runs one pass at a time; gateway, SSM and protocol are real. Half-batches are two links of the gateway to the same
device. Writes `benchmarks/results/half-batches.json` and `.md`.
"""

import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.ahead.__main__ import PROMPTS, continued, phases_between
from benchmarks.ahead.system import ReplayingSystem
from benchmarks.drafts.prompts import load_prompts
from benchmarks.load import Load, generate_all
from benchmarks.publish import RESULTS, write
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local.processes import free_ports
from specinfer.cli.local.system import LocalOptions
from specinfer.client import AsyncClient
from specinfer.drafters.pools import trained_for
from specinfer.hub import DEFAULT_MODEL
from specinfer.v1 import generation_pb2

WHOLE, HALVES = "one batch", "two half-batches"
NODES = 8
"""Nodes of each tree."""
MEANING = """\
Greedy, {texts} texts of {new_tokens} tokens, {batch} at once all the time; trees of {nodes} nodes by the shipped SSM;
medians of {turns} turns, in brackets their range. The device runs one pass at a time, in which it sleeps. "Fixed": a
pass of half a batch takes as long as one of a whole, as where reading the weights is what takes the time;
"by request": half as long. D: a step of the whole batch waits so long for its drafts.
"""


def main(
    batch: Annotated[int, typer.Option(min=2, help="Requests at once.")] = 8,
    passes: Annotated[str, typer.Option(help="Milliseconds of a pass of a whole batch.")] = "5,10,20,50",
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each text.")] = 64,
    turns: Annotated[int, typer.Option(min=1, help="Turns of both ways.")] = 3,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "half-batches",
) -> None:
    """Measure both ways in turns."""
    prompts = [prompt.tokens for prompt in load_prompts(PROMPTS, batch)][: 4 * batch]
    found: dict[str, Any] = {"about": about_this_run(), "batch": batch, "new_tokens": new_tokens}
    found |= {"nodes": NODES, "turns": turns, "texts": len(prompts), "cells": list[dict[str, Any]]()}
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        texts, pass_ms = Path(name) / "texts.json", Path(name) / "pass_ms"
        texts.write_text(json.dumps(continued(prompts, new_tokens + 32)))
        pass_ms.write_text("5")
        systems = {way: system(way, batch, texts, pass_ms) for way in (WHOLE, HALVES)}
        for each in systems.values():
            stack.enter_context(each)
            asyncio.run(answer_all(each.address, prompts[:batch], batch, new_tokens))  # warms up
        for kind in ("fixed", "by request"):
            for milliseconds in map(float, passes.split(",")):
                pass_ms.write_text(f"{milliseconds}" if kind == "fixed" else f"0 {milliseconds / batch}")
                cell: dict[str, Any] = {"kind": kind, "pass_ms": milliseconds, WHOLE: [], HALVES: []}
                for turn in range(turns):
                    for way in list(systems)[:: -1 if turn % 2 else 1]:
                        measured = answer_all(systems[way].address, prompts, batch, new_tokens)
                        cell[way].append(asyncio.run(measured))
                found["cells"].append(cell)
                write(out, found, report(found))
                typer.echo(row(cell))


def system(way: str, batch: int, texts: Path, pass_ms: Path) -> ReplayingSystem:
    """Return a system with one link to the device, or with two that have half the batch each."""
    links = 1 if way == WHOLE else 2
    gateway = {"adaptive": "false", "tree-nodes": str(NODES), "step-nodes": str(NODES * batch // links)}
    gateway["max-batch"] = str(batch // links)
    ssm = {"drafter": "ssm", "model": trained_for(DEFAULT_MODEL)["ssm"]}
    made = ReplayingSystem(LocalOptions(model=DEFAULT_MODEL, gateway=gateway, speculators={"ssm": ssm}))
    made.texts, made.pass_ms = texts, pass_ms
    made.more_batches = [f"127.0.0.1:{port}" for port in free_ports(links - 1)]
    return made


async def answer_all(
    address: str, prompts: Sequence[Sequence[int]], at_once: int, new_tokens: int
) -> dict[str, float]:
    """Answer all prompts, so many at once; return tokens a second, and milliseconds of drafting in a step."""
    load = Load(at_once, generation_pb2.SPECULATION_TREE, new_tokens)
    async with AsyncClient(address) as client:
        before, started = await client.status(), time.perf_counter()
        answers = await generate_all(client, prompts, load)
        seconds = time.perf_counter() - started
        after = await client.status()
    draft_s = phases_between(before, after)["draft"] / (after.steps - before.steps)
    tokens = sum(len(answer.token_ids) for answer in answers)
    return {"tokens_per_second": tokens / seconds, "draft_ms": 1000 * draft_s}


def report(found: dict[str, Any]) -> str:
    """Markdown of a report."""
    columns = ["pass, ms", "D, ms", f"{WHOLE}, tokens/s", f"{HALVES}, tokens/s", "ratio"]
    lines = ["# Two half-batches in flight", "", f"{origin(found['about'])}.", "", MEANING.format(**found)]
    return "\n".join([*lines, *head(columns, "time of a pass"), *map(row, found["cells"]), ""])


def row(cell: dict[str, Any]) -> str:
    """One row: a time of passes."""
    rates = {way: [turn["tokens_per_second"] for turn in cell[way]] for way in (WHOLE, HALVES)}
    drafts = median(turn["draft_ms"] for turn in cell[WHOLE])
    middle = {way: median(values) for way, values in rates.items()}
    shown = [f"{middle[way]:.0f} ({min(rates[way]):.0f} to {max(rates[way]):.0f})" for way in rates]
    ratio = f"{middle[HALVES] / middle[WHOLE]:.2f}x"
    return line(cell["kind"], [f"{cell['pass_ms']:g}", f"{drafts:.1f}", *shown, ratio])


if __name__ == "__main__":
    typer.run(main)
