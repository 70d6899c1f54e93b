"""`make bench`: the runtime on this CPU, beside its peers, in one run.

Writes `benchmarks/results/runtime-cpu.json` and `.md`. All systems stay loaded and take turns, each with its own best
speculation and without, because the speed of shared machines drifts: compare ratios.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.runtime import ours, services
from benchmarks.runtime.peers import VARIANTS, PeerProcess, gguf_files
from benchmarks.runtime.turns import over_turns, settings_list
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.prompts import read_prompts
from specinfer.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2-135m"
BATCHES = (1, 4, 16)
CONTEXTS = (256, 2048)
THREADS = 2
FEW = 3
WINDOWS = (0, 512, 256)
BLOCKS = " (Q4_1)"
"""Marks what runs from the 4-bit blocks of the GGUF file, `--weights native`, as llama.cpp does."""
SERVICES = (("converted", ""), ("native", BLOCKS))
LONG_ANSWER = 2000
COLUMNS = {  # of single requests
    "ttft_ms": ("TTFT, ms", "{:.0f}"),
    "tpot_ms": ("TPOT, ms", "{:.1f}"),
    "memory_growth_mib": ("memory growth, MiB", "{:.0f}"),
    "perplexity": ("perplexity", "{:.3f}"),
    "acceptance_rate": ("acceptance rate", "{:.2f}"),
    "tokens_per_round": ("tokens per round", "{:.2f}"),
}


def main(
    prompts: Annotated[Path, typer.Option(help="Prompts, JSONL.")] = ROOT / "tests/data/prompts.jsonl",
    turns: Annotated[int, typer.Option(min=1, help="Turns of all systems.")] = 2,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 64,
    systems_only: Annotated[bool, typer.Option(help="Neither passes nor long contexts nor windows.")] = False,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "runtime-cpu",
) -> None:
    """Measure the runtime beside its peers."""
    torch.set_num_threads(THREADS)
    task = make_task(prompts, new_tokens)
    report: dict[str, Any] = {
        "about": about_this_run(),
        "task": {k: task[k] for k in ("new_tokens", "threads")} | {"turns": turns},
        "passes_ms": [],
        "native_passes_ms": [],
    }
    with console.status("ours") as spinner, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        runners = {"specinfer plain": load(), f"specinfer plain{BLOCKS}": load(weights="native")}
        runner, native = runners.values()
        gguf = gguf_files(MODEL, Path(folder))
        peers = [PeerProcess(name, variant, gguf, Path(folder)) for name, variant in VARIANTS]
        for peer in peers:
            stack.callback(peer.close)
        report["prefill_1024_ms"] = {"specinfer": ours.prefill(runner, task["long_prompt"])}
        found: list[dict[str, dict[str, Any]]] = []
        for turn in range(turns):
            if not systems_only:
                report["passes_ms"].append(pass_costs(runner))
                report["native_passes_ms"].append(pass_costs(native))
            own = {**task, "prompts": rotated(task["prompts"], turn * (FEW + 1))}
            measured = one_turn(runners, peers, own, turn, spinner.update)
            for system in measured.values():
                if "outputs" in system:
                    few = own["prompts"][1 : FEW + 1]
                    system["perplexity"] = ours.perplexity(runner, few, system.pop("outputs"))
                if "prefill_1024_ms" in system:
                    report["prefill_1024_ms"]["transformers"] = system.pop("prefill_1024_ms")
            found.append(measured)
        if not systems_only:
            spinner.update("long context")
            report["long_context"] = ours.long_context(runner)
            spinner.update("windows")
            report["windows"] = windows(task["prompts"][:1], runner)
    report |= over_turns(found, list(map(str, BATCHES)))
    publish(out, report, markdown(report))


def one_turn(
    runners: Mapping[str, ModelRunner],
    peers: Sequence[PeerProcess],
    task: dict[str, Any],
    turn: int,
    show: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Measure every system once; every second turn in reverse order."""
    works: list[tuple[str, Callable[[], dict[str, dict[str, Any]]]]] = [
        *((name, partial(engine, name, runner, task)) for name, runner in runners.items()),
        *((f"services{kind}", partial(through_services, weights, kind, task)) for weights, kind in SERVICES),
        *((peer.label, partial(of_peer, peer, task)) for peer in peers),
    ]
    found: dict[str, dict[str, Any]] = {}
    for label, work in works[:: -1 if turn % 2 else 1]:
        show(f"turn {turn + 1}: {label}")
        found |= work()
    return found


def engine(name: str, runner: ModelRunner, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Our runtime alone."""
    few, new_tokens = task["few"], task["new_tokens"]
    rates = ours.throughput(runner, task["prompts"], BATCHES, few, new_tokens)
    single = ours.single(runner, task["prompts"][: few + 1], new_tokens)
    return {name: {**single, **rates, "settings": settings(BLOCKS in name)}}


def through_services(weights: str, kind: str, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Our services."""
    found = services.measure(task["prompts"], BATCHES, task["few"], task["new_tokens"], weights)
    flags = f"{settings(bool(kind))}, --weights {weights}, default speculators"
    return {f"specinfer services, {mode}{kind}": {**own, "settings": flags} for mode, own in found.items()}


def of_peer(peer: PeerProcess, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A peer's modes, or why there are none."""
    result = peer.measure(task)
    if isinstance(result, str):
        return {peer.label: {"missing": result}}
    prefill = {"prefill_1024_ms": result.pop("prefill_1024_ms")} if "prefill_1024_ms" in result else {}
    return {f"{peer.label.split()[0]} {mode}": {**own, **prefill} for mode, own in result.items()}


def settings(native: bool) -> str:
    """Form of our weights, and threads."""
    weights = "the GGUF file's blocks of 4 bits" if native else "bfloat16"
    return f"{weights}; {THREADS} threads"


def rotated(prompts: list[list[int]], start: int) -> list[list[int]]:
    """The prompts, beginning elsewhere in every turn."""
    start %= len(prompts)
    return prompts[start:] + prompts[:start]


def load(kv_window: int = 0, weights: str = "converted") -> ModelRunner:
    """The default model, its cache windowed or not."""
    options = RunnerOptions(kv_window=kv_window, weights=weights)
    return ModelRunner.load(resolve_model(MODEL), options)


def pass_costs(runner: ModelRunner) -> dict[str, Any]:
    """Measure what passes take now, by context and tokens."""
    return {str(context): ours.pass_costs(runner, context) for context in CONTEXTS}


def make_task(file: Path, new_tokens: int) -> dict[str, Any]:
    """Chat prompts as token ids, one long prompt, and where the weights lie."""
    directory = resolve_model(MODEL)
    tokenizer = Tokenizer.load(directory)
    turns = read_prompts(file)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
    text = tokenizer.encode(" ".join(turns))
    return {
        "model": str(directory),
        "prompts": prompts,
        "long_prompt": text[:1024],
        "new_tokens": new_tokens,
        "batches": list(BATCHES),
        "few": FEW,
        "threads": THREADS,
    }


def windows(prompts: list[list[int]], whole: ModelRunner) -> dict[str, dict[str, Any]]:
    """A long answer with the whole cache and with sliding windows (StreamingLLM)."""
    found = {}
    for size in WINDOWS:
        result = ours.window(load(size) if size else whole, prompts, LONG_ANSWER)
        result["perplexity"] = ours.perplexity(whole, prompts, result.pop("outputs"))
        found[str(size)] = result
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    lines = [
        "# The runtime on a CPU, beside its peers",
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
    """Tokens per second over turns; empty if not measured."""
    if batch not in report["systems"][name]:
        return ""
    low, high = report["spread"][name][batch]
    return f"{report['systems'][name][batch]:.0f} ({low:.0f} to {high:.0f})"


def single_table(report: dict[str, Any]) -> list[str]:
    """Single requests: latency, memory, quality, speculation."""
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
    """Tabulate what a windowed cache saves and costs."""
    lines = [
        f"## Windowed cache (StreamingLLM), {LONG_ANSWER} new tokens",
        "",
        "Lossy. The literature's figure for a cache of 256: 54.5 % less memory growth, 22 % less throughput.",
        "",
        "| cache | tokens/s | growth of the cache, MiB | compressions | perplexity under the whole target |",
        "|---|---|---|---|---|",
    ]
    whole = report["windows"]["0"]
    for size, found in report["windows"].items():
        rate, growth = found["tokens_per_second"], found["kv_growth_mib"]
        saved = f" ({100 * (growth / whole['kv_growth_mib'] - 1):+.1f} %)" if size != "0" else ""
        faster = f" ({100 * (rate / whole['tokens_per_second'] - 1):+.1f} %)" if size != "0" else ""
        lines.append(
            f"| {size if size != '0' else 'whole'} | {rate:.0f}{faster} | {growth:.1f}{saved} "
            f"| {found['compressions']} | {found['perplexity']:.3f} |"
        )
    return [*lines, ""]


def pass_tables(report: dict[str, Any]) -> list[str]:
    """Tabulate passes by their size, at several lengths of context, and prefill."""
    sizes, far, times = ours.NODES, report["long_context"], report["passes_ms"]
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
            lines.append(line(f"{context}{kind}", pass_cells([found[context] for found in measured])))
    lines.append(line(str(far["tokens"]), pass_cells([far["passes_ms"]])))
    lines += ["", "## Reading 1,024 tokens, ms", ""]
    lines += [f"- {name}: {ms:.0f}" for name, ms in report["prefill_1024_ms"].items()]
    return [*lines, "", f"Reading {far['tokens']} tokens in chunks of {ours.CHUNK}: {far['read_s']:.1f} s."]


def pass_cells(times: list[dict[str, dict[str, float]]]) -> list[str]:
    """Return the cells of one context: milliseconds by size, as multiples of one token, from several measurements."""
    cells = []
    for size in map(str, ours.NODES):
        if size not in times[0]:
            cells.append("")
            continue
        ms = median(found[size]["median"] for found in times)
        ratios = sorted(found[size]["median"] / found["1"]["median"] for found in times)
        between = f"; {ratios[0]:.2f}x to {ratios[-1]:.2f}x" if len(times) > 1 and size != "1" else ""
        cells.append(f"{ms:.2f} ({median(ratios):.2f}x{between})")
    return cells


if __name__ == "__main__":
    typer.run(main)
