"""`make bench-acceptance`, second part: what speculation brings through the real services.

Writes `benchmarks/results/end-to-end.md`: tokens per second of plain decoding, sequences of 4
to 8 tokens and trees, greedy and at temperature 0.8, by batch and by source, in turns. Answers end where
the model ends them.
"""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.drafts.end_to_end import end_to_end
from benchmarks.drafts.prompts import load_prompts
from benchmarks.drafts.report import services_report
from benchmarks.publish import RESULTS, publish
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import console

ROOT = Path(__file__).resolve().parent.parent
BATCHES = (1, 4, 16)
KINDS = {"greedy": 0.0, "temperature 0.8": 0.8}


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 64,
    sequences: Annotated[str, typer.Option(help="Lengths of sequences, with commas between.")] = "4,5,6,7,8",
    weights: Annotated[
        str, typer.Option(help="Format of the target: bf16, or auto for its blocks.")
    ] = "bf16",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "end-to-end",
) -> None:
    """Measure the default pool through the services."""
    found, lengths = load_prompts(prompts, per_source), read_numbers("sequences", sequences)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    report["weights"] = weights
    with console.status("starting") as spinner:
        report["services"] = {
            kind: end_to_end(found, BATCHES, temperature, new_tokens, lengths, weights, spinner.update)
            for kind, temperature in KINDS.items()
        }
    publish(out, services_report(report))


if __name__ == "__main__":
    typer.run(main)
