"""The ledger of a step, from what each turn used. Pure."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median, stdev
from typing import Any

from benchmarks.step.readings import Reading
from benchmarks.tables import head, line, origin

IN_PROCESS = "in process"
PHASES = ("draft", "merge", "verify", "commit")
Turns = Sequence[Reading]
Figure = Callable[[Turns], float | None]
"""A figure of one system; None where the system has no such part."""


def total(turns: Turns, name: str) -> float | None:
    """A counter over all turns; None if the system does not count it."""
    values = [turn[name] for turn in turns if name in turn]
    return sum(values) if values else None


def per_step(name: str, unit: float = 1.0) -> Figure:
    """A counter by step of the batch."""

    def figure(turns: Turns) -> float | None:
        value = total(turns, name)
        return None if value is None else unit * value / sum(turn["steps"] for turn in turns)

    return figure


def tokens_per_second(turns: Turns) -> float:
    """Tokens of all requests by the time of all turns."""
    return sum(turn["tokens"] for turn in turns) / sum(turn["wall"] for turn in turns)


def ratios(own: Turns, other: Turns) -> list[float]:
    """Speed over another system's, turn by turn."""
    pairs = zip(own, other, strict=True)
    return [tokens_per_second([mine]) / tokens_per_second([theirs]) for mine, theirs in pairs]


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean; 0 for a single value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def verifier_beside_pass(of_pass: float | None) -> Figure:
    """Processor time of the verifier by step beside its pass, which in process takes `of_pass` ms of it."""

    def figure(turns: Turns) -> float | None:
        value = per_step("cpu.verifier", 1000)(turns)
        return None if value is None or of_pass is None else value - of_pass

    return figure


def own_process_beside_pass(turns: Turns) -> float | None:
    """Processor time by step of `LLM` beside its passes."""
    whole, passes = per_step("cpu.process", 1000)(turns), per_step("pass_cpu", 1000)(turns)
    return None if whole is None or passes is None else whole - passes


def hop(turns: Turns) -> float | None:
    """Wall time of the verify phase beside the verifier's step."""
    phase, step = per_step("phase.verify", 1000)(turns), per_step("verifier_step", 1000)(turns)
    return None if phase is None or step is None else phase - step


def beside_pass(turns: Turns) -> float:
    """Wall time of a step beside its pass."""
    return 1000 * sum(turn["wall"] - turn["pass"] for turn in turns) / sum(turn["steps"] for turn in turns)


def processes(columns: Mapping[str, Turns]) -> list[str]:
    """Processes of the services, in their order."""
    names = [name for turns in columns.values() for turn in turns for name in turn if name.startswith("cpu.")]
    return [name.removeprefix("cpu.") for name in dict.fromkeys(names) if name != "cpu.process"]


def rows(columns: Mapping[str, Turns]) -> dict[str, Figure]:
    """Label and figure of every line of the ledger."""
    of_pass = per_step("pass_cpu", 1000)(columns[IN_PROCESS])
    services = processes(columns)
    commands = sorted(
        {name for turns in columns.values() for turn in turns for name in turn if name.startswith("redis.")}
    )
    busy = [name for name in commands if max(per_step(name)(turns) or 0 for turns in columns.values()) >= 0.5]
    return {
        "tokens/s": tokens_per_second,
        "wall, ms a step": per_step("wall", 1000),
        "pass": per_step("pass", 1000),
        "beside the pass": beside_pass,
        **{f"phase {name}": per_step(f"phase.{name}", 1000) for name in PHASES},
        "verifier's step": per_step("verifier_step", 1000),
        "verify phase beside it (the hop)": hop,
        "CPU, ms a step: pass": per_step("pass_cpu", 1000),
        "CPU: `LLM` beside the pass": own_process_beside_pass,
        **{f"CPU: {name}": per_step(f"cpu.{name}", 1000) for name in services},
        "CPU: verifier beside the pass of one process": verifier_beside_pass(of_pass),
        **{f"sleeps a step: {name}": per_step(f"sleeps.{name}") for name in services},
        "messages a step: verifier": per_step("messages.verifier"),
        "messages a step: speculators": per_step("messages.speculators"),
        "messages a step: clients": per_step("messages.clients"),
        "bytes a step: verifier": per_step("bytes.verifier"),
        "bytes a step: clients": per_step("bytes.client"),
        **{f"Redis commands a step: {name.removeprefix('redis.')}": per_step(name) for name in busy},
        "Redis in scripts, ms a step": per_step("redis_seconds", 1000),
    }


def table(batch: int, columns: Mapping[str, Turns]) -> list[str]:
    """The ledger of one batch size."""
    lines = [f"## Batch {batch}", "", *head(list(columns), "a plain step")]
    for label, figure in rows(columns).items():
        cells = [figure(turns) for turns in columns.values()]
        if any(cell is not None for cell in cells):
            lines.append(line(label, ["" if cell is None else _written(cell) for cell in cells]))
    base = columns[IN_PROCESS]
    speeds = [ratios(turns, base) for turns in columns.values()]
    cells = [f"{median(found):.2f}x ± {standard_error(found):.2f}" for found in speeds]
    return [*lines, line(f"speed over {IN_PROCESS} (median of turns)", cells), ""]


def _written(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def markdown(report: Mapping[str, Any]) -> str:
    """The report."""
    told = f"{report['new_tokens']} new tokens a request, greedy, default weights, no speculation"
    lines = ["# Ledger of a step", "", f"{origin(report['about'])}; {told}; all systems take turns.", ""]
    for name, commit in report["commits"].items():
        lines.append(f"- {name}: {commit}")
    lines.append("")
    for batch, columns in report["batches"].items():
        lines += table(int(batch), columns)
    return "\n".join(lines)
