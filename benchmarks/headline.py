"""The table of speed in the README, from the committed reports: `python -m benchmarks.headline` prints it.

Every row comes from one run of one report. tests/unit/benchmarks/test_headline.py holds the README to it.
"""

import json
from typing import Any

from benchmarks.publish import RESULTS
from benchmarks.tables import head, line

BATCHES = ("1", "4", "16")
MACHINES = {
    "Zen 5": ("end-to-end", "runtime-cpu"),
    "Zen 4": ("end-to-end-zen4", None),
    "Zen 3": ("end-to-end-avx2", "runtime-cpu-avx2"),
}
"""2 cores of -> report of whole systems, report of the engine beside its peers, if there is one."""
TEMPERATURES = ("greedy", "temperature 0.8")
PEERS = {
    "vLLM": "vllm plain",
    "transformers": "transformers plain",
    "llama.cpp (Q4_1)": "llama_cpp plain (Q4_1)",
}


def table() -> str:
    """The whole table."""
    lines = head([f"batch {batch}" for batch in BATCHES], "tokens/s")
    for machine, (systems, engine) in MACHINES.items():
        lines += system_rows(machine, report(systems)["services"])
        if engine is not None:
            lines += engine_rows(machine, report(engine))
    return "\n".join(lines)


def report(name: str) -> dict[str, Any]:
    """A committed report."""
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return loaded


def system_rows(machine: str, services: dict[str, Any]) -> list[str]:
    """Plain decoding and trees through the services, with the ratio over turns and its standard error."""
    rows = []
    for label in TEMPERATURES:
        plain, tree = services[label]["plain"], services[label]["tree"]
        cells = [f"{speed(plain[batch])} → {speed(tree[batch])} ({ratio(tree[batch])})" for batch in BATCHES]
        rows.append(line(f"{machine}, {label}: plain → tree", cells))
    return rows


def engine_rows(machine: str, run: dict[str, Any]) -> list[str]:
    """The engine without services, with the range of runs before and after its peers, and those; greedy."""
    ours, spread = run["systems"]["specinfer plain"], run["spread"]
    spread = spread.get("specinfer plain", spread)
    cells = [f"{ours[b]:.0f} ({min(spread[b]):.0f} to {max(spread[b]):.0f})" for b in BATCHES]
    rows = [line(f"{machine}, greedy: our engine alone, plain", cells)]
    peers = [run["systems"][key] for key in PEERS.values()]
    cells = [" / ".join(f"{peer[b]:.0f}" if b in peer else "–" for peer in peers) for b in BATCHES]
    return [*rows, line(f"{machine}, greedy: {' / '.join(PEERS)}", cells)]


def speed(figures: dict[str, Any]) -> str:
    """Tokens a second."""
    return f"{figures['tokens_per_second']:.0f}"


def ratio(figures: dict[str, Any]) -> str:
    """Over plain decoding in the same turns."""
    return f"{figures['gain']:.2f}x ± {figures['gain_error']:.2f}"


if __name__ == "__main__":
    print(table())
