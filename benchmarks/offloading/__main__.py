"""The paper's figure 8: decoding with offloaded weights, plainly and with trees.

Writes `benchmarks/results/offloading.md`: tokens per second of plain decoding, sequences and trees, by the services
with the shipped speculators. Layers are on the disk and are read at a given bandwidth
(`offloading.throttled_verifier`) or at the disk's. Modes take turns; each is compared with plain decoding.
"""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.load import Load, generate_all
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
from specinfer.options.model_options import PassOptions
from specinfer.system.turns import alternate, ratios, standard_error
from specinfer.v1 import generation_pb2

_MODULE = "benchmarks.offloading.throttled_verifier"
PLAIN, SEQUENCE, CHOSEN = "plain", "sequence", "tree, the planner's choice"
PAPER = {"OPT-13B": (3.3, 3.3, 3.1, 2.7, 2.6), "OPT-30B": (3.5, 3.3, 3.0, 3.0, 2.7)}
PAPER_BATCHES = (1, 2, 4, 8, 16)
PLAIN_TOKENS = 12
"""Tokens per answer of plain decoding; fewer, as it is slow."""


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


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = Path(
        "tests/data/prompts.jsonl"
    ),
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 2,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt; few of them plainly.")] = 48,
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    gigabytes_per_second: Annotated[
        float, typer.Option("--gb-per-s", help="Bandwidth of the reader; 0: the disk's.")
    ] = 1.0,
    nodes: Annotated[str, typer.Option(help="Sizes of trees; 0: the planner's choice.")] = "0,16,32,64,128",
    batch: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 1,
    directory: Annotated[str, typer.Option(help="Directory of the layers; empty: the cache directory.")] = "",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "offloading",
) -> None:
    """Measure offloaded decoding."""
    rows = load_prompts(prompts, per_source)
    about = about_this_run("python -m benchmarks offloading")
    limit = gigabytes_per_second
    reader = f"a reader throttled to {limit} GB/s" if limit else "the disk as it is"
    rest = f" ({PLAIN_TOKENS} where plain); {model} in bfloat16, greedy, layers from {reader}."
    report = {"about": about, "prompts": len(rows), "new_tokens": new_tokens}
    lines = opening("Offloaded weights: trees over plain decoding", report, rest)
    lines += [f"## Batch {batch}", "", *head(["tokens/s", "over plain", "tokens a step"], "mode")]
    verifier = {"offload": "disk", "offload-directory": directory, "max-nodes": "129", "weights": "bf16"}
    for size in map(int, nodes.split(",")):
        flags = {"tree-nodes": str(size), "step-nodes": str(size), "adaptive": "false"} if size else {}
        options = LocalOptions(
            model=model,
            verifier=verifier,
            gateway={"max-batch": str(batch), **flags},
            speculators=default_services(model, PassOptions(offload="disk")),
        )
        with console.status(f"{size or 'planned'} nodes"), OffloadedSystem(options, limit * 1e9) as system:
            answers = asyncio.run(_measure(system, rows, batch, new_tokens, size))
        lines += [_row(mode, of_mode, answers[PLAIN]) for mode, of_mode in answers.items()]
    lines += ["", "## The paper's figure 8", "", "Offloading to host memory, trees over FlexGen:", ""]
    lines += head([f"batch {b}" for b in PAPER_BATCHES])
    lines += [line(name, [f"{gain}x" for gain in ratio]) for name, ratio in PAPER.items()]
    publish(out, "\n".join([*lines, ""]))


async def _measure(
    system: OffloadedSystem, prompts: Sequence[EvaluationPrompt], batch: int, new_tokens: int, size: int
) -> dict[str, list[list[Answer]]]:
    """Return each mode's answers by turn: plain decoding, trees; sequences only with `size` 0."""
    modes = {PLAIN: generation_pb2.SPECULATION_OFF}
    modes[f"tree of {size}" if size else CHOSEN] = generation_pb2.SPECULATION_TREE
    if not size:
        modes[SEQUENCE] = generation_pb2.SPECULATION_SEQUENCE
    answers: dict[str, list[list[Answer]]] = {mode: [] for mode in modes}
    tokens: list[Any] = [prompt.tokens for prompt in prompts]
    async with AsyncClient(system.address) as client:
        await generate_all(client, tokens, Load(batch, generation_pb2.SPECULATION_OFF, 1))
        await generate_all(client, tokens[-batch:], Load(batch, generation_pb2.SPECULATION_TREE, 64))
        for turn in range(-(-len(tokens) // batch)):
            part = [tokens[(turn * batch + i) % len(tokens)] for i in range(batch)]
            for mode in alternate(modes, turn):
                load = Load(batch, modes[mode], PLAIN_TOKENS if mode == PLAIN else new_tokens)
                answers[mode].append(await generate_all(client, part, load))
    return answers


def _row(mode: str, turns: Sequence[Sequence[Answer]], plain: Sequence[Sequence[Answer]]) -> str:
    rates, base = ([sum(1 / a.tpot_s for a in turn) for turn in of_mode] for of_mode in (turns, plain))
    gains = ratios(rates, base)
    stats = [answer.summary.stats for turn in turns for answer in turn]
    length = acceptance_length(sum(s.steps for s in stats), sum(s.accepted for s in stats))
    gain = f"{median(gains):.2f}x ± {standard_error(gains) or 0:.2f}"
    return line(mode, [f"{median(rates):.2f}", gain, f"{length:.2f}"])


if __name__ == "__main__":
    typer.run(main)
