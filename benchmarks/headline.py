"""The tables of speed in the README and in docs/performance.md, from the committed reports.

`python -m benchmarks.headline` prints them. Every row comes from one run of one report; a test,
tests/unit/benchmarks/test_headline.py, holds the pages to them.
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


SYSTEMS = {
    "`LLM`, in one process (4-bit blocks)": ("specinfer LLM, plain (Q4_1)", "specinfer LLM, tree (Q4_1)"),
    "`specinfer up`, services (4-bit blocks)": (
        "specinfer services, plain (Q4_1)",
        "specinfer services, tree (Q4_1)",
    ),
    "`LLM` in bfloat16": ("specinfer LLM, plain", "specinfer LLM, tree"),
    "llama.cpp, Python's binding (the same 4-bit blocks), prompt lookup": (
        "llama_cpp plain (Q4_1)",
        "llama_cpp prompt lookup (Q4_1)",
    ),
    "vLLM 0.32 for CPUs (bfloat16), n-grams": ("vllm plain", "vllm n-gram"),
    "OpenVINO GenAI (the same 4-bit blocks), prompt lookup": (
        "openvino plain (int4)",
        "openvino prompt lookup (int4)",
    ),
}
"""Name of a system in the README -> its rows in a report, without and with speculation."""


def peers_table() -> str:
    """Tokens a second of the default and of other engines in one run, plain → with speculation."""
    run = report("peers")["systems"]
    lines = head(BATCHES, "requests at once")
    for name, (plain, speculating) in SYSTEMS.items():
        measured = [batch for batch in BATCHES if batch in run[plain]]
        cells = [f"{run[plain][batch]:.0f} → {run[speculating][batch]:.0f}" for batch in measured]
        lines.append(line(name, cells + [""] * (len(BATCHES) - len(cells))))
    return "\n".join(lines)


def quartiles(figures: dict[str, Any]) -> str:
    """The median gain, with quartiles over turns."""
    low, high = figures["gain_quartiles"]
    return f"{figures['gain']:.2f}x ({low:.2f} to {high:.2f})"


def drafts_table() -> str:
    """Gains of the ways of drafting, by batch size."""
    report_ = report("residents")["kinds"]
    lines = head([f"batch {batch}" for batch in BATCHES], "over plain decoding")
    for kind in TEMPERATURES:
        for mode in report_[kind][BATCHES[0]]:
            if mode != "plain":
                cells = [quartiles(report_[kind][batch][mode]) for batch in BATCHES]
                lines.append(line(f"{mode}, {kind}", cells))
    return "\n".join(lines)


def table() -> str:
    """Plain decoding and trees in bfloat16 on three processors, beside other engines."""
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
    for each in (peers_table(), drafts_table(), table()):
        print(each, end="\n\n")
