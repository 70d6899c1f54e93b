"""Acceptance rules on the same drawn trees, beside points that know the noise: tokens per step by nodes.

    python -m benchmarks.drafts.rules --prompts prompts.jsonl --part 0.8/8

Writes its part of `benchmarks/results/acceptance-rules.json` and `.md`: the shipped SSM, trees at most 8 deep. Nothing
is timed. Parts: temperature and nodes (best-first trees), or `table-3` (the paper's width 5, depth 8).
"""

import json
from collections.abc import Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.acceptance import ROOT, Bench
from benchmarks.drafts.decoding import DecodingPlan
from benchmarks.drafts.points_and_draw import grow_points_and_draw
from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.drafts.replayed_rules import COMPARED, REPETITIONS, REPLAYED, ReplayedRules, replay
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.drafters.ssm import SsmDrafter

TABLE_3, ONE_DRAW = "table-3", "ssm, one draw"
DEPTH = 8
POINTS, RATIO, SHAPED = "points by the noise", "traversal over multi-step", "points and one draw, traversal"
ROWS = (POINTS, *COMPARED, RATIO, SHAPED)


def measure(bench: Bench, prompts: list[EvaluationPrompt], part: str, new_tokens: int) -> dict[str, Any]:
    """The figures [value, error] of a part; those of Table 3 by source."""
    if part == TABLE_3:
        rules = replay()
        plan = DecodingPlan(5 * DEPTH, DEPTH, 1.0, new_tokens, rule=REPLAYED)
        bench.run(["5" + ",1" * (DEPTH - 1)], plan)
        sources = dict.fromkeys(prompt.source for prompt in prompts)
        of = {s: [i for i, prompt in enumerate(prompts) if prompt.source == s] for s in sources}
        return {s: figures(rules, requests) for s, requests in {"all": None, **of}.items()}
    temperature, nodes = part.split("/")
    return best_first(bench, int(nodes), float(temperature), new_tokens)


def best_first(bench: Bench, nodes: int, temperature: float, new_tokens: int) -> dict[str, Any]:
    """Points, draws by every rule, and points with one draw."""
    plan = partial(DecodingPlan, nodes, DEPTH, temperature, new_tokens, calibrated=True)
    points = bench.run(["ssm, point"], plan())
    steps = points.accepted
    mean = 1 + sum(length * count for length, count in steps.items()) / steps.total()
    found = {POINTS: [mean, points.standard_error()]}
    rules = replay()
    bench.run(["ssm"], plan(rule=REPLAYED))
    found |= figures(rules)
    rules = replay()
    one_draw = bench.drafter(ONE_DRAW)
    assert isinstance(one_draw, SsmDrafter)
    grow_points_and_draw(one_draw)
    bench.run([ONE_DRAW], plan(rule=REPLAYED))
    return found | {SHAPED: list(rules.tokens_per_step("traversal"))}


def figures(rules: ReplayedRules, requests: Sequence[int] | None = None) -> dict[str, list[float]]:
    """Tokens per step by rule, and the gain of traversal over multi-step, with errors."""
    found = {name: list(rules.tokens_per_step(name, requests)) for name in COMPARED}
    return found | {RATIO: list(rules.over("traversal", "multi_step", requests))}


def markdown(report: dict[str, Any]) -> str:
    """All parts that were measured."""
    rest = (
        f" at most, bfloat16, the shipped SSM. Rules verify the same trees, {REPETITIONS} times each with other "
        "randomness; draws are without replacement. ±: standard error over prompts."
    )
    lines = opening("What acceptance rules accept of the same trees", next(iter(report.values())), rest)
    best = {part.replace("/", ", "): own["figures"] for part, own in report.items() if part != TABLE_3}
    lines += ["Tokens per step by temperature and nodes, best-first:", "", *table(best)]
    if TABLE_3 in report:
        lines += ["Tokens per step, <5,1,1,...>, temperature 1 (the paper's Table 3):", ""]
        lines += table(report[TABLE_3]["figures"])
    return "\n".join(lines)


def table(columns: dict[str, dict[str, list[float]]]) -> list[str]:
    """One table, a column for each set of figures."""
    lines = head(list(columns))
    for name in [name for name in ROWS if all(name in column for column in columns.values())]:
        digits = 3 if name == RATIO else 2
        pairs = map(itemgetter(name), columns.values())
        lines.append(line(name, [f"{value:.{digits}f} ± {error:.{digits}f}" for value, error in pairs]))
    return [*lines, ""]


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    part: Annotated[str, typer.Option(help="TEMPERATURE/NODES or table-3.")] = "0.8/8",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 48,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS
    / "acceptance-rules",
) -> None:
    """Measure one part and add it to the report."""
    torch.set_num_threads(2)
    found = load_prompts(prompts, per_source)
    own: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    own["figures"] = measure(Bench(ssm, found, new_tokens), found, part, new_tokens)
    path = out.with_name(f"{out.name}.json")
    report = json.loads(path.read_text()) if path.exists() else {}
    report[part] = own
    report = dict(sorted(report.items(), key=lambda item: [part.zfill(3) for part in item[0].split("/")]))
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
