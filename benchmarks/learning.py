"""Measure learning from traffic, after a shift to requests about code.

    python -m benchmarks learning

Compares weights trained during the run with the shipped weights. Writes `benchmarks/results/learning.md`. A system
with one speculator service serves requests about functions of Python's standard library while `specinfer train follow`
trains at the lowest priority. After every hundred requests the served weights are stored; in the
end all stored weights decode the same held-out answers, which no training saw.
"""

import ast
import asyncio
import random
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Annotated, Any

import typer

from benchmarks.load import Load, generate_all
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.processes import Child
from specinfer.cli.local.system import LocalSystem
from specinfer.cli.show import console
from specinfer.client import AsyncClient
from specinfer.drafters import DrafterOptions, make_drafter
from specinfer.drafters.pools import TRAINED
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.text.tokenizer import Tokenizer
from specinfer.training.online.trials import LIMITS, steps_of
from specinfer.v1 import generation_pb2

FIXED = {"adaptive": "false", "tree-nodes": "4", "step-nodes": "16", "max-batch": "8"}
"""Trees of one size, independent of the planner."""


@contextmanager
def trainer(address: str, directory: Path, round_seconds: float) -> Iterator[Child]:
    """Run `specinfer train follow` for the service within the context."""
    command = [sys.executable, "-m", "specinfer.training", "follow", address]
    command += ["--out", str(directory / "offered"), "--round-seconds", str(round_seconds), "--threads", "1"]
    child = Child("trainer", command, directory / "trainer.log", {})
    try:
        yield child
    finally:
        child.terminate()
        child.join(timeout_s=30)


class Marks:
    """Records which weights were served after how many requests."""

    def __init__(self, directory: Path, began: float) -> None:
        self._directory, self._began = directory, began
        self.rows: list[dict[str, Any]] = []

    async def note(self, client: AsyncClient, served: int) -> None:
        """Copy the weights served after `served` requests, and add a row."""
        (row,) = (await client.status()).speculators
        version = row.learning.version
        source, kept = self._directory / "learn" / f"version-{version}", self._directory / f"kept-{version}"
        if version and not kept.exists():
            shutil.copytree(source, kept)
        now = round(time.monotonic() - self._began)
        state = row.learning
        self.rows.append(
            {"requests": served, "seconds": now, "version": version, "swaps": state.swaps}
            | {"take_backs": state.take_backs, "replay_tokens": state.replay_tokens}
        )
        console.print(self.rows[-1])

    def model(self, row: dict[str, Any]) -> str:
        """Return the directory of a row's weights, or the shipped model's name."""
        version = row["version"]
        return str(self._directory / f"kept-{version}") if version else TRAINED[DEFAULT_MODEL]


async def run(
    system: LocalSystem, speculator: str, directory: Path, plan: dict[str, Any]
) -> tuple[Marks, list[tuple[list[int], int]]]:
    """Serve requests during training; return the weights and held-out answers."""
    asked, tree = prompts(plan["requests"] + plan["held_out"]), generation_pb2.SPECULATION_TREE
    load = Load(plan["batch"], tree, plan["new_tokens"], ignore_eos=False)
    held_out = asked[plan["requests"] :]
    async with AsyncClient(system.address) as client:
        answers = await generate_all(client, held_out, replace(load, no_training=True))
        with trainer(speculator, directory, plan["round_seconds"]):
            marks = Marks(directory, time.monotonic())
            await marks.note(client, 0)
            for start in range(0, plan["requests"], plan["every"]):
                end = min(start + plan["every"], plan["requests"])
                await generate_all(client, asked[start:end], load)
                await marks.note(client, end)
            await asyncio.sleep(plan["after_seconds"])  # no requests: training has the machine
            await marks.note(client, plan["requests"])
    return marks, [
        ([*prompt, *answer.token_ids], len(prompt)) for prompt, answer in zip(held_out, answers, strict=True)
    ]


def judged(marks: Marks, held_out: Sequence[tuple[list[int], int]]) -> None:
    """Add to each row its weights' tokens per step on held-out answers."""
    tokens = sum(len(text) - prompt_len for text, prompt_len in held_out)
    rates: dict[str, float] = {}
    for row in marks.rows:
        model = marks.model(row)
        if model not in rates:
            rates[model] = tokens / sum(steps_of(make_drafter("ssm", DrafterOptions(model=model)), held_out))
        row["tokens_per_step"] = rates[model]


def markdown(report: dict[str, Any]) -> str:
    plan = report["plan"]
    lines = [
        "# Learning from traffic",
        "",
        f"{origin(report['about'])}; {DEFAULT_MODEL}, default weights, greedy,",
    ]
    lines += [
        f"{plan['requests']} requests about code, {plan['batch']} at once, {plan['new_tokens']} tokens each; "
        f"`specinfer train follow` beside them with one thread, rounds of {plan['round_seconds']:g} s. "
        f"Tokens a step: trees of {LIMITS.nodes} nodes on {plan['held_out']} held-out answers of the same kind."
    ]
    lines += [
        "",
        *head(["seconds", "version", "swaps, taken back", "tokens a step", "over the start"], "requests"),
    ]
    first = report["rows"][0]["tokens_per_step"]
    for row in report["rows"]:
        rate = row["tokens_per_step"]
        cells = [str(row["seconds"]), str(row["version"]), f"{row['swaps']}, {row['take_backs']}"]
        lines.append(line(str(row["requests"]), [*cells, f"{rate:.3f}", f"{rate / first:.2f}x"]))
    return "\n".join(lines) + "\n"


def main(
    requests: Annotated[int, typer.Option(help="Requests to serve and learn from.")] = 600,
    held_out: Annotated[int, typer.Option(help="Requests of the same kind, held out of training.")] = 100,
    every: Annotated[int, typer.Option(help="Requests between two stored weights.")] = 100,
    new_tokens: Annotated[int, typer.Option(help="Maximum tokens of an answer.")] = 96,
    batch: Annotated[int, typer.Option(help="Requests at once.")] = 4,
    round_seconds: Annotated[float, typer.Option(help="Seconds of training between two offers.")] = 30.0,
    after_seconds: Annotated[float, typer.Option(help="Seconds of training after the last request.")] = 120.0,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "learning",
) -> None:
    """Serve requests of a new kind with a speculator that learns."""
    given = locals()
    plan = {name: given[name] for name in ("requests", "held_out", "every", "new_tokens", "batch")}
    plan |= {"round_seconds": round_seconds, "after_seconds": after_seconds}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        ssm = {
            "drafter": "ssm",
            "model": TRAINED[DEFAULT_MODEL],
            "learn": str(directory / "learn"),
        }
        with LocalSystem(LocalOptions(speculators={"ssm": ssm}, gateway=FIXED)) as system:
            (speculator,) = system.speculators
            marks, held_out_texts = asyncio.run(run(system, speculator, directory, plan))
        judged(marks, held_out_texts)
        console.print((directory / "trainer.log").read_text(), markup=False)
    report = {"about": about_this_run(), "plan": plan, "rows": marks.rows}
    publish(out, markdown(report))


REQUESTS = (
    "Explain what this Python function does:",
    "Write a unit test for this Python function:",
    "Rewrite this Python function with type annotations:",
    "Add a docstring to this Python function:",
)
MIN_CHARACTERS, MAX_CHARACTERS = 200, 700


def functions() -> list[str]:
    """Return functions of Python's library with distinct names, in fixed order."""
    library, sources = Path(sysconfig.get_paths()["stdlib"]), dict[str, str]()
    for path in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        if "test" in str(path.relative_to(library)):
            continue
        text = path.read_text(errors="replace")
        try:
            tree = ast.parse(text)
        except SyntaxError:
            continue
        lines = text.splitlines()
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                source = dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
                if MIN_CHARACTERS < len(source) < MAX_CHARACTERS:
                    sources.setdefault(node.name, source)
    chosen = list(sources.values())
    random.Random(7).shuffle(chosen)
    return chosen


def prompts(count: int) -> list[list[int]]:
    """Return `count` requests as token ids."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    return [
        tokenizer.encode_chat(
            [{"role": "user", "content": f"{REQUESTS[i % len(REQUESTS)]}\n\n```python\n{source}\n```"}]
        )
        for i, source in enumerate(functions()[:count])
    ]


if __name__ == "__main__":
    typer.run(main)
