"""`python -m benchmarks.ahead`: plain decoding, trees drafted between passes, and trees drafted ahead, both ways.

Round trips to the speculators and the times of passes are injected; gateway, SSM and the target's texts are real.
Writes `benchmarks/results/drafting-ahead.json` and `.md`.
"""

import asyncio
import json
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.ahead.report import report
from benchmarks.ahead.system import FarSpeculators
from benchmarks.drafts.prompts import load_prompts
from benchmarks.publish import RESULTS, write
from specinfer import LLM, SamplingParams
from specinfer.cli.about import about_this_run
from specinfer.client import AsyncClient
from specinfer.drafters.pools import trained_for
from specinfer.hub import DEFAULT_MODEL
from specinfer.v1 import common_pb2, generation_pb2

PROMPTS = Path(__file__).resolve().parents[2] / "tests" / "data" / "prompts.jsonl"
PLAIN, TREES = "plain", "trees"
WAYS = {TREES: "never", "ahead": "always", "only": "only"}
"""Settings `draft-ahead` of the gateways."""


class TextTurn(NamedTuple):
    """Texts of one way of decoding."""

    token_s: float
    """Seconds of a token."""
    steps: int
    tokens: int
    draft_s: float
    """Seconds in which steps waited for drafts."""
    rest_s: float
    hits: int
    misses: int
    wasted: int


def main(
    round_trips: Annotated[str, typer.Option(help="Milliseconds to the speculators and back.")] = "0,1,5,20",
    passes: Annotated[str, typer.Option(help="Milliseconds of a pass at least.")] = "5,20,50",
    new_tokens: Annotated[int, typer.Option(help="Tokens of each text.")] = 64,
    texts: Annotated[int, typer.Option(help="Texts of each cell.")] = 3,
    adaptive: Annotated[bool, typer.Option(help="With the planner: never ahead, and as it chooses.")] = False,
    nodes: Annotated[int, typer.Option(help="Nodes of a tree.")] = 12,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "drafting-ahead",
) -> None:
    """Measure in turns: every cell has each text in every way, one after another."""
    prompts = [prompt.tokens for prompt in load_prompts(PROMPTS, 1)][:texts]
    known = continued(prompts, new_tokens + 32)
    fixed = {"adaptive": "false", "tree-nodes": str(nodes), "step-nodes": str(nodes)}
    ways = {TREES: "never", "auto": "auto"} if adaptive else WAYS
    gateways = {way: {**({} if adaptive else fixed), "draft-ahead": mode} for way, mode in ways.items()}
    ssm = {"drafter": "ssm", "model": trained_for(DEFAULT_MODEL)["ssm"]}
    found = {"about": about_this_run(), "nodes": nodes, "new_tokens": new_tokens, "texts": len(prompts)}
    found |= {"adaptive": adaptive, "cells": list[dict[str, Any]]()}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "texts.json").write_text(json.dumps(known))
        _measure(FarSpeculators(Path(directory), gateways, ssm), round_trips, passes, prompts, found, out)


def continued(prompts: Sequence[Sequence[int]], new_tokens: int) -> list[tuple[Sequence[int], Sequence[int]]]:
    """Each prompt with what the target says, greedily."""
    llm = LLM()
    wanted = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
    answers = llm.generate([{"prompt_token_ids": list(prompt)} for prompt in prompts], wanted)
    return [(list(p), list(a.outputs[0].token_ids)) for p, a in zip(prompts, answers, strict=True)]


def _measure(
    systems: FarSpeculators,
    round_trips: str,
    passes: str,
    prompts: Sequence[Sequence[int]],
    found: dict[str, Any],
    out: Path,
) -> None:
    """Measure every cell; write after each."""
    with systems as far:
        for round_trip in map(float, round_trips.split(",")):
            for pass_ms in map(float, passes.split(",")):
                far.set(pass_ms, round_trip)
                turns = asyncio.run(_cell(far, prompts, found["new_tokens"]))
                found["cells"].append({"round_trip_ms": round_trip, "pass_ms": pass_ms} | turns)
                write(out, found, report(found))
                typer.echo(f"{round_trip} ms, pass {pass_ms} ms: {_words(turns)}")


async def _cell(far: FarSpeculators, prompts: Sequence[Sequence[int]], new_tokens: int) -> dict[str, Any]:
    """Every text in each way, in turns; sums by way."""
    turns: dict[str, list[TextTurn]] = {way: [] for way in (PLAIN, *far.systems)}
    texts: dict[str, list[list[int]]] = {way: [] for way in turns}
    async with AsyncExitStack() as stack:
        clients = {
            way: await stack.enter_async_context(AsyncClient(system.address))
            for way, system in far.systems.items()
        }
        for prompt in prompts:
            for way in turns:
                most = max(12, new_tokens // 4) if way == PLAIN else new_tokens
                turn, text = await _turn(clients.get(way, clients[TREES]), prompt, most, way == PLAIN)
                turns[way].append(turn)
                texts[way].append(text)
    assert all(texts[way] == texts[TREES] for way in far.systems), (
        "greedy texts are the same, whoever drafts when"
    )
    sums = {way: TextTurn(*map(sum, zip(*rows, strict=True)))._asdict() for way, rows in turns.items()}
    return {
        "ways": sums,
        "ms_per_token": {way: [1000 * row.token_s for row in rows] for way, rows in turns.items()},
    }


async def _turn(
    client: AsyncClient, prompt: Sequence[int], most: int, plain: bool
) -> tuple[TextTurn, list[int]]:
    """One text; its time is that per token behind the first message, so that reading the prompt does not count."""
    before = await client.status()
    answer = await client.generate(
        generation_pb2.GenerateRequest(
            tokens=generation_pb2.TokenIds(ids=prompt),
            max_new_tokens=most,
            sampling=common_pb2.SamplingParams(temperature=0),
            speculation=generation_pb2.SPECULATION_OFF if plain else generation_pb2.SPECULATION_TREE,
            ignore_eos=True,
        )
    )
    after = await client.status()
    seconds = phases_between(before, after)
    hits, misses, wasted = [
        sum(getattr(speculator, f"ahead_{name}") for speculator in after.speculators)
        - sum(getattr(speculator, f"ahead_{name}") for speculator in before.speculators)
        for name in ("hits", "misses", "wasted")
    ]
    draft_s, steps = seconds.pop("draft"), after.steps - before.steps
    turn = TextTurn(
        answer.tpot_s, steps, len(answer.token_ids), draft_s, sum(seconds.values()), hits, misses, wasted
    )
    return turn, answer.token_ids


def phases_between(before: generation_pb2.StatusReply, after: generation_pb2.StatusReply) -> dict[str, float]:
    """Seconds of each phase of steps between two states."""
    then = {phase.name: phase.seconds for phase in before.phases}
    return {phase.name: phase.seconds - then.get(phase.name, 0.0) for phase in after.phases}


def _words(turns: dict[str, Any]) -> str:
    times = {way: sum(values) / len(values) for way, values in turns["ms_per_token"].items()}
    return ", ".join(f"{way} {time:.1f}" for way, time in times.items()) + " ms a token"


if __name__ == "__main__":
    typer.run(main)
