"""Write the report of `make bench`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.tables import head, line, origin

BATCHES = (1, 4, 16)
COLUMNS = {  # of single requests
    "ttft_ms": ("TTFT, ms", "{:.0f}"),
    "tpot_ms": ("TPOT, ms", "{:.1f}"),
    "memory_growth_mib": ("memory growth, MiB", "{:.0f}"),
    "acceptance_rate": ("acceptance rate", "{:.2f}"),
    "tokens_per_round": ("tokens per round", "{:.2f}"),
}
Measured = Mapping[str, Mapping[str, Any]]


def markdown(about: dict[str, Any], new_tokens: int, turns: int, report: dict[str, Any]) -> str:
    """Return the page: settings, throughput, and single requests of each system."""
    systems, spread = report["systems"], report["spread"]
    there = {name: system for name, system in systems.items() if "missing" not in system}
    lines = [
        "# The runtime on a CPU, compared with its peers",
        "",
        f"{origin(about)}. SmolLM2-135M-Instruct, bfloat16 unless said, greedy, {new_tokens} new tokens, different "
        f"prompts in a batch; medians of {turns} turns, in which the systems alternate, in brackets their range.",
        "",
        *[f"- {name}: {system['settings']}" for name, system in there.items() if "settings" in system],
        *[f"- {name}: {system['missing']}" for name, system in systems.items() if "missing" in system],
        "",
        "## Throughput, tokens/s",
        "",
        *head([f"batch {batch}" for batch in BATCHES], "system"),
    ]
    for name, system in there.items():
        lines.append(line(name, [_rate(system, spread[name], str(batch)) for batch in BATCHES]))
    lines += ["", "## Single requests", "", *head([title for title, _ in COLUMNS.values()], "system")]
    for name, system in there.items():
        cells = [form.format(system[key]) if key in system else "" for key, (_, form) in COLUMNS.items()]
        lines.append(line(name, cells))
    return "\n".join([*lines, ""])


def _rate(system: Mapping[str, Any], spread: Mapping[str, Sequence[float]], batch: str) -> str:
    """Return tokens per second over turns; empty if not measured."""
    if batch not in system:
        return ""
    low, high = spread[batch]
    return f"{system[batch]:.0f} ({low:.0f} to {high:.0f})"


def over_turns(turns: Sequence[Measured], rates: Sequence[str]) -> dict[str, Any]:
    """Return every system's medians over turns, and the ranges of its rates.

    Text comes from the last turn; a system missing in any turn is missing.
    """
    systems: dict[str, dict[str, Any]] = {}
    spread: dict[str, dict[str, list[float]]] = {}
    for name in {**turns[0], **turns[-1]}:
        values = [turn[name] for turn in turns if name in turn]
        reasons = [value["missing"] for value in values if "missing" in value]
        systems[name] = {"missing": reasons[0]} if reasons else _medians(values)
        if not reasons:
            spread[name] = {
                rate: [min(value[rate] for value in values), max(value[rate] for value in values)]
                for rate in rates
                if rate in values[0]
            }
    return {"systems": systems, "spread": spread}


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, str) else median(run[key] for run in runs if key in run)
        for key, value in runs[-1].items()
    }
