"""Compare the runtime on this CPU with its peers, in one run.

`make bench` writes `benchmarks/results/peers.md`. All systems stay loaded and alternate, each with and without its best
speculation. The speed of shared machines drifts, so compare ratios.
"""

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.peers import runtime, systems
from benchmarks.peers.processes import VARIANTS, PeerProcess, gguf_files, write_float_model
from benchmarks.peers.report import BATCHES, BLOCKS, CONTEXTS, LONG_ANSWER, markdown, over_turns
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS, publish, write
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.llm import LLM
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.tokenizer import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = "smollm2-135m"
THREADS = 2
FEW = 5
WINDOWS = (0, 512, 256)
WEIGHTS = (("bf16", ""), ("auto", BLOCKS))


def main(
    prompts: Annotated[Path, typer.Option(help="Prompts, JSONL.")] = ROOT / "tests/data/prompts.jsonl",
    turns: Annotated[int, typer.Option(min=1, help="Turns of all systems.")] = 2,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 64,
    systems_only: Annotated[bool, typer.Option(help="Skip passes, long contexts and windows.")] = False,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "peers",
) -> None:
    """Compare the runtime with its peers."""
    torch.set_num_threads(THREADS)
    task = make_task(prompts, new_tokens)
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks peers"),
        "task": {k: task[k] for k in ("new_tokens", "threads")},
        "passes_ms": [],
        "native_passes_ms": [],
    }
    with console.status("ours") as spinner, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        show = spinner.update if console.is_terminal else console.print
        runners = {"specinfer plain": load(), f"specinfer plain{BLOCKS}": load(weights="auto")}
        runner, native = runners.values()
        llms = {
            kind: stack.enter_context(LLM(MODEL, weights=weights, max_num_seqs=max(BATCHES)))
            for weights, kind in WEIGHTS
        }
        gguf = gguf_files(MODEL, Path(folder))
        peers = [PeerProcess(name, variant, gguf, Path(folder)) for name, variant in VARIANTS]
        for peer in peers:
            stack.callback(peer.close)
        report["prefill_1024_ms"] = {"specinfer": runtime.prefill(runner, task["long_prompt"])}
        turns_measured: list[dict[str, dict[str, Any]]] = []
        for turn in range(turns):
            if not systems_only:
                report["passes_ms"].append(pass_costs(runner))
                report["native_passes_ms"].append(pass_costs(native))
            rotated_task = {**task, "prompts": rotated(task["prompts"], turn * (FEW + 1))}
            measured = one_turn(runners, llms, peers, rotated_task, turn, show)
            for system in measured.values():
                if "outputs" in system:
                    few = rotated_task["prompts"][1 : FEW + 1]
                    system["perplexity"] = runtime.perplexity(runner, few, system.pop("outputs"))
                if "prefill_1024_ms" in system:
                    report["prefill_1024_ms"]["transformers"] = system.pop("prefill_1024_ms")
            turns_measured.append(measured)
            report["task"]["turns"] = len(turns_measured)
            report |= over_turns(turns_measured, list(map(str, BATCHES)))
            write(out, markdown(report))
        if not systems_only:
            show("long context")
            report["long_context"] = runtime.long_context(runner)
            show("windows")
            report["windows"] = windows(task["prompts"][:1], runner)
    publish(out, markdown(report))


def one_turn(
    runners: Mapping[str, ModelRunner],
    llms: Mapping[str, LLM],
    peers: Sequence[PeerProcess],
    task: dict[str, Any],
    turn: int,
    show: Callable[[str], None],
) -> dict[str, dict[str, Any]]:
    """Measure every system once; every second turn in reverse order."""
    works: list[tuple[str, Callable[[], dict[str, dict[str, Any]]]]] = [
        *((name, partial(engine, name, runner, task)) for name, runner in runners.items()),
        *((f"LLM{kind}", partial(in_one_process, llm, kind, task)) for kind, llm in llms.items()),
        *((f"services{kind}", partial(through_services, weights, kind, task)) for weights, kind in WEIGHTS),
        *((peer.label, partial(of_peer, peer, task)) for peer in peers),
    ]
    modes: dict[str, dict[str, Any]] = {}
    for label, work in works[:: -1 if turn % 2 else 1]:
        show(f"turn {turn + 1}: {label}")
        modes |= work()
    return modes


def engine(name: str, runner: ModelRunner, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Measure our runtime without services and speculation."""
    few, new_tokens = task["few"], task["new_tokens"]
    rates = runtime.throughput(runner, task["prompts"], BATCHES, few, new_tokens)
    single = runtime.single(runner, task["prompts"][: few + 1], new_tokens)
    return {name: {**single, **rates, "settings": settings(BLOCKS in name)}}


def in_one_process(llm: LLM, kind: str, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Measure `LLM`, in one process."""
    modes = systems.measure_llm(llm, task["prompts"], BATCHES, task["few"], task["new_tokens"])
    flags = f"{settings(bool(kind))}, default speculators"
    return {f"specinfer LLM, {mode}{kind}": {**figures, "settings": flags} for mode, figures in modes.items()}


def through_services(weights: str, kind: str, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Measure our services."""
    modes = systems.measure_services(task["prompts"], BATCHES, task["few"], task["new_tokens"], weights)
    flags = f"{settings(bool(kind))}, --weights {weights}, default speculators"
    return {
        f"specinfer services, {mode}{kind}": {**figures, "settings": flags} for mode, figures in modes.items()
    }


def of_peer(peer: PeerProcess, task: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a peer's figures by mode, or `missing` with the reason."""
    result = peer.measure(task)
    if isinstance(result, str):
        return {peer.label: {"missing": result}}
    prefill = {"prefill_1024_ms": result.pop("prefill_1024_ms")} if "prefill_1024_ms" in result else {}
    return {f"{peer.label.split()[0]} {mode}": {**figures, **prefill} for mode, figures in result.items()}


def settings(native: bool) -> str:
    weights = "the GGUF file's blocks of 4 bits" if native else "bfloat16"
    return f"{weights}; {THREADS} threads"


def rotated(prompts: list[list[int]], start: int) -> list[list[int]]:
    """Rotate the prompts, so that turns begin with different prompts."""
    start %= len(prompts)
    return prompts[start:] + prompts[:start]


def load(kv_window: int = 0, weights: str = "bf16") -> ModelRunner:
    """Load the default model; `kv_window` tokens stay cached, 0: all."""
    options = RunnerOptions(kv_window=kv_window, weights=weights)
    return load_checked(resolve_model(MODEL), options)


def pass_costs(runner: ModelRunner) -> dict[str, Any]:
    """Measure passes by context and tokens."""
    return {str(context): runtime.pass_costs(runner, context) for context in CONTEXTS}


def make_task(file: Path, new_tokens: int) -> dict[str, Any]:
    """Return a task: prompts as token ids, weights' directory, and settings."""
    directory = resolve_model(MODEL)
    tokenizer = Tokenizer.load(directory)
    turns = mixed_texts(file)
    prompts = [tokenizer.encode_chat([{"role": "user", "content": turn}]) for turn in turns]
    text = tokenizer.encode(" ".join(turns))
    return {
        "model": str(write_float_model(MODEL)),
        "prompts": prompts,
        "long_prompt": text[:1024],
        "new_tokens": new_tokens,
        "batches": list(BATCHES),
        "few": FEW,
        "threads": THREADS,
    }


def windows(prompts: list[list[int]], whole: ModelRunner) -> dict[str, dict[str, Any]]:
    """Measure long answers with whole and windowed caches (StreamingLLM)."""
    windows = {}
    for size in WINDOWS:
        result = runtime.window(load(size) if size else whole, prompts, LONG_ANSWER)
        result["perplexity"] = runtime.perplexity(whole, prompts, result.pop("outputs"))
        windows[str(size)] = result
    return windows


if __name__ == "__main__":
    typer.run(main)
