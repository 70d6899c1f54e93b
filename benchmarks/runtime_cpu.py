"""`make bench`: the runtime on this CPU, beside its peers, in one run.

Writes `benchmarks/results/runtime-cpu.json` and `.md`. Ours is measured before and after the peers, because
the speed of shared machines drifts: compare ratios.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean, median
from typing import Annotated, Any

import torch
import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.runtime import ours, services
from benchmarks.runtime.peers import VARIANTS, run_peer
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
BATCHES = (1, 4, 8, 16)
CONTEXTS = (256, 2048)
NEW_TOKENS = 128
FEW = 6
WINDOWS = (0, 512, 256)
BLOCKS = " (Q4_1)"
"""Marks what runs from the 4-bit blocks of the GGUF file, `--weights native`, as llama.cpp does."""
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
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "runtime-cpu",
) -> None:
    """Measure the runtime beside its peers."""
    torch.set_num_threads(2)
    task = make_task()
    few = task["prompts"][: FEW + 1]
    report: dict[str, Any] = {
        "about": about_this_run(),
        "task": {k: task[k] for k in ("new_tokens", "threads")},
    }
    with console.status("ours") as spinner:
        runner, native = load(), load(weights="native")
        passes = report["passes_ms"] = [pass_costs(runner)]
        native_passes = report["native_passes_ms"] = [pass_costs(native)]
        report["prefill_1024_ms"] = {"specinfer": ours.prefill(runner, task["long_prompt"])}
        spinner.update("long context")
        report["long_context"] = ours.long_context(runner)
        spinner.update("ours, before the peers")
        runners = {"specinfer plain": runner, f"specinfer plain{BLOCKS}": native}
        before = throughput(runners, task["prompts"])
        systems = {name: ours.single(runner, few, NEW_TOKENS) for name, runner in runners.items()}
        spinner.update("ours, through the services")
        for weights, kind in (("converted", ""), ("native", BLOCKS)):
            found = services.measure(task["prompts"], BATCHES, FEW, NEW_TOKENS, weights)
            systems |= {f"specinfer services, {mode}{kind}": result for mode, result in found.items()}
        for name, variant in VARIANTS:
            passes.append(pass_costs(runner))
            spinner.update(f"{name} {variant}")
            result = run_peer(name, MODEL, {**task, "variant": variant})
            if isinstance(result, str):
                systems[f"{name} {variant}".strip()] = {"missing": result}
                continue
            if "prefill_1024_ms" in result:
                report["prefill_1024_ms"][name] = result.pop("prefill_1024_ms")
            systems.update({f"{name} {kind}": found for kind, found in result.items()})
        spinner.update("ours, after the peers")
        after = throughput(runners, task["prompts"])
        spinner.update("windows")
        report["windows"] = windows(task["prompts"][:1], runner)
        passes.append(pass_costs(runner))
        native_passes.append(pass_costs(native))
    spread = {
        name: {b: [rate, after[name][b]] for b, rate in rates.items()} for name, rates in before.items()
    }
    for name, rates in spread.items():
        systems[name] |= {b: mean(both) for b, both in rates.items()}
    for system in systems.values():
        if "outputs" in system:
            system["perplexity"] = ours.perplexity(runner, few[1:], system.pop("outputs"))
    report |= {"systems": systems, "spread": spread}
    publish(out, report, markdown(report))


def load(kv_window: int = 0, weights: str = "converted") -> ModelRunner:
    """The default model, its cache windowed or not."""
    options = RunnerOptions(kv_window=kv_window, weights=weights)
    return ModelRunner.load(resolve_model(MODEL), options)


def throughput(runners: Mapping[str, ModelRunner], prompts: list[list[int]]) -> dict[str, dict[str, float]]:
    """Tokens per second by runner and batch size."""
    return {name: ours.throughput(own, prompts, BATCHES, FEW, NEW_TOKENS) for name, own in runners.items()}


def pass_costs(runner: ModelRunner) -> dict[str, Any]:
    """Measure what passes take now, by context and tokens."""
    return {str(context): ours.pass_costs(runner, context) for context in CONTEXTS}


def make_task() -> dict[str, Any]:
    """Chat prompts as token ids, one long prompt, and where the weights lie."""
    directory = resolve_model(MODEL)
    tokenizer = Tokenizer.load(directory)
    turns = read_prompts(ROOT / "tests" / "data" / "prompts.jsonl")
    prompts = [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
    text = tokenizer.encode(" ".join(turns))
    return {
        "model": str(directory),
        "prompts": prompts,
        "long_prompt": text[:1024],
        "new_tokens": NEW_TOKENS,
        "batches": list(BATCHES),
        "few": FEW,
        "threads": 2,
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
        f"{report['task']['new_tokens']} new tokens, different prompts in a batch.",
        "",
        "## Throughput, tokens/s",
        "",
        *head([f"batch {b}" for b in BATCHES], "system"),
    ]
    for name, system in report["systems"].items():
        if "missing" in system:
            lines.append(line(name, [system["missing"], *[""] * (len(BATCHES) - 1)]))
        else:
            cells = [f"{system[str(b)]:.0f}" if str(b) in system else "" for b in BATCHES]
            lines.append(line(name, cells))
    for name, spread in report["spread"].items():
        rates = ", ".join(f"batch {b}: {lo:.0f} and {hi:.0f}" for b, (lo, hi) in spread.items())
        lines += ["", f"{name} before and after the peers: {rates}."]
    lines.append("")
    return "\n".join([*lines, *single_table(report), *window_table(report), *pass_tables(report)]) + "\n"


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
