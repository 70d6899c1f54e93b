"""Measure plain decoding, sequences and trees through services.

    python -m benchmarks speed --prompts prompts.jsonl
    python -m benchmarks speed --weights bf16 --batch 1,2,4,8,16        the paper's figure 7

Systems have resident speculators, a service, or the defaults of `up`. Writes `benchmarks/results/speed.md`: tokens per
second while the batch is full, the gain over plain decoding as the median over turns, milliseconds per token of a
request, and tokens per step; by batch size, greedy and at temperature 0.8. Each way of drafting is a separate system;
all run at once and take turns over parts of the prompts. Plain decoding runs on the system without speculators.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer

from benchmarks.load import Load, generate_all, sustained
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.local.options import LocalOptions
from specinfer.cli.local.system import LocalSystem
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console
from specinfer.client import Answer, AsyncClient, acceptance_length
from specinfer.drafters.draft import default_services
from specinfer.hub import DEFAULT_MODEL
from specinfer.options.model_options import AUTO_DRAFT
from specinfer.system.turns import alternate, quartiles, ratios
from specinfer.v1 import generation_pb2

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}
PLAIN, SEQUENCES, DEFAULT = "plain", "sequences", "trees, default of up"

Modes = Mapping[str, tuple[str, generation_pb2.Speculation]]
"""Gateway's address and speculation by mode."""
TURNS = 5
FIRST_TOKENS = 24
"""Number of first tokens of a batch that are not timed."""


@dataclass(slots=True)
class Measured:
    """Results of one mode at one batch size."""

    rates: list[float] = field(default_factory=list)
    """Tokens per second of each turn while the batch was full."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def acceptance_length(self) -> float:
        """Tokens per step."""
        stats = [answer.summary.stats for answer in self.answers]
        return acceptance_length(sum(s.steps for s in stats), sum(s.accepted for s in stats))

    @property
    def ms_per_token(self) -> float:
        """Milliseconds per token of a request; reading the prompt counts."""
        tokens = [len(answer.token_ids) for answer in self.answers]
        seconds = [a.ttft_s + a.tpot_s * (n - 1) for a, n in zip(self.answers, tokens, strict=True)]
        return 1000 * sum(seconds) / sum(tokens)


def part_of(
    prompts: Sequence[EvaluationPrompt], turn: int, batch: int, turns: int = TURNS
) -> list[EvaluationPrompt]:
    """Return the prompts of a turn.

    A turn has 1 / `turns` of the prompts, but at least 3 * `batch`. Sources alternate, so every turn has every source.
    """
    by_source: dict[str, list[EvaluationPrompt]] = defaultdict(list)
    for prompt in prompts:
        by_source[prompt.source].append(prompt)
    rounds = [[of[i] for of in by_source.values() if i < len(of)] for i in range(len(prompts))]
    mixed = [prompt for some in rounds for prompt in some]
    size = min(len(mixed), max(-(-len(mixed) // turns), 3 * batch))
    first = turn * len(mixed) // turns
    return [mixed[(first + i) % len(mixed)] for i in range(size)]


async def warm_up(address: str, prompts: Sequence[EvaluationPrompt], batch: int) -> None:
    """Read all prompts once, so that they are cached for every mode."""
    client = AsyncClient(address)
    try:
        tokens = [prompt.tokens for prompt in prompts]
        await generate_all(client, tokens, Load(batch, generation_pb2.SPECULATION_OFF, 1))
    finally:
        await client.close()


async def run_turn(address: str, prompts: Sequence[EvaluationPrompt], load: Load, measured: Measured) -> None:
    """Run one mode's turn; add the results to `measured`."""
    client = AsyncClient(address)
    tokens = [prompt.tokens for prompt in prompts]
    try:
        await generate_all(client, tokens[: load.batch], replace(load, new_tokens=FIRST_TOKENS))
        answers, rate = await sustained(client, tokens, load)
    finally:
        await client.close()
    measured.rates.append(rate)
    measured.answers += answers


Results = dict[str, dict[int, dict[str, Measured]]]
"""Results by kind of sampling, batch size and mode."""


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
) -> Results:
    """Return results by kind of sampling, batch size and mode."""
    for address in {address for address, _ in modes.values()}:
        await warm_up(address, prompts, max(batches))
    by_kind: Results = {}
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
            by_kind.setdefault(kind, {})[batch] = measured
    return by_kind


def markdown(about: dict[str, Any], rest: str, by_kind: Results) -> str:
    lines = opening("Speed through the services", about, rest)
    for kind, by_batch in by_kind.items():
        lines += [f"## {kind}", ""]
        lines += head(["batch", "tokens/s", "over plain", "ms a token of a request", "tokens a step"], "mode")
        for batch, modes in by_batch.items():
            lines += [_line(mode, batch, measured, modes[PLAIN]) for mode, measured in modes.items()]
        lines.append("")
    return "\n".join(lines)


def _line(mode: str, batch: int, measured: Measured, plain: Measured) -> str:
    """Return a mode's medians over turns, with quartiles of the gain."""
    low, middle, high = quartiles(ratios(measured.rates, plain.rates))
    gain = "" if mode == PLAIN else f"{middle:.2f}x ({low:.2f} to {high:.2f})"
    cells = [str(batch), f"{median(measured.rates):.0f}", gain, f"{measured.ms_per_token:.1f}"]
    return line(mode, [*cells, f"{measured.acceptance_length:.2f}"])


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
    report = {"about": about_this_run("python -m benchmarks speed"), "prompts": len(rows)}
    report["new_tokens"] = new_tokens
    rest = f"; {model}, weights {weights}, {turns} turns; medians, in brackets quartiles"
    with ExitStack() as stack, console.status("starting") as spinner:
        modes: dict[str, tuple[str, generation_pb2.Speculation]] = {}
        for mode, options in systems(model, weights, max(batches)).items():
            address = stack.enter_context(LocalSystem(options)).address
            modes[mode] = address, generation_pb2.SPECULATION_TREE
        modes[SEQUENCES] = modes[DEFAULT][0], generation_pb2.SPECULATION_SEQUENCE
        results = asyncio.run(measure(modes, rows, batches, new_tokens, turns, spinner.update))
    publish(out, markdown(report, rest, results))


if __name__ == "__main__":
    typer.run(main)
