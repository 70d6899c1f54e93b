"""Count accepted tokens per step by node budget, for `benchmarks.synthetic`.

Writes `benchmarks/results/acceptance-lengths.md` for the shipped SSM and n-grams, merged, with the gateway's
calibration. It runs in one process, so results do not depend on the machine's speed.
"""

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.decoding import DecodingPlan, Result
from benchmarks.paper.acceptance import KINDS, ROOT, Bench
from benchmarks.prompts import load_prompts
from benchmarks.publish import RESULTS, publish, write
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console

NODES = (8, 16, 32, 64)
DEPTH = 8


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS
    / "acceptance-lengths",
) -> None:
    """Measure the lengths of accepted paths."""
    torch.set_num_threads(2)
    rows = load_prompts(prompts, per_source)
    histograms: dict[str, list[int]] = {}
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks acceptance_lengths"),
        "prompts": len(rows),
        "new_tokens": new_tokens,
    }
    report["histograms"] = histograms
    with console.status("loading") as spinner:
        bench = Bench(ssm, rows, new_tokens)
        for kind, temperature in KINDS.items():
            for nodes in NODES:
                spinner.update(f"{kind}, {nodes} nodes")
                plan = DecodingPlan(nodes, DEPTH, temperature, new_tokens, calibrated=True)
                histograms[f"{kind}, {nodes} nodes"] = counts(bench.run(["ngram", "ssm"], plan))
                write(out, markdown(report))
    publish(out, markdown(report))


def counts(result: Result) -> list[int]:
    """Return a list: entry i counts the steps that accepted i drafts."""
    return [result.accepted[i] for i in range(max(result.accepted) + 1)]


def markdown(report: dict[str, Any]) -> str:
    rest = " at most, bfloat16; n-grams and the shipped SSM, merged, trees at most 8 deep."
    lines = opening("Lengths of accepted paths", report, rest)
    lines += head(
        [f"{i}" for i in range(DEPTH + 1)] + ["steps", "tokens per step"], "steps by tokens accepted, %"
    )
    for name, histogram in report["histograms"].items():
        steps = sum(histogram)
        shares = [f"{100 * count / steps:.1f}" for count in histogram] + ["0.0"] * (
            DEPTH + 1 - len(histogram)
        )
        mean = 1 + sum(i * count for i, count in enumerate(histogram)) / steps
        lines.append(line(name, [*shares, str(steps), f"{mean:.2f}"]))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    typer.run(main)
