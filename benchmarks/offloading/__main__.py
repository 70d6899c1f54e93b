"""The paper's figure 8: decoding with offloaded weights, plainly and with trees.

Writes `benchmarks/results/offloading*.md`: tokens per second of plain decoding, of sequences and
of trees of 16 to 128 nodes, through the real services with the real model and the shipped speculators.
Layers are on the disk and are read at a given bandwidth (`offloading.throttled_verifier`) or at the disk's. Modes
alternate, prompt by prompt at batch 1; each is compared with plain decoding in the same turns.
"""

import asyncio
import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import harmonic_mean, stdev
from typing import Annotated, Any

import typer

from benchmarks.load import Load, generate_all, sustained
from benchmarks.offloading.throttled_verifier import BANDWIDTH
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import NO_METRICS, LocalSystem
from specinfer.cli.show import console
from specinfer.client import Answer, AsyncClient, acceptance_length
from specinfer.drafters.draft import default_services
from specinfer.drafters.pools import Flags
from specinfer.hub import DEFAULT_MODEL
from specinfer.system.turns import alternate
from specinfer.v1 import generation_pb2

_MODULE = "benchmarks.offloading.throttled_verifier"


class OffloadedSystem(LocalSystem):
    """A `LocalSystem` whose verifier reads at most `bytes_per_second`; 0: no limit."""

    def __init__(self, options: LocalOptions, bytes_per_second: float) -> None:
        super().__init__(options)
        self._bytes_per_second = bytes_per_second

    def _spawn(self, name: str, module: str, flags: Flags) -> None:
        if module == "verifier_svc" and self._bytes_per_second:
            os.environ[BANDWIDTH] = str(self._bytes_per_second)
            NO_METRICS.setdefault(_MODULE, NO_METRICS["verifier_svc"])
            module = _MODULE
        super()._spawn(name, module, flags)


def offloaded_system(
    model: str,
    gateway: Mapping[str, str],
    speculator: Mapping[str, str],
    bytes_per_second: float,
    directory: str,
) -> OffloadedSystem:
    """Return a system with offloaded layers and trees of 128 nodes."""
    verifier = {"offload": "disk", "offload-directory": directory, "max-nodes": "129"}
    verifier["weights"] = "bf16"
    pool = {name: {**flags, **speculator} for name, flags in default_services(model, offload=True).items()}
    options = LocalOptions(model=model, verifier=verifier, gateway=gateway, speculators=pool)
    return OffloadedSystem(options, bytes_per_second)


ROOT = Path(__file__).resolve().parents[2]

PLAIN, SEQUENCE, CHOSEN = "plain", "sequence", "tree, the planner's choice"
PAPER = {"OPT-13B": (3.3, 3.3, 3.1, 2.7, 2.6), "OPT-30B": (3.5, 3.3, 3.0, 3.0, 2.7)}
PAPER_BATCHES = (1, 2, 4, 8, 16)
PLAIN_TOKENS = 12
"""Tokens per answer of plain decoding; fewer, as it is slow."""


@dataclass(slots=True)
class MeasuredMode:
    """Results of one speculation mode at one batch size."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second of each turn."""
    steps: int = 0
    accepted: int = 0
    drafted: int = 0

    def add(self, rate: float, answers: Sequence[Answer]) -> None:
        self.rates.append(rate)
        for answer in answers:
            stats = answer.summary.stats
            self.steps += stats.steps
            self.accepted += stats.accepted
            self.drafted += stats.drafted

    def beside(self, plain: "MeasuredMode") -> dict[str, Any]:
        """Return the mode's rates and gains over `plain`, with standard errors."""
        gains = [rate / base for rate, base in zip(self.rates, plain.rates, strict=True)]
        return {
            "tokens_per_second": harmonic_mean(self.rates),
            "tokens_per_second_error": stdev(self.rates) / len(self.rates) ** 0.5,
            "gain": harmonic_mean(self.rates) / harmonic_mean(plain.rates),
            "gain_error": stdev(gains) / len(gains) ** 0.5,
            "tokens_per_step": acceptance_length(self.steps, self.accepted),
            "nodes_per_step": self.drafted / max(1, self.steps),
            "turns": len(self.rates),
        }


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 2,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt; few of them plainly.")] = 48,
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    gigabytes_per_second: Annotated[
        float, typer.Option("--gb-per-s", help="Bandwidth of the reader; 0: the disk's.")
    ] = 1.0,
    nodes: Annotated[
        str, typer.Option(help="Sizes of trees at batch 1; empty: the planner's only.")
    ] = "16,32,64,128",
    batches: Annotated[str, typer.Option(help="Batches with the planner's choice; batch 1 has all.")] = "1",
    directory: Annotated[str, typer.Option(help="Directory of the layers; empty: the cache directory.")] = "",
    speculator: Annotated[
        str, typer.Option(help="Flags of the speculators, FLAG=VALUE with commas between them.")
    ] = "",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "offloading",
) -> None:
    """Measure offloaded decoding."""
    rows = load_prompts(prompts, per_source)
    sizes = [int(size) for size in nodes.split(",") if size]
    flags = dict(pair.split("=", 1) for pair in speculator.split(",") if pair)
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks offloading"),
        "prompts": len(rows),
        "new_tokens": new_tokens,
        "model": model,
        "gigabytes_per_second": gigabytes_per_second,
        "batches": {},
    }

    with console.status("starting") as spinner:
        for batch in map(int, batches.split(",")):
            modes: dict[str, Any] = {}
            for size in [0, *sizes] if batch == 1 else [0]:
                spinner.update(f"batch {batch}, {size or 'planned'} nodes")
                bandwidth = gigabytes_per_second * 1e9
                with offloaded_system(model, _limits(batch, size), flags, bandwidth, directory) as system:
                    measured, passes = asyncio.run(_measure(system, rows, batch, new_tokens, size))
                report.setdefault("pass_ms", passes)
                modes |= measured
            report["batches"][str(batch)] = modes
    publish(out, markdown(report))


def _limits(batch: int, size: int) -> dict[str, str]:
    """Return the gateway's flags for trees of `size` nodes; 0: planned trees."""
    limits = {"max-batch": str(batch)}
    return limits | ({"tree-nodes": str(size), "step-nodes": str(size), "adaptive": "false"} if size else {})


async def _measure(
    system: OffloadedSystem, prompts: Sequence[EvaluationPrompt], batch: int, new_tokens: int, size: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Measure modes in turns: plain decoding, trees; sequences only with `size` 0."""
    tree = f"tree of {size}" if size else CHOSEN
    modes = {PLAIN: generation_pb2.SPECULATION_OFF, tree: generation_pb2.SPECULATION_TREE}
    if not size:
        modes[SEQUENCE] = generation_pb2.SPECULATION_SEQUENCE
    measured: dict[str, MeasuredMode] = defaultdict(MeasuredMode)
    client = AsyncClient(system.address)
    try:
        await _warm_up(client, prompts, batch)
        for turn, part in enumerate(_parts(prompts, batch)):
            for mode in alternate(modes, turn):
                load = Load(batch, modes[mode], PLAIN_TOKENS if mode == PLAIN else new_tokens)
                rate, answers = await _run(client, part, load)
                measured[mode].add(rate, answers)
    finally:
        await client.close()
    named = {PLAIN: f"{PLAIN} beside {size}" if size else PLAIN}
    report = {named.get(mode, mode): figures.beside(measured[PLAIN]) for mode, figures in measured.items()}
    return report, _pass_ms((system.logs / "verifier.log").read_text())


async def _warm_up(client: AsyncClient, prompts: Sequence[EvaluationPrompt], batch: int) -> None:
    """Read all prompts into the cache, and let the planner learn."""
    tokens = [prompt.tokens for prompt in prompts]
    await generate_all(client, tokens, Load(batch, generation_pb2.SPECULATION_OFF, 1))
    await generate_all(client, tokens[-batch:], Load(batch, generation_pb2.SPECULATION_TREE, 64))


def _parts(prompts: Sequence[EvaluationPrompt], batch: int) -> list[list[tuple[int, ...]]]:
    """Return the prompts of every turn.

    At batch 1 a turn has one prompt. Larger batches have three turns of 2 * `batch` prompts.
    """
    tokens = [prompt.tokens for prompt in prompts]
    if batch == 1:
        return [[prompt] for prompt in tokens]
    return [[tokens[(turn * batch + i) % len(tokens)] for i in range(2 * batch)] for turn in range(3)]


async def _run(client: AsyncClient, prompts: list[tuple[int, ...]], load: Load) -> tuple[float, list[Answer]]:
    """Return decoding tokens per second, of full batches if `batch` > 1."""
    if load.batch == 1:
        (answer,) = await generate_all(client, prompts, load)
        return 1 / answer.tpot_s, [answer]
    answers, rate = await sustained(client, prompts, load)
    return rate, answers


def _pass_ms(log: str) -> dict[str, float]:
    """Return milliseconds of a pass by its tokens, from the verifier's log."""
    match = re.search(r"passes take (.*)", log)
    assert match, log
    return {size: float(ms) for ms, size in re.findall(r"([\d.]+) ms for (\d+)", match[1])}


def markdown(report: dict[str, Any]) -> str:
    limit = report["gigabytes_per_second"]
    reader = f"a reader throttled to {limit} GB/s" if limit else "the disk as it is"
    rest = f" ({PLAIN_TOKENS} where plain); {report['model']} in bfloat16, greedy, layers from {reader}."
    lines = opening("Offloaded weights: trees over plain decoding", report, rest)
    for batch, modes in report["batches"].items():
        columns = ["tokens/s", "over plain", "tokens a step", "nodes a step", "turns"]
        lines += [f"## Batch {batch}", "", *head(columns, "mode")]
        lines += [line(mode, _cells(figures)) for mode, figures in modes.items() if "beside" not in mode]
        lines.append("")
    lines += ["## The paper's figure 8", "", "Offloading to host memory, trees over FlexGen:", ""]
    lines += head([f"batch {b}" for b in PAPER_BATCHES])
    lines += [line(name, [f"{gain}x" for gain in ratio]) for name, ratio in PAPER.items()]
    gains = {batch: max(m["gain"] for m in modes.values()) for batch, modes in report["batches"].items()}
    ours = [f"{gains[str(b)]:.2f}x" if str(b) in gains else "" for b in PAPER_BATCHES]
    passes = ", ".join(f"{size}: {ms:.0f}" for size, ms in report["pass_ms"].items())
    ratio = f"A pass by its tokens, ms, as the verifier measured it at start: {passes}."
    return "\n".join([*lines, line("here, best mode", ours), "", ratio, ""])


def _cells(figures: dict[str, Any]) -> list[str]:
    return [
        f"{figures['tokens_per_second']:.2f} ± {figures['tokens_per_second_error']:.2f}",
        f"{figures['gain']:.2f}x ± {figures['gain_error']:.2f}",
        f"{figures['tokens_per_step']:.2f}",
        f"{figures['nodes_per_step']:.0f}",
        str(figures["turns"]),
    ]


if __name__ == "__main__":
    typer.run(main)
