"""Write the report of `make bench`."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from benchmarks.peers import runtime
from benchmarks.tables import head, line, origin

BATCHES = (1, 4, 16)
CONTEXTS = (256, 2048)
LONG_ANSWER = 2000
BLOCKS = " (Q4_1)"
"""Marks systems with the GGUF file's 4-bit blocks, as in llama.cpp."""
COLUMNS = {  # of single requests
    "ttft_ms": ("TTFT, ms", "{:.0f}"),
    "tpot_ms": ("TPOT, ms", "{:.1f}"),
    "memory_growth_mib": ("memory growth, MiB", "{:.0f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    "acceptance_rate": ("acceptance rate", "{:.2f}"),
    "tokens_per_round": ("tokens per round", "{:.2f}"),
}


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "# The runtime on a CPU, compared with its peers",
        "",
        f"{origin(report['about'])}. SmolLM2-135M-Instruct, bfloat16 unless said, greedy, "
        f"{report['task']['new_tokens']} new tokens, different prompts in a batch; medians of "
        f"{report['task']['turns']} turns, in which the systems alternate, in brackets their range.",
        "",
        *settings_list(report["systems"]),
        "",
        "## Throughput, tokens/s",
        "",
        *head([f"batch {b}" for b in BATCHES], "system"),
    ]
    for name, system in report["systems"].items():
        if "missing" in system:
            lines.append(line(name, [system["missing"], *[""] * (len(BATCHES) - 1)]))
        else:
            lines.append(line(name, [rate_cell(report, name, str(b)) for b in BATCHES]))
    lines.append("")
    alone = [] if "windows" not in report else [*window_table(report), *pass_tables(report)]
    return "\n".join([*lines, *single_table(report), *alone]) + "\n"


def rate_cell(report: dict[str, Any], name: str, batch: str) -> str:
    """Return a cell: tokens per second over turns; empty if not measured."""
    if batch not in report["systems"][name]:
        return ""
    low, high = report["spread"][name][batch]
    return f"{report['systems'][name][batch]:.0f} ({low:.0f} to {high:.0f})"


def single_table(report: dict[str, Any]) -> list[str]:
    """Tabulate single requests: latency, memory, quality, speculation."""
    lines = [
        "## Single requests",
        "",
        "Perplexity is that of the output under the target in bfloat16; memory growth is that of the "
        "resident process while it answers (a pool that is allocated in advance hardly grows).",
        "",
        *head([title for title, _ in COLUMNS.values()], "system"),
    ]
    for name, system in report["systems"].items():
        if "missing" not in system:
            cells = [form.format(system[key]) if key in system else "" for key, (_, form) in COLUMNS.items()]
            lines.append(line(name, cells))
    return [*lines, ""]


def window_table(report: dict[str, Any]) -> list[str]:
    """Tabulate memory and speed of windowed caches."""
    lines = [
        f"## Windowed cache (StreamingLLM), {LONG_ANSWER} new tokens",
        "",
        "Lossy. The literature's figure for a cache of 256: 54.5 % less memory growth, 22 % less throughput.",
        "",
        "| cache | tokens/s | growth of the cache, MiB | compressions | perplexity under the whole target |",
        "|---|---|---|---|---|",
    ]
    whole = report["windows"]["0"]
    for size, row in report["windows"].items():
        rate, growth = row["tokens_per_second"], row["kv_growth_mib"]
        saved = f" ({100 * (growth / whole['kv_growth_mib'] - 1):+.1f} %)" if size != "0" else ""
        faster = f" ({100 * (rate / whole['tokens_per_second'] - 1):+.1f} %)" if size != "0" else ""
        lines.append(
            f"| {size if size != '0' else 'whole'} | {rate:.0f}{faster} | {growth:.1f}{saved} "
            f"| {row['compressions']} | {row['perplexity']:.3f} |"
        )
    return [*lines, ""]


def pass_tables(report: dict[str, Any]) -> list[str]:
    """Tabulate passes by their size, at several lengths of context, and prefill."""
    sizes, far, times = runtime.NODES, report["long_context"], report["passes_ms"]
    lines = [
        "## One pass, ms",
        "",
        f"Measured {len(times)} times, in blocks twice, between the other measurements, all sizes in turns: "
        "the median, how often it is that of one token, and between what that lay. Cores of shared machines "
        "are at times near each other and share their way to memory, at times apart "
        "(docs/performance.md#cores-near-or-apart).",
        "",
    ]
    lines += head([f"{n} tokens" for n in sizes], "context")
    for kind, measured in (("", times), (BLOCKS, report["native_passes_ms"])):
        for context in map(str, CONTEXTS):
            lines.append(line(f"{context}{kind}", pass_cells([cells[context] for cells in measured])))
    lines.append(line(str(far["tokens"]), pass_cells([far["passes_ms"]])))
    lines += ["", "## Reading 1,024 tokens, ms", ""]
    lines += [f"- {name}: {ms:.0f}" for name, ms in report["prefill_1024_ms"].items()]
    return [
        *lines,
        "",
        f"Reading {far['tokens']} tokens in chunks of {runtime.CHUNK}: {far['read_s']:.1f} s.",
    ]


def pass_cells(times: list[dict[str, dict[str, float]]]) -> list[str]:
    """Return the cells of one context, from several measurements.

    A cell has the milliseconds of passes of one size, and their ratio to passes of one token.
    """
    cells = []
    for size in map(str, runtime.NODES):
        if size not in times[0]:
            cells.append("")
            continue
        ms = median(by_size[size]["median"] for by_size in times)
        ratios = sorted(by_size[size]["median"] / by_size["1"]["median"] for by_size in times)
        between = f"; {ratios[0]:.2f}x to {ratios[-1]:.2f}x" if len(times) > 1 and size != "1" else ""
        cells.append(f"{ms:.2f} ({median(ratios):.2f}x{between})")
    return cells


Measured = Mapping[str, Mapping[str, Any]]


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


def settings_list(systems: Measured) -> list[str]:
    return [f"- {name}: {system['settings']}" for name, system in systems.items() if "settings" in system]
