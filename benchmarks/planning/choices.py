"""The planner against constant choices, in one process, from a cold start on prompts that taught nothing.

    python -m benchmarks.planning.choices --prompts eval.jsonl [--weights auto,bfloat16] [--batches 1,4,16]

One model is loaded; the modes, plain decoding, constants and the planner, take turns over the same groups of prompts,
each with a planner and a calibration of its own that begin with the first group. All prompts are read once before,
so that nobody's first token waits. A mode is compared with plain decoding in the same turns.
"""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, stdev
from typing import Annotated, Any

import typer

from benchmarks.planning.world import Constant
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.hub import DEFAULT_MODEL
from specinfer.llm.build import LLMOptions, Speculators, build_engine
from specinfer.llm.engine import LocalEngine
from specinfer.planning.calibration import Calibration
from specinfer.planning.choice import Choice
from specinfer.planning.step_report import StepPlanner, StepReport
from specinfer.planning.table_planner import TablePlanner
from specinfer.prompts import read_prompts_by_source
from specinfer.sampling import GREEDY
from specinfer.scheduling.request import GenerationRequest
from specinfer.tokenizer import Tokenizer

PLANNER = "table"
Kind = tuple[int, frozenset[int], int, int]
"""Batch, speculators, planned nodes, tokens of the pass."""
FEW = 6
"""Number of steps of a kind from which their median counts."""


@dataclass
class Mode:
    """One way to plan, and what it achieved; stands in for its planner."""

    planner: StepPlanner
    calibration: Calibration = field(default_factory=Calibration)
    rates: list[float] = field(default_factory=list)
    """Tokens per second by turn."""
    tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    planning_s: float = 0.0
    reports: list[tuple[Kind, float, int]] = field(default_factory=list)
    """Kind, seconds and tokens of the steps without prompts."""

    def enrol(self, services: Sequence[frozenset[int]]) -> None:
        """Set the speculators."""
        self.planner.enrol(services)

    def choose(self, batch: int, wanting: Mapping[str, int]) -> Choice:
        """Return the planner's choice."""
        started = time.thread_time()
        choice = self.planner.choose(batch, wanting)
        self.planning_s += time.thread_time() - started
        return choice

    def observe(self, report: StepReport) -> None:
        """Note a step, and have the planner learn from it."""
        choice = report.choice
        kind = report.batch, choice.speculators, choice.nodes, report.tokens
        self.reports.append((kind, report.seconds, report.brought))
        started = time.thread_time()
        self.planner.observe(report)
        self.planning_s += time.thread_time() - started

    def typical_speed(self, usual: Mapping[Kind, float]) -> float:
        """Return the tokens per second if each step took the median of its kind."""
        seconds = sum(usual.get(kind, seconds) for kind, seconds, _ in self.reports)
        return sum(tokens for *_, tokens in self.reports) / seconds


def medians(modes: Iterable[Mode]) -> dict[Kind, float]:
    """Return the median seconds of steps by kind, over all modes."""
    found = defaultdict[Kind, list[float]](list)
    for mode in modes:
        for kind, seconds, _ in mode.reports:
            found[kind].append(seconds)
    return {kind: median(values) for kind, values in found.items() if len(values) >= FEW}


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")],
    model: Annotated[str, typer.Option(help="Target model.")] = DEFAULT_MODEL,
    speculator: Annotated[str, typer.Option(help="Speculators; auto: those of the model.")] = "auto",
    weights: Annotated[str, typer.Option(help="Weight format.")] = "auto",
    nodes: Annotated[str, typer.Option(help="Constant numbers of nodes, with commas.")] = "2,4,8,16",
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 96,
    count: Annotated[int, typer.Option(help="Prompts of each batch size, at least.")] = 20,
    skip: Annotated[int, typer.Option(help="Prompts of the file to skip.")] = 0,
    batches: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4,16",
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "planner-choices",
) -> None:
    """Compare the planner with constants."""
    speculators: Speculators = speculator if speculator == "auto" else [speculator]
    constants = read_numbers("nodes", nodes)
    engine, tokenizer = build_engine(
        model, speculators, LLMOptions(weights=weights, tree_nodes=max(constants))
    )
    first = engine.machine.planner
    assert isinstance(first, TablePlanner)
    sizes = read_numbers("batches", batches)
    texts = read_prompts_by_source(prompts, skip + sum(max(count, 2 * size) for size in sizes))[skip:]
    report: dict[str, Any] = {"about": about_this_run(), "count": count, "new_tokens": new_tokens, "runs": {}}
    for size in sizes:
        modes: dict[str, Mode] = {"plain": Mode(Constant(0))}
        modes |= {f"{n} nodes": Mode(Constant(n)) for n in constants}
        modes[PLANNER] = Mode(TablePlanner(first.curve, first.budget))
        own = max(count, 2 * size)
        asked = [encode(tokenizer, text.text) for text in texts[:own]]
        texts = texts[own:]
        in_turns(engine, modes, [asked[i : i + size] for i in range(0, own, size)], new_tokens)
        report["runs"][str(size)] = modes
    engine.close()
    publish(out, markdown(report))


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the tokens of a conversation of one message."""
    return list(tokenizer.encode_chat([{"role": "user", "content": text}]))


def in_turns(
    engine: LocalEngine, modes: dict[str, Mode], groups: Sequence[Sequence[Sequence[int]]], new_tokens: int
) -> None:
    """Answer every group in every mode, in an order that rotates."""
    names = list(modes)
    for turn, group in enumerate(groups):
        run(engine, Mode(Constant(4)), group, 1)
        place = turn % len(names)
        for name in names[place:] + names[:place]:
            run(engine, modes[name], group, new_tokens)


def run(engine: LocalEngine, mode: Mode, group: Sequence[Sequence[int]], new_tokens: int) -> None:
    """Answer a group at once."""
    engine.machine.planner, engine.host.calibration = mode, mode.calibration
    for number, prompt in enumerate(group):
        engine.submit(GenerationRequest(f"r{number}", tuple(prompt), new_tokens, GREEDY))
    tokens, steps, started = 0, 0, time.perf_counter()
    while engine.busy:
        tokens += sum(len(item.tokens) for item in engine.step())
        steps += 1
    seconds = time.perf_counter() - started
    mode.rates.append(tokens / seconds)
    mode.tokens, mode.steps, mode.seconds = mode.tokens + tokens, mode.steps + steps, mode.seconds + seconds


def markdown(report: dict[str, Any]) -> str:
    """Return one table: speeds by batch size, over plain decoding and over the best constant."""
    runs: dict[str, dict[str, Mode]] = report["runs"]
    what = f"{report['count']} prompts or two batches at each batch size, {report['new_tokens']} tokens each"
    lines = [
        "# The planner beside constant choices",
        "",
        f"{origin(report['about'])}; {what}, greedy, one process; the planner starts cold. Tokens per second; over "
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
    ratios = [a / b for a, b in zip(mode.rates, plain.rates, strict=True)]
    error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    gain = mode.tokens / mode.seconds / (plain.tokens / plain.seconds)
    length = mode.tokens / mode.steps * plain.steps / plain.tokens
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
