"""Measure plain decoding, sequences and trees through services.

    python -m benchmarks speed --prompts prompts.jsonl
    python -m benchmarks speed --weights bf16 --batch 1,2,4,8,16        the paper's figure 7

Systems have resident speculators, a service, or the defaults of `up`. Writes `benchmarks/results/speed.md`:
tokens per second while the batch is full, the gain over plain decoding as the median over turns, milliseconds
per token of a request, and tokens per step; by batch size, greedy and at temperature 0.8, and by source at
the first batch size. Each way of drafting is a separate system; all systems run at once, and the modes alternate over
parts of the prompts, in reverse order every second time. Plain decoding runs on the system without speculators.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.load import Load
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.speed.turns import Measured, part_of, run_turn, warm_up
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console
from specinfer.drafters.draft import AUTO_DRAFT, default_services
from specinfer.hub import DEFAULT_MODEL
from specinfer.system.turns import alternate, quartiles, ratios
from specinfer.v1 import generation_pb2

ROOT = Path(__file__).resolve().parent.parent.parent
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
PLAIN, SEQUENCES, DEFAULT = "plain", "sequences", "trees, default of up"

Modes = Mapping[str, tuple[str, generation_pb2.Speculation]]
"""Gateway's address and speculation by mode."""


def systems(model: str, weights: str, max_batch: int) -> dict[str, LocalOptions]:
    """Return a system's options by mode (way of drafting)."""
    parts: dict[str, dict[str, Any]] = {
        PLAIN: {"speculators": {}},
        "trees by a service": {"speculators": default_services(model)},
        "trees by residents": {"speculators": {}, "draft": AUTO_DRAFT},
        DEFAULT: {},
    }
    return {
        mode: LocalOptions(
            model=model, gateway={"max-batch": str(max_batch)}, verifier={"weights": weights}, **rows
        )
        for mode, rows in parts.items()
    }


async def measure(
    modes: Modes,
    prompts: Sequence[EvaluationPrompt],
    batches: Sequence[int],
    new_tokens: int,
    turns: int,
    say: Callable[[str], None],
) -> dict[str, dict[str, dict[str, Any]]]:
    """Return figures by kind of sampling, batch size and mode."""
    for address in {address for address, _ in modes.values()}:
        await warm_up(address, prompts, max(batches))
    by_kind: dict[str, dict[str, dict[str, Any]]] = {}
    for kind, temperature in KINDS.items():
        for batch in batches:
            say(f"{kind}, batch {batch}")
            measured = {mode: Measured() for mode in modes}
            for turn in range(turns):
                part = part_of(prompts, turn, batch, turns)
                for mode in alternate(modes, turn):
                    address, speculation = modes[mode]
                    load = Load(batch, speculation, new_tokens, temperature, ignore_eos=False)
                    await run_turn(address, part, load, measured[mode])
            by_kind.setdefault(kind, {})[str(batch)] = {
                mode: figures(rows, measured[PLAIN]) for mode, rows in measured.items()
            }
    return by_kind


def figures(measured: Measured, plain: Measured) -> dict[str, Any]:
    """Return a mode's medians over turns, with quartiles of the gain."""
    low, middle, high = quartiles(ratios(measured.rates, plain.rates))
    seconds = sum(tally.seconds for tally in measured.by_source.values())
    return {
        "tokens_per_second": median(measured.rates),
        "gain": middle,
        "gain_quartiles": [low, high],
        "ms_per_token": 1000 * seconds / sum(tally.tokens for tally in measured.by_source.values()),
        "acceptance_length": measured.acceptance_length,
        "by_source": {
            source: (tally.tokens / tally.seconds) * (base.seconds / base.tokens)
            for source, tally in measured.by_source.items()
            for base in [plain.by_source[source]]
        },
    }


def markdown(report: dict[str, Any]) -> str:
    rest = f"; {report['model']}, weights {report['weights']}, {report['turns']} turns; medians, in brackets quartiles"
    lines = opening("Speed through the services", report, rest)
    for kind, by_batch in report["kinds"].items():
        lines += [f"## {kind}", ""]
        lines += head(["batch", "tokens/s", "over plain", "ms a token of a request", "tokens a step"], "mode")
        for batch, by_mode in by_batch.items():
            lines += [_line(mode, batch, row) for mode, row in by_mode.items()]
        first, by_mode = next(iter(by_batch.items()))
        sources = list(by_mode[PLAIN]["by_source"])
        lines += ["", f"By source at batch {first}, over plain decoding:", "", *head(sources)]
        lines += [
            line(mode, [f"{row['by_source'][source]:.2f}x" for source in sources])
            for mode, row in by_mode.items()
            if mode != PLAIN
        ]
        lines.append("")
    return "\n".join(lines)


def _line(mode: str, batch: str, row: dict[str, Any]) -> str:
    low, high = row["gain_quartiles"]
    gain = "" if mode == PLAIN else f"{row['gain']:.2f}x ({low:.2f} to {high:.2f})"
    speed, pace = f"{row['tokens_per_second']:.0f}", f"{row['ms_per_token']:.1f}"
    return line(mode, [batch, speed, gain, pace, f"{row['acceptance_length']:.2f}"])


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    model: Annotated[str, typer.Option(help="The target.")] = DEFAULT_MODEL,
    weights: Annotated[str, typer.Option(help="Format of the target's weights.")] = "auto",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 6,
    new_tokens: Annotated[int, typer.Option(help="Maximum tokens per prompt.")] = 96,
    batch: Annotated[str, typer.Option(help="Batch sizes, with commas between.")] = "1,4,16",
    turns: Annotated[int, typer.Option(min=2, help="Parts of the prompts.")] = 6,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "speed",
) -> None:
    """Measure what speculation gains through the services."""
    rows, batches = load_prompts(prompts, per_source), read_numbers("batch", batch)
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks speed"),
        "prompts": len(rows),
        "new_tokens": new_tokens,
    }
    report |= {"model": model, "weights": weights, "turns": turns}
    with ExitStack() as stack, console.status("starting") as spinner:
        modes: dict[str, tuple[str, generation_pb2.Speculation]] = {}
        for mode, options in systems(model, weights, max(batches)).items():
            address = stack.enter_context(LocalSystem(options)).address
            modes[mode] = address, generation_pb2.SPECULATION_TREE
        modes[SEQUENCES] = modes[DEFAULT][0], generation_pb2.SPECULATION_SEQUENCE
        report["kinds"] = asyncio.run(measure(modes, rows, batches, new_tokens, turns, spinner.update))
    publish(out, markdown(report))


if __name__ == "__main__":
    typer.run(main)
