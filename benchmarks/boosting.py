"""Collective boost-tuning (the paper's section 3) against one SSM trained as long on everything.

Writes `benchmarks/results/boosting.json` and `.md`: on evaluation prompts, the first-guess success of each
SSM, that of the pool, and tokens per step of the merged trees at equal numbers of verified nodes.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.drafts.decoding import Decoding, Plan
from benchmarks.drafts.prompts import Prompt, load_prompts
from benchmarks.drafts.success import guesses
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, opening, row
from specinfer.cli.about import about_this_run
from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner

ROOT = Path(__file__).resolve().parent.parent
NODES, DEPTH = 16, 7


def main(
    first: Annotated[Path, typer.Option(help="SSM 1.")],
    second: Annotated[Path, typer.Option(help="SSM 2, trained on what SSM 1 misses.")],
    longer: Annotated[Path, typer.Option(help="SSM 1 trained on, as long as SSM 2, on everything.")],
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
) -> None:
    """Compare a boosted pool with one SSM."""
    torch.set_num_threads(2)
    found = load_prompts(prompts, per_source)
    runner = ModelRunner.load(resolve_model(DEFAULT_MODEL), RunnerOptions())
    one, two, long = (
        make_drafter("ssm", DrafterOptions(model=str(path), kv_tokens=32768))
        for path in (first, second, longer)
    )
    pools = {
        "SSM 1": [one],
        "SSM 2 alone": [two],
        "SSM 1 + SSM 2 (boosted)": [one, two],
        "one SSM, trained as long": [long],
        "one SSM, trained as long + SSM 2": [long, two],
    }
    report = {
        "about": about_this_run(),
        "prompts": len(found),
        "new_tokens": new_tokens,
        "pools": {name: measure(runner, drafters, found, new_tokens) for name, drafters in pools.items()},
    }
    publish(RESULTS / "boosting", report, markdown(report))


def measure(
    runner: ModelRunner, drafters: list[Drafter], prompts: list[Prompt], new_tokens: int
) -> dict[str, float]:
    """Success of the members' first guesses, of as many guesses of the first member, and tokens per step."""
    places = [guesses(runner, drafter, prompts, 0.0, new_tokens) for drafter in drafters]
    every = [[p for found in member.values() for p in found] for member in places]
    total = len(every[0])
    union = sum(any(p == 0 for p in found) for found in zip(*every, strict=True))
    result = {
        "first_guess": sum(p == 0 for p in every[0]) / total,
        "union_of_first_guesses": union / total,
        "as_many_guesses_of_the_first": sum(p < len(drafters) for p in every[0]) / total,
    }
    for kind, temperature in (("greedy", 0.0), ("stochastic", 1.0)):
        plan = Plan(NODES, DEPTH, temperature, new_tokens, calibrated=True)
        result[f"tokens_per_step_{kind}"] = Decoding(runner, drafters, plan).run(prompts).tokens_per_step()
    return {name: round(value, 4) for name, value in result.items()}


def markdown(report: dict[str, Any]) -> str:
    """The report as a table."""
    pools = report["pools"]
    columns = {
        "first_guess": "first guess, %",
        "union_of_first_guesses": "union of first guesses, %",
        "as_many_guesses_of_the_first": "as many guesses of its first SSM, %",
        "tokens_per_step_greedy": "tokens per step, greedy",
        "tokens_per_step_stochastic": "tokens per step, temperature 1",
    }
    rest = f"; trees of at most {NODES} nodes, merged and cut."
    lines = opening("Collective boost-tuning against one SSM trained as long", report, rest)
    lines += head(list(columns.values()))
    for name, found in pools.items():
        values = [found[key] * (1 if key.startswith("tokens") else 100) for key in columns]
        lines.append(row(name, values))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
