"""Drafters that need no model, on recorded texts: what they would have got accepted. No model, no services.

Reads a corpus of `specinfer train corpus` (JSONL of prompt `p` and answer `o` as token ids), takes every
answer as what the target says, and writes `benchmarks/results/replay.json` and `.md`: tokens per step by
verified nodes, with the standard error over answers, and milliseconds per draft. Answers come one after
another, so that those who learn from finished requests can.
"""

import gzip
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from benchmarks.drafts.decoding import Result
from benchmarks.drafts.paths import followed
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.drafters import Drafter, DraftJob
from specinfer.drafters.ngram import NgramDrafter
from specinfer.drafters.references import References
from specinfer.drafters.suffix import SuffixDrafter
from specinfer.errors import SpecInferError
from specinfer.sampling import GREEDY
from specinfer.tree import TreeLimits

Row: TypeAlias = tuple[list[int], list[int]]
"""A prompt and the target's answer to it."""
DEPTH = 10
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "ngram, 2 to 4 tokens (default)": NgramDrafter,
    "ngram, 1 to 4 tokens": lambda: NgramDrafter(1, 4, 3),
    "suffix": SuffixDrafter,
    "suffix, learns": lambda: SuffixDrafter(learn=True),
}


def replay(
    drafter: Drafter, rows: Sequence[Row], nodes: int, references: Sequence[References | None] | None = None
) -> Result:
    """Every answer token by token: a step brings what a tree has of it, and one token more.

    Args:
        references: of each answer; None: none has any.
    """
    result, limits = Result(), TreeLimits(nodes, DEPTH)
    for number, (prompt, answer) in enumerate(rows):
        own = references[number] if references else None
        context, name, steps = [*prompt, answer[0]], f"r{number}", 0  # the prompt's pass says the first token
        while len(context) < len(prompt) + len(answer):
            started = time.perf_counter()
            job = DraftJob(name, context, limits, GREEDY, references=own)
            (tree,) = drafter.draft([job])
            result.seconds += time.perf_counter() - started
            if isinstance(tree, SpecInferError):
                raise tree
            left = answer[len(context) - len(prompt) :]
            context += left[: followed(tree, left) + 1]
            steps += 1
        drafter.release(name)
        result.per_prompt.append(("all", steps, len(answer) - 1))
    return result


def load(corpus: Path, count: int) -> list[Row]:
    """Prompts and answers, drawn at random with a fixed seed."""
    with gzip.open(corpus, "rt") if corpus.suffix == ".gz" else corpus.open() as lines:
        rows = [(row["p"], row["o"]) for row in map(json.loads, lines) if len(row["o"]) > 1]
    return random.Random(1).sample(rows, min(count, len(rows)))


def measure(rows: Sequence[Row], budgets: Sequence[int]) -> Iterator[dict[str, Any]]:
    """One entry for every drafter and budget; each begins with nothing learnt."""
    for name, make in DRAFTERS.items():
        for nodes in budgets:
            result = replay(make(), rows, nodes)
            steps = sum(steps for _, steps, _ in result.per_prompt)
            yield {
                "drafter": name,
                "nodes": nodes,
                "tokens_per_step": round(result.tokens_per_step(), 3),
                "standard_error": round(result.standard_error(), 3),
                "ms_per_draft": round(1000 * result.seconds / steps, 3),
            }


def markdown(report: dict[str, Any]) -> str:
    """The report as two tables."""
    runs, budgets = report["runs"], list(dict.fromkeys(run["nodes"] for run in report["runs"]))
    lines = ["# Drafters without a model, replayed", ""]
    lines += [f"{origin(report['about'])}; {report['answers']} answers of `{report['about']['corpus']}`."]
    for title, cell in (
        ("Tokens per step by nodes (± standard error over answers)", _length),
        ("Milliseconds per draft", lambda run: f"{run['ms_per_draft']:.2f}"),
    ):
        lines += ["", f"## {title}", "", *head([str(nodes) for nodes in budgets])]
        for name in dict.fromkeys(run["drafter"] for run in runs):
            lines.append(line(name, [cell(run) for run in runs if run["drafter"] == name]))
    return "\n".join([*lines, ""])


def _length(run: dict[str, Any]) -> str:
    return f"{run['tokens_per_step']:.2f} ± {run['standard_error']:.2f}"


def main(
    corpus: Annotated[Path, typer.Argument(help="JSONL of p and o, as specinfer train corpus writes.")],
    answers: Annotated[int, typer.Option(help="Most answers.")] = 400,
    nodes: Annotated[str, typer.Option(help="Verified nodes of a tree, with commas between.")] = "4,8,16,32",
) -> None:
    """Measure what drafters without a model would get accepted."""
    rows = load(corpus, answers)
    runs = list(measure(rows, read_numbers("nodes", nodes)))
    about = about_this_run() | {"corpus": corpus.name}
    report = {"about": about, "answers": len(rows), "runs": runs}
    publish(RESULTS / "replay", report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
