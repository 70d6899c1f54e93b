"""Compare the planner with constant choices, from a cold start.

    python -m benchmarks.planning.choices --prompts eval.jsonl [--model M --draft D] [--batches 1,4,16]

One model is loaded. The modes (plain decoding, constants, the planner) alternate over the same groups of prompts. Each
mode has its own planner and calibration, which start cold.
All prompts are cached before. A mode is compared with plain decoding in the same turns.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from benchmarks.planning.world import Constant
from benchmarks.prompts import read_prompts_by_source
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

PLANNER = "table"
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


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")],
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    draft: Annotated[str, typer.Option(help="Draft; auto: the model's draft.")] = "auto",
    weights: Annotated[str, typer.Option(help="Weight format.")] = "auto",
    nodes: Annotated[str, typer.Option(help="Constant numbers of nodes, with commas.")] = "2,4,8,16",
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 96,
    count: Annotated[int, typer.Option(help="Prompts of each batch size, at least.")] = 20,
    skip: Annotated[int, typer.Option(help="Prompts of the file to skip.")] = 0,
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4,16",
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "planner-choices",
) -> None:
    """Compare the planner with plain decoding and constant numbers of nodes."""
    constants, sizes = read_numbers("nodes", nodes), read_numbers("batches", batches)
    counts = {size: max(count, 2 * size) for size in sizes}
    texts = [text.text for text in read_prompts_by_source(prompts, skip + sum(counts.values()))[skip:]]
    tokenizer = Tokenizer.load(resolve_model(model))
    asked = {size: [encode(tokenizer, texts.pop(0)) for _ in range(counts[size])] for size in sizes}

    def modes(first: StepPlanner) -> dict[str, Mode]:
        assert isinstance(first, TablePlanner)
        modes: dict[str, Mode] = {"plain": Mode(Constant(0))}
        modes |= {f"{n} nodes": Mode(Constant(n)) for n in constants}
        return modes | {PLANNER: Mode(TablePlanner(first.curve, first.budget))}

    async def every_size(run: Run, first: StepPlanner) -> dict[int, dict[str, Mode]]:
        runs = {size: modes(first) for size in sizes}
        for size, group in asked.items():
            await in_turns(
                run, runs[size], [group[i : i + size] for i in range(0, len(group), size)], new_tokens
            )
        return runs

    options = LLMOptions(weights=weights, tree_nodes=max(constants))
    engine, _ = build_engine(model, draft, None, options)
    runs = asyncio.run(every_size(in_process(engine), engine.machine.planner))
    engine.close()
    what = f"{model} with the draft {draft}, {weights} weights; {count} prompts or two batches at each batch size"
    publish(out, markdown(f"{what}, {new_tokens} tokens each, greedy, one process", runs))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a conversation of one message."""
    return list(tokenizer.encode_chat([{"role": "user", "content": text}]))


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


def markdown(what: str, runs: Mapping[int, dict[str, Mode]]) -> str:
    """Return one table of speeds by batch size, with ratios."""
    lines = [
        "# The planner beside constant choices",
        "",
        f"{origin(about_this_run())}; {what}; the planner starts cold. Tokens per second; over "
        "plain decoding ± the standard error over turns; tokens a step of a request.",
        "",
        *head([f"batch {size}" for size in runs]),
    ]
    for name in next(iter(runs.values())):
        cells = [_cell(modes[name], modes["plain"]) for modes in runs.values()]
        lines.append(line(name, cells))
    lines += ["", "## If each step took the median of its kind", ""]
    lines += ["Over plain decoding; the planner over the best constant, and its processor time a step.", ""]
    lines += head([f"batch {size}" for size in runs])
    for name in next(iter(runs.values())):
        lines.append(line(name, [_typical(modes, name) for modes in runs.values()]))
    return "\n".join([*lines, ""])


def _cell(mode: Mode, plain: Mode) -> str:
    error = standard_error(ratios(mode.rates, plain.rates)) or 0.0
    gain = mode.tokens / mode.seconds / (plain.tokens / plain.seconds)
    length = mode.tokens / mode.steps / (plain.tokens / plain.steps)
    return f"{mode.tokens / mode.seconds:.0f} ({gain:.2f}x ± {error:.2f}, {length:.2f})"


def _typical(modes: dict[str, Mode], name: str) -> str:
    usual = medians(modes.values())
    speeds = {key: mode.typical_speed(usual) for key, mode in modes.items()}
    gain = f"{speeds[name] / speeds['plain']:.3f}x"
    if name != PLANNER:
        return gain
    best = max([key for key in modes if key != PLANNER], key=lambda key: speeds[key])
    micros = 1e6 * modes[name].planning_s / modes[name].steps
    return f"{gain}: {speeds[name] / speeds[best]:.3f} of {best}; {micros:.0f} us"


if __name__ == "__main__":
    typer.run(main)
