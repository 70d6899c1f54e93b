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

from benchmarks.peers.processes import VARIANTS, PeerProcess, gguf_files, write_float_model
from benchmarks.peers.report import BATCHES, markdown, over_turns
from benchmarks.peers.systems import measure_llm, measure_services
from benchmarks.prompts import mixed_texts
from benchmarks.publish import RESULTS, publish, write
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.llm import LLM
from specinfer.system.turns import alternate
from specinfer.tokenizer import Tokenizer

THREADS = 2
FEW = 5
"""Prompts of a turn at batch 1."""
WEIGHTS = {"bf16": "", "auto": " (Q4_1)"}
"""Formats of our weights, with their marks in the report.

auto: the file's blocks of 4 bits, as in llama.cpp.
"""
Figures = dict[str, dict[str, Any]]
"""A system's figures by mode, or `missing` with the reason."""


def main(
    prompts: Annotated[Path, typer.Option(help="Prompts, JSONL.")] = Path("tests/data/prompts.jsonl"),
    turns: Annotated[int, typer.Option(min=1, help="Turns of all systems.")] = 2,
    new_tokens: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 64,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "peers",
) -> None:
    """Compare the runtime with its peers."""
    torch.set_num_threads(THREADS)
    about, task = about_this_run("python -m benchmarks peers"), make_task(prompts, new_tokens)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        llms = {
            weights: stack.enter_context(LLM(DEFAULT_MODEL, weights=weights, max_num_seqs=max(BATCHES)))
            for weights in WEIGHTS
        }
        gguf = gguf_files(DEFAULT_MODEL, Path(folder))
        peers = [PeerProcess(name, variant, gguf, Path(folder)) for name, variant in VARIANTS]
        for peer in peers:
            stack.callback(peer.close)
        measured: list[Figures] = []
        for turn in range(turns):
            start = turn * (FEW + 1) % len(task["prompts"])
            rotated = {**task, "prompts": task["prompts"][start:] + task["prompts"][:start]}
            measured.append(one_turn(llms, peers, rotated, turn))
            report = over_turns(measured, list(map(str, BATCHES)))
            text = markdown(about, new_tokens, len(measured), report)
            write(out, text)
    publish(out, text)


def one_turn(
    llms: Mapping[str, LLM], peers: Sequence[PeerProcess], task: dict[str, Any], turn: int
) -> Figures:
    """Measure every system once."""
    works: dict[str, Callable[[], Figures]] = {}
    for weights, kind in WEIGHTS.items():
        works[f"LLM{kind}"] = partial(in_one_process, llms[weights], weights, task)
        works[f"services{kind}"] = partial(through_services, weights, task)
    works |= {peer.label: partial(of_peer, peer, task) for peer in peers}
    modes: Figures = {}
    for label in alternate(works, turn):
        console.print(f"turn {turn + 1}: {label}")
        modes |= works[label]()
    return modes


def in_one_process(llm: LLM, weights: str, task: dict[str, Any]) -> Figures:
    """Measure `LLM`, in one process."""
    modes = measure_llm(llm, task["prompts"], BATCHES, FEW, task["new_tokens"])
    return _named("LLM", weights, modes)


def through_services(weights: str, task: dict[str, Any]) -> Figures:
    """Measure our services."""
    modes = measure_services(task["prompts"], BATCHES, FEW, task["new_tokens"], weights)
    return _named("services", weights, modes)


def _named(system: str, weights: str, modes: Figures) -> Figures:
    settings = f"--weights {weights}, {THREADS} threads, default speculators"
    return {
        f"specinfer {system}, {mode}{WEIGHTS[weights]}": {**figures, "settings": settings}
        for mode, figures in modes.items()
    }


def of_peer(peer: PeerProcess, task: dict[str, Any]) -> Figures:
    """Return a peer's figures."""
    result = peer.measure(task)
    if isinstance(result, str):
        return {peer.label: {"missing": result}}
    for figures in result.values():
        figures.pop("outputs", None)
    return {f"{peer.label.split()[0]} {mode}": figures for mode, figures in result.items()}


def make_task(file: Path, new_tokens: int) -> dict[str, Any]:
    """Return a task: prompts as token ids, weights' directory, and settings."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    chats = [[{"role": "user", "content": text}] for text in mixed_texts(file)]
    return {
        "model": str(write_float_model(DEFAULT_MODEL)),
        "prompts": [tokenizer.encode_chat(chat) for chat in chats],
        "new_tokens": new_tokens,
        "batches": list(BATCHES),
        "few": FEW,
        "threads": THREADS,
    }


if __name__ == "__main__":
    typer.run(main)
