"""Plain decoding beside trees by resident speculators, by an independent service, and by the default of `up`.

    python -m benchmarks drafts --prompts prompts.jsonl

Writes `benchmarks/results/residents.md`: tokens per second while the batch is full, the gain over plain
decoding as the median over turns, and tokens per step; by batch size, greedy and at temperature 0.8. Each way of
drafting is a system of its own, all of them run at once, and the modes take turns over parts of the prompts, every
second time in reverse order. Plain decoding is that of the system without speculators.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import typer

from benchmarks.drafts.end_to_end import Measured, part_of, run_turn, warm_up
from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.load import Load
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.system import LocalOptions, LocalSystem
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console
from specinfer.client import acceptance_length
from specinfer.drafters.pools import default_resident, default_speculators
from specinfer.hub import DEFAULT_MODEL
from specinfer.v1 import generation_pb2

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
PLAIN = "plain"


def systems(gateway: Mapping[str, str]) -> dict[str, LocalOptions]:
    """The systems by the mode that they are for."""
    resident, services = default_resident(DEFAULT_MODEL), default_speculators(DEFAULT_MODEL)
    return {
        PLAIN: LocalOptions(speculators={}, resident="", gateway=gateway),
        "trees by a service": LocalOptions(speculators=services, gateway=gateway),
        "trees by residents": LocalOptions(speculators={}, resident=resident, gateway=gateway),
        "trees, default of up": LocalOptions(gateway=gateway),
    }


async def measure(
    addresses: Mapping[str, str],
    prompts: Sequence[EvaluationPrompt],
    batches: Sequence[int],
    new_tokens: int,
    turns: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Figures by kind of sampling, batch size and mode."""
    for address in addresses.values():
        await warm_up(address, prompts, max(batches))
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, temperature in KINDS.items():
        for batch in batches:
            say(f"{kind}, batch {batch}")
            measured = {mode: Measured() for mode in addresses}
            for turn in range(turns):
                part = part_of(prompts, turn, batch, turns)
                for mode in list(addresses)[:: -1 if turn % 2 else 1]:
                    speculation = generation_pb2.SPECULATION_TREE
                    load = Load(batch, speculation, new_tokens, temperature, ignore_eos=False)
                    await run_turn(addresses[mode], part, load, measured[mode])
            found.setdefault(kind, {})[str(batch)] = {
                mode: figures(own, measured[PLAIN]) for mode, own in measured.items()
            }
    return found


def figures(own: Measured, plain: Measured) -> dict[str, Any]:
    """The figures of a mode: medians over turns, with quartiles of the gain."""
    gains = [rate / other for rate, other in zip(own.rates, plain.rates, strict=True)]
    low, middle, high = quantiles(gains, n=4, method="inclusive")
    tallies = own.by_source.values()
    length = acceptance_length(sum(t.steps for t in tallies), sum(t.accepted for t in tallies))
    return {
        "tokens_per_second": median(own.rates),
        "gain": middle,
        "gain_quartiles": [low, high],
        "acceptance_length": length,
    }


def markdown(report: dict[str, Any]) -> str:
    """The report's tables."""
    rest = f"; {DEFAULT_MODEL}, default weights, {report['turns']} turns; medians, in brackets quartiles"
    lines = opening("Residents", report, rest)
    for kind, by_batch in report["kinds"].items():
        lines += [f"## {kind}", ""]
        lines += head(["batch", "tokens/s", "over plain", "tokens a step"], "mode")
        for batch, by_mode in by_batch.items():
            for mode, row in by_mode.items():
                low, high = row["gain_quartiles"]
                gain = "" if mode == PLAIN else f"{row['gain']:.2f}x ({low:.2f} to {high:.2f})"
                speed, length = f"{row['tokens_per_second']:.0f}", f"{row['acceptance_length']:.2f}"
                lines.append(line(mode, [batch, speed, gain, length]))
        lines.append("")
    return "\n".join(lines)


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 6,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 96,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,4,16",
    turns: Annotated[int, typer.Option(help="Parts of the prompts.")] = 6,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "residents",
) -> None:
    """Measure the ways of drafting on the default model."""
    found, batches = load_prompts(prompts, per_source), read_numbers("batch", batch)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    report["turns"] = turns
    with ExitStack() as stack, console.status("starting") as spinner:
        addresses = {}
        for mode, options in systems({"max-batch": str(max(batches))}).items():
            addresses[mode] = stack.enter_context(LocalSystem(options)).address
        report["kinds"] = asyncio.run(measure(addresses, found, batches, new_tokens, turns, spinner.update))
    publish(out, markdown(report))


if __name__ == "__main__":
    typer.run(main)
