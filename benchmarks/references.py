"""What references bring: recorded answers, each drafted with its own source among other documents.

Reads a corpus of `specinfer train corpus` and takes every answer as what the target says, as
`benchmarks.replay` does. Its source is the answer itself, edited: every block of eight tokens is kept with a
probability, the overlap, and else replaced by tokens of an answer to something else. Seven such answers are
references beside it. Writes `benchmarks/results/references.json` and `.md`: tokens per step by overlap,
milliseconds per draft, and how long a service takes to take references in.
"""

import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.replay import DRAFTERS, Row, load, replay
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.drafters.references import References

BLOCK = 8
OTHERS = 7
NAMES = ("ngram, 2 to 4 tokens (default)", "ngram, 1 to 4 tokens", "suffix")
OVERLAPS = (None, 0.0, 0.5, 0.75, 0.9, 1.0)
"""None: no references at all."""
TAKEN_IN = (1024, 8192, 32768)
"""Tokens of references whose taking in is timed."""


def edited(answer: Sequence[int], other: Sequence[int], overlap: float, rng: random.Random) -> list[int]:
    """An answer of which blocks are replaced by what another one, repeated if it is shorter, has there."""
    filler = ([*other] * (len(answer) // len(other) + 1))[: len(answer)]
    found: list[int] = []
    for start in range(0, len(answer), BLOCK):
        text = answer if rng.random() < overlap else filler
        found += text[start : start + BLOCK]
    return found


def references_of(rows: Sequence[Row], overlap: float) -> list[References]:
    """For each answer its source among those of the next ones, at a place drawn at random."""
    rng, answers = random.Random(1), [answer for _, answer in rows]
    found = []
    for number, answer in enumerate(answers):
        others = [answers[(number + 1 + i) % len(answers)] for i in range(OTHERS + 1)]
        source = edited(answer, others.pop(), overlap, rng)
        others.insert(rng.randint(0, OTHERS), source)
        found.append(References(others))
    return found


def measure(rows: Sequence[Row], nodes: int) -> Iterator[dict[str, Any]]:
    """One entry for every drafter and overlap."""
    prepared = {overlap: None if overlap is None else references_of(rows, overlap) for overlap in OVERLAPS}
    for name in NAMES:
        for overlap, references in prepared.items():
            result = replay(DRAFTERS[name](), rows, nodes, references)
            yield {
                "drafter": name,
                "overlap": overlap,
                "tokens_per_step": round(result.tokens_per_step(), 3),
                "standard_error": round(result.standard_error(), 3),
                "ms_per_draft": round(1000 * result.seconds / sum(n for _, n, _ in result.per_prompt), 3),
            }


def taking_in(rows: Sequence[Row]) -> dict[int, float]:
    """Milliseconds by tokens of references, the median of five."""
    text = [token for _, answer in rows for token in answer]
    found = {}
    for tokens in TAKEN_IN:
        texts = [(text * (tokens // len(text) + 1))[:tokens]]
        times = []
        for _ in range(5):
            started = time.perf_counter()
            References(texts)
            times.append(time.perf_counter() - started)
        found[tokens] = round(1000 * sorted(times)[2], 2)
    return found


def markdown(report: dict[str, Any]) -> str:
    """The report as two tables and a line."""
    runs, about = report["runs"], report["about"]
    columns = ["none" if overlap is None else f"{overlap:.0%}" for overlap in OVERLAPS]
    where = f"{report['answers']} answers of `{about['corpus']}`, {report['nodes']} nodes"
    lines = [
        "# References",
        "",
        f"{origin(about)}; {where}, {OTHERS} other answers beside the source.",
    ]
    for title, cell in (
        ("Tokens per step by overlap of source and answer (± standard error over answers)", _length),
        ("Milliseconds per draft", lambda run: f"{run['ms_per_draft']:.2f}"),
    ):
        lines += ["", f"## {title}", "", *head(columns)]
        lines += [line(name, [cell(run) for run in runs if run["drafter"] == name]) for name in NAMES]
    times = ", ".join(f"{tokens:,} tokens {ms} ms" for tokens, ms in report["taking_in_ms"].items())
    return "\n".join([*lines, "", f"A service takes references in once for each request: {times}.", ""])


def _length(run: dict[str, Any]) -> str:
    return f"{run['tokens_per_step']:.2f} ± {run['standard_error']:.2f}"


def main(
    corpus: Annotated[Path, typer.Argument(help="JSONL of p and o, as specinfer train corpus writes.")],
    answers: Annotated[int, typer.Option(help="Most answers.")] = 100,
    nodes: Annotated[int, typer.Option(help="Verified nodes of a tree.")] = 16,
) -> None:
    """Measure what references bring, by how much answers have in common with them."""
    rows = load(corpus, answers)
    about = about_this_run() | {"corpus": corpus.name}
    about["command"] = about["command"].replace(str(corpus), corpus.name)
    report = {"about": about, "answers": len(rows), "nodes": nodes, "runs": list(measure(rows, nodes))}
    report["taking_in_ms"] = taking_in(rows)
    publish(RESULTS / "references", report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
