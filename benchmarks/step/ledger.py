"""Compute a step's costs from counters before and after each turn."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families
from redis import Redis

from benchmarks.tables import head, line, origin
from specinfer.client import AsyncClient
from specinfer.llm import LLM
from specinfer.system.turns import ratios, standard_error

Reading: TypeAlias = Mapping[str, float]
_OWN_COMMANDS = ("info",)
"""Redis commands of reading the counters, which do not count."""


def used(before: Reading, after: Reading) -> dict[str, float]:
    """Return the difference of two readings."""
    return {name: round(value - before.get(name, 0.0), 6) for name, value in after.items()}


def process_counters(name: str, pid: int | str) -> dict[str, float]:
    """Return a process' processor seconds and the number of its sleeps."""
    seconds, sleeps = 0, 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds += int((thread / "schedstat").read_text().split()[0])
            status = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the thread has just ended
        sleeps += int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return {f"cpu.{name}": seconds / 1e9, f"sleeps.{name}": float(sleeps)}


def metric_values(port: int) -> dict[str, float]:
    """Return a service's metrics by "NAME.LABEL", without buckets."""
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        families = list(text_string_to_metric_families(reply.read().decode()))
    return {
        ".".join([sample.name, *sample.labels.values()]): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_bucket")
    }


def redis_counters(redis: "Redis") -> dict[str, float]:
    """Return Redis' calls by command, and their seconds.

    Scripts also count their commands.
    """
    stats: dict[str, Any] = redis.info("commandstats")
    named = {key.removeprefix("cmdstat_"): value for key, value in stats.items()}
    counters = {
        f"redis.{name}": float(value["calls"]) for name, value in named.items() if name not in _OWN_COMMANDS
    }
    scripts = named.get("evalsha", {"usec": 0})
    return counters | {"redis_seconds": scripts["usec"] / 1e6}


async def service_counters(
    client: AsyncClient, pids: Mapping[str, int], ports: Mapping[str, int], redis: "Redis"
) -> dict[str, float]:
    """Return all counters of a system of services."""
    counters = await gateway_counters(client, ports)
    for name, pid in pids.items():
        counters |= process_counters(name, pid)
    return counters | redis_counters(redis)


async def gateway_counters(client: AsyncClient, ports: Mapping[str, int]) -> dict[str, float]:
    """Return counters of steps and messages; `ports` are those of metrics."""
    status = await client.status()
    counters = {"wall": time.perf_counter(), "steps": float(status.steps), "tokens": float(status.new_tokens)}
    counters |= {f"phase.{phase.name}": phase.seconds for phase in status.phases}
    verifier, gateway = metric_values(ports["verifier"]), metric_values(ports["gateway"])
    passes = [
        value for name, value in verifier.items() if name.startswith("specinfer_verifier_pass_seconds_sum")
    ]
    counters["pass"] = sum(passes)
    counters["verifier_step"] = verifier["specinfer_verifier_step_seconds_sum"]
    counters["messages.verifier"] = 2 * verifier.get(
        "specinfer_verifier_messages_total", verifier["specinfer_verifier_step_seconds_count"]
    )
    for name, value in gateway.items():
        if name.startswith("specinfer_wire_bytes_total."):
            peer = name.split(".")[1]
            counters[f"bytes.{peer}"] = counters.get(f"bytes.{peer}", 0.0) + value
        if name.startswith("specinfer_drafts_total."):
            counters["messages.speculators"] = counters.get("messages.speculators", 0.0) + value
    return counters


def in_process_counters(llm: LLM, pass_cpu_s: float) -> dict[str, float]:
    """Return an `LLM`'s counters; `pass_cpu_s` is the processor time of passes."""
    totals = {metric.name: metric.value for metric in llm.get_metrics()}
    return {
        "wall": time.perf_counter(),
        "steps": totals["steps"],
        "tokens": totals["generation_tokens"],
        "pass": totals["pass_seconds"],
        "pass_cpu": pass_cpu_s,
        **process_counters("process", "self"),
    }


IN_PROCESS = "in process"
PHASES = ("draft", "merge", "verify", "commit")
Turns = Sequence[Reading]
Figure = Callable[[Turns], float | None]
"""Computes a figure from a system's turns; None if not applicable."""


def total(turns: Turns, name: str) -> float | None:
    """Return a counter's sum over turns; None if not counted."""
    values = [turn[name] for turn in turns if name in turn]
    return sum(values) if values else None


def per_step(name: str, unit: float = 1.0) -> Figure:
    """Return the figure of a counter per step of the batch."""

    def figure(turns: Turns) -> float | None:
        value = total(turns, name)
        return None if value is None else unit * value / sum(turn["steps"] for turn in turns)

    return figure


def tokens_per_second(turns: Turns) -> float:
    """Return tokens per second over all turns."""
    return sum(turn["tokens"] for turn in turns) / sum(turn["wall"] for turn in turns)


def rates(turns: Turns) -> list[float]:
    """Return tokens per second of every turn."""
    return [tokens_per_second([turn]) for turn in turns]


def verifier_beside_pass(of_pass: float | None) -> Figure:
    """Return the figure: the verifier's processor ms per step, without its pass.

    `of_pass` is the processor time of a pass in ms, measured in process.
    """

    def figure(turns: Turns) -> float | None:
        value = per_step("cpu.verifier", 1000)(turns)
        return None if value is None or of_pass is None else value - of_pass

    return figure


def own_process_beside_pass(turns: Turns) -> float | None:
    """Return `LLM`'s processor time per step, without its passes."""
    whole, passes = per_step("cpu.process", 1000)(turns), per_step("pass_cpu", 1000)(turns)
    return None if whole is None or passes is None else whole - passes


def hop(turns: Turns) -> float | None:
    """Return the verify phase's wall time, without the verifier's step."""
    phase, step = per_step("phase.verify", 1000)(turns), per_step("verifier_step", 1000)(turns)
    return None if phase is None or step is None else phase - step


def beside_pass(turns: Turns) -> float:
    """Return a step's wall time without its pass."""
    return 1000 * sum(turn["wall"] - turn["pass"] for turn in turns) / sum(turn["steps"] for turn in turns)


def processes(columns: Mapping[str, Turns]) -> list[str]:
    """Return the names of the services' processes, in order."""
    names = [name for turns in columns.values() for turn in turns for name in turn if name.startswith("cpu.")]
    return [name.removeprefix("cpu.") for name in dict.fromkeys(names) if name != "cpu.process"]


def rows(columns: Mapping[str, Turns]) -> dict[str, Figure]:
    """Return the report's figures, by label."""
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
    """Return the table of one batch size."""
    lines = [f"## Batch {batch}", "", *head(list(columns), "a plain step")]
    for label, figure in rows(columns).items():
        cells = [figure(turns) for turns in columns.values()]
        if any(cell is not None for cell in cells):
            lines.append(line(label, ["" if cell is None else _written(cell) for cell in cells]))
    base = columns[IN_PROCESS]
    speeds = [ratios(rates(turns), rates(base)) for turns in columns.values()]
    gains = [f"{median(speeds_of):.2f}x ± {standard_error(speeds_of) or 0:.2f}" for speeds_of in speeds]
    return [*lines, line(f"speed over {IN_PROCESS} (median of turns)", gains), ""]


def _written(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"


def markdown(report: Mapping[str, Any]) -> str:
    line = f"{report['new_tokens']} new tokens a request, greedy, default weights, no speculation"
    lines = ["# Ledger of a step", "", f"{origin(report['about'])}; {line}; all systems take turns.", ""]
    for name, commit in report["commits"].items():
        lines.append(f"- {name}: {commit}")
    lines.append("")
    for batch, columns in report["batches"].items():
        lines += table(int(batch), columns)
    return "\n".join(lines)
