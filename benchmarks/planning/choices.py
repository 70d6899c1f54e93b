"""Compare the planner with constant choices, from a cold start.

    python -m benchmarks.planning.choices --prompts eval.jsonl [--model M --draft D] [--batches 1,4,16] [--busy 0,1,2]

One model is loaded. The modes (plain decoding, constants, the planner) alternate over the same groups of prompts. Each
mode has its own planner and calibration, which start cold.
All prompts are cached before. A mode is compared with plain decoding in the same turns.
"""

import asyncio
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.planning.world import Constant
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.llm.build import build_engine
from specinfer.llm.engine import LocalEngine
from specinfer.llm.options import LLMOptions
from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.step_report import StepPlanner, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.request.sampling import GREEDY
from specinfer.scheduling.request import GenerationRequest
from specinfer.system.turns import ratios, standard_error
from specinfer.text.tokenizer import Tokenizer

PLANNER = "planner"
LONGEST = 800
"""Maximum characters of a prompt; of longer texts, the end is used."""
Kind = tuple[int, frozenset[int], int, int]
"""Batch, speculators, planned nodes, tokens of the pass."""
FEW = 6
"""Minimum number of steps of a kind to use their median."""


@dataclass
class Mode:
    """A mode with its results; a planner that wraps another."""

    planner: StepPlanner
    calibration: Calibration = field(default_factory=Calibration)
    rates: list[float] = field(default_factory=list)
    """Tokens per second by turn."""
    tokens: int = 0
    seconds: float = 0.0
    planning_s: float = 0.0
    reports: list[tuple[Kind, float, int]] = field(default_factory=list)
    """Kind, seconds and tokens of the steps without prompts."""

    def count(self, tokens: int, seconds: float) -> None:
        """Add a turn."""
        self.rates.append(tokens / seconds)
        self.tokens, self.seconds = self.tokens + tokens, self.seconds + seconds

    def enrol(self, services: Sequence[frozenset[int]]) -> None:
        """Set the speculators."""
        self.planner.enrol(services)

    def choose(self, batch: int, contexts: Mapping[str, int]) -> Choice:
        """Return the planner's choice."""
        started = time.thread_time()
        choice = self.planner.choose(batch, contexts)
        self.planning_s += time.thread_time() - started
        return choice

    def observe(self, report: StepReport) -> None:
        """Record a step, and let the planner learn from it."""
        choice = report.choice
        kind = report.batch, choice.speculators, choice.nodes, report.tokens
        self.reports.append((kind, report.seconds, report.new_tokens))
        started = time.thread_time()
        self.planner.observe(report)
        self.planning_s += time.thread_time() - started

    def close(self) -> None:
        """Do nothing."""

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.reports)

    def typical_speed(self, usual: Mapping[Kind, float]) -> float:
        """Return tokens per second if steps took their kind's median."""
        seconds = sum(usual.get(kind, seconds) for kind, seconds, _ in self.reports)
        return sum(tokens for *_, tokens in self.reports) / seconds


def medians(modes: Iterable[Mode]) -> dict[Kind, float]:
    """Return the median seconds of steps by kind, over all modes."""
    times = defaultdict[Kind, list[float]](list)
    for mode in modes:
        for kind, seconds, _ in mode.reports:
            times[kind].append(seconds)
    return {kind: median(values) for kind, values in times.items() if len(values) >= FEW}


Run = Callable[[Mode, Sequence[Sequence[int]], int], Awaitable[None]]
"""Answers a group of prompts in a mode, with equal lengths."""
Cells = dict[tuple[str, int, int], dict[str, Mode]]
"""Modes by (kind of text, batch, busy processes)."""


def main(
    prompts: Annotated[list[Path], typer.Option(help="Evaluation prompts, JSONL; a kind of text each.")],
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    draft: Annotated[str, typer.Option(help="Draft; auto: the model's draft.")] = "auto",
    weights: Annotated[str, typer.Option(help="Weight format.")] = "auto",
    nodes: Annotated[str, typer.Option(help="Constant numbers of nodes, with commas.")] = "1,2,3,4,8",
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
    count: Annotated[int, typer.Option(help="Prompts of each batch size, at least.")] = 20,
    skip: Annotated[int, typer.Option(help="Prompts of each file to skip.")] = 0,
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4,16",
    busy: Annotated[
        str, typer.Option(help="Numbers of processes that compute beside it, with commas.")
    ] = "0",
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "planner-choices",
) -> None:
    """Compare the planner with plain decoding and constant numbers of nodes."""
    constants, sizes = read_numbers("nodes", nodes), read_numbers("batches", batches)
    loads = [int(load) for load in busy.split(",")]
    tokenizer = Tokenizer.load(resolve_model(model))
    kinds = {path.stem: mixed_texts(path)[skip:] for path in prompts}
    if len(kinds) > 1:
        kinds["both"] = [text for texts in zip(*kinds.values(), strict=False) for text in texts]
    options = LLMOptions(weights=weights, tree_nodes=max(constants))
    engine, _ = build_engine(model, draft, None, options)
    first, cells = engine.machine.planner, Cells()
    assert isinstance(first, TablePlanner)
    for load in loads:
        with neighbours(load):
            for size in sizes:
                for kind, texts in kinds.items():
                    modes: dict[str, Mode] = {"plain": Mode(Constant(0))}
                    modes |= {f"{n} nodes": Mode(Constant(n)) for n in constants}
                    modes[PLANNER] = Mode(TablePlanner(first.costs.curve, first.budget))
                    asked = [encode(tokenizer, text) for text in texts[: max(count, 2 * size)]]
                    groups = [asked[at : at + size] for at in range(0, len(asked), size)]
                    asyncio.run(in_turns(in_process(engine), modes, groups, new_tokens))
                    cells[kind, size, load] = modes
                    print("\n".join(_summary(kind, size, load, modes)), flush=True)
    engine.close()
    what = f"{model} with the draft {draft}; {count} prompts or two batches in each cell"
    publish(out, markdown(f"{what}, {new_tokens} tokens each, greedy, one process", cells))


@contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Run processes that compute without end."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a conversation of one message."""
    return list(tokenizer.encode_chat([{"role": "user", "content": text[-LONGEST:]}]))


async def in_turns(
    run: Run, modes: dict[str, Mode], groups: Sequence[Sequence[Sequence[int]]], new_tokens: int
) -> None:
    """Answer every group in every mode, in an order that rotates."""
    names = list(modes)
    for turn, group in enumerate(groups):
        await run(Mode(Constant(4)), group, 1)
        place = turn % len(names)
        for name in names[place:] + names[:place]:
            await run(modes[name], group, new_tokens)


def in_process(engine: LocalEngine) -> Run:
    """Return a function that answers in this process."""

    async def run(mode: Mode, group: Sequence[Sequence[int]], new_tokens: int) -> None:
        engine.machine.planner, engine.host.calibration = mode, mode.calibration
        for number, prompt in enumerate(group):
            engine.submit(GenerationRequest(f"r{number}", tuple(prompt), new_tokens, GREEDY))
        tokens, started = 0, time.perf_counter()
        while engine.busy:
            tokens += sum(len(item.tokens) for item in engine.step())
        mode.count(tokens, time.perf_counter() - started)

    return run


def markdown(what: str, cells: Cells) -> str:
    """Return a table of gains over plain decoding, a row for each cell."""
    names = [name for name in next(iter(cells.values())) if name != "plain"]
    lines = [
        "# The planner beside constant choices",
        "",
        f"{origin(about_this_run())}; {what}; the planner starts cold. Plain decoding in tokens per second; modes "
        "over it, ± the standard error over turns. Typical: if each step took the median of its kind.",
        "",
        *head(
            ["plain", *names, "planner over the best", "typical", "us a choice"],
            "text, batch, busy processes",
        ),
    ]
    for (kind, size, load), modes in cells.items():
        gains = [_gain(modes, name) for name in names]
        lines.append(
            line(f"{kind}, {size}, {load}", [f"{_rate(modes['plain']):.1f}", *gains, *_verdict(modes)])
        )
    return "\n".join([*lines, ""])


def _rate(mode: Mode) -> float:
    return mode.tokens / mode.seconds


def _gain(modes: Mapping[str, Mode], name: str) -> str:
    mode, plain = modes[name], modes["plain"]
    error = standard_error(ratios(mode.rates, plain.rates)) or 0.0
    length = mode.tokens / mode.steps / (plain.tokens / plain.steps)
    return f"{_rate(mode) / _rate(plain):.2f} ± {error:.2f} ({length:.2f})"


def _verdict(modes: Mapping[str, Mode]) -> list[str]:
    """Return the planner's speed over the best constant's, also for typical steps, and its time."""
    usual = medians(modes.values())
    verdict = list[str]()
    for speed in (_rate, partial(Mode.typical_speed, usual=usual)):
        best = max([name for name in modes if name != PLANNER], key=lambda name: speed(modes[name]))
        verdict.append(f"{speed(modes[PLANNER]) / speed(modes[best]):.3f} of {best}")
    return [*verdict, f"{1e6 * modes[PLANNER].planning_s / modes[PLANNER].steps:.0f}"]


def _summary(kind: str, size: int, load: int, modes: Mapping[str, Mode]) -> Iterator[str]:
    yield f"{kind}, batch {size}, {load} busy: " + ", ".join(_verdict(modes))
    for name, mode in modes.items():
        chosen = Counter(key[2] for key, *_ in mode.reports)
        yield f"  {name}: {_rate(mode):.1f} tokens/s, {_gain(modes, name)}, {dict(sorted(chosen.items()))}"


if __name__ == "__main__":
    typer.run(main)
