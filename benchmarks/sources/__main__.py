"""`python -m benchmarks sources`: acceptance of drafters by kind of prompt.

With a real target, it counts tokens per step and correct first guesses on chat, code, instructions, translations,
edits and answers with quotes, in one process, so counts do not depend on the machine's speed. NAME+NAME is a service
of several drafters. `copying-tune.jsonl` is for tuning; `copying-measure.jsonl` only for reports.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.decoding import Decoding, DecodingPlan, Result, replay
from benchmarks.methods import DEPTH, fresh, load_methods
from benchmarks.prompts import LONGEST, EvaluationPrompt, PromptRow, spread
from benchmarks.publish import RESULTS, publish, write
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.demo import PAIR
from specinfer.cli.show import console
from specinfer.drafters import Drafter
from specinfer.hub import resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.text.prompts import read_prompts
from specinfer.text.tokenizer import Tokenizer

KINDS = {
    "chat": ("writing", "roleplay", "reasoning", "math", "extraction", "stem", "humanities"),
    "code": ("code", "coding"),
    "instructions": ("self-instruct-user",),
    "translation": ("translation",),
    "edit": ("edit",),
    "rag": ("quotes",),
}
"""Maps kinds of prompts to categories or sources of rows."""


def main(
    prompts: Annotated[list[Path], typer.Option(help="Prompts with `source` and `category`, JSONL.")],
    method: Annotated[
        list[str] | None, typer.Option(help="NAME[+NAME...][=MODEL] of drafters; several times.")
    ] = None,
    model: Annotated[str, typer.Option(help="The target.")] = PAIR[0],
    datastore: Annotated[str, typer.Option(help="Texts of `retrieval`.")] = "",
    few: Annotated[int, typer.Option(min=1, help="Prompts of a kind.")] = 6,
    new_tokens: Annotated[int, typer.Option(min=2, help="Maximum tokens per prompt.")] = 48,
    nodes: Annotated[int, typer.Option(min=1, help="Verified nodes of a tree.")] = 8,
    temperature: Annotated[float, typer.Option(min=0, help="0 is greedy.")] = 0.0,
    batch: Annotated[int, typer.Option(min=0, help="Prompts decoded at once; 0: a kind.")] = 0,
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "sources",
) -> None:
    """Measure the acceptance of drafters by kind of prompt."""
    torch.set_num_threads(2)
    directory = resolve_model(model)
    tokenizer = Tokenizer.load(directory)
    by_kind = prompts_by_kind(prompts, tokenizer, few)
    usual = [
        f"ssm={PAIR[1]}",
        f"ngram+ssm={PAIR[1]}",
        "ngram",
        "suffix",
        *([f"retrieval={model}"] if datastore else []),
    ]
    specs = method or [*usual, f"lookahead={model}", f"recycling={model}"]
    kind = f"temperature {temperature:g}" if temperature else "greedy"
    about = (
        f"{origin(about_this_run('python -m benchmarks sources'))}; {kind}, {few} prompts of a kind, "
        f"{new_tokens} new tokens each at most, trees of {nodes} nodes, no branch ends early."
    )
    plan = DecodingPlan(nodes, DEPTH, temperature, new_tokens, batch=batch or few, calibrated=True)
    results: dict[str, Result] = {}
    with console.status("loading") as spinner:
        groups = load_groups(specs, datastore)
        runner = load_checked(directory, RunnerOptions())
        # greedy text is the same with every drafter
        answers = [] if temperature else Decoding(runner, [], plan).run(by_kind).answers
        for name, drafters in groups.items():
            spinner.update(name)
            fresh_ones = [fresh(drafter) for drafter in drafters]
            results[name] = measure(runner, fresh_ones, by_kind, plan, answers, tokenizer.encode_part)
            write(out, report(model, about, results))
    publish(out, report(model, about, results))


def load_groups(specs: Sequence[str], datastore: str) -> dict[str, list[Drafter]]:
    """Load the drafters of `NAME[+NAME...][=MODEL]` by the names."""
    groups: dict[str, list[Drafter]] = {}
    for spec in specs:
        names, _, model = spec.partition("=")
        members = load_methods([f"{name}={model}" for name in names.split("+")], datastore)
        groups[f"{names} {Path(model).name}" if names in groups else names] = list(members.values())
    return groups


def measure(
    runner: ModelRunner,
    drafters: Sequence[Drafter],
    prompts: Sequence[EvaluationPrompt],
    plan: DecodingPlan,
    answers: Sequence[Sequence[int]],
    encode: Callable[[str], list[int]],
) -> Result:
    """Decode with the drafters of a service, or replay `answers` if they need no target."""
    descriptions = [drafter.description for drafter in drafters]
    if answers and not any(each.target_top_k or each.feature_layers for each in descriptions):
        return replay(drafters, prompts, answers, plan, encode)
    return Decoding(runner, drafters, plan).run(prompts)


def prompts_by_kind(paths: Sequence[Path], tokenizer: Tokenizer, few: int) -> list[EvaluationPrompt]:
    """Return `few` prompts of every kind, spread over the files."""
    prompts: dict[str, list[PromptRow]] = {kind: [] for kind in KINDS}
    for path in paths:
        lines = [text for text in path.read_text(encoding="utf-8-sig").split("\n") if text.strip()]
        for text, row in zip(read_prompts(path), map(json.loads, lines), strict=True):
            label = row.get("category") or row.get("source")
            for kind, labels in KINDS.items():
                if label in labels:
                    prompts[kind].append(PromptRow(text, references=tuple(row.get("references", ()))))
    return [
        EvaluationPrompt(
            kind,
            tuple(tokenizer.encode_chat([{"role": "user", "content": row.text}])[-LONGEST:]),
            row.references,
        )
        for kind, rows in prompts.items()
        for row in spread(rows, few)
    ]


def report(model: str, about: str, results: dict[str, Result]) -> str:
    """Return the report in Markdown."""
    lines = [f"# Acceptance on {model} by kind of prompt", "", about, ""]
    kinds = list(dict.fromkeys(source for r in results.values() for source, _, _ in r.per_prompt))
    lines += ["Tokens a step, and steps whose first guess was right:", "", *head([*kinds, "all"], "drafter")]
    for name, result in results.items():
        cells = [
            f"{result.tokens_per_step(kind):.2f}, {100 * result.right_first_guesses(kind):.0f} %"
            for kind in kinds
        ]
        lines.append(line(name, [*cells, f"{result.tokens_per_step():.2f}"]))
    if services := {name: result for name, result in results.items() if "+" in name}:
        lines += ["", "Steps of services without a pass of the draft model:", "", *head(kinds, "drafters")]
    for name, result in services.items():
        steps = {kind: sum([n for source, n, _ in result.per_prompt if source == kind]) for kind in kinds}
        shares = [f"{100 * result.without_model[kind] / steps[kind]:.0f} %" for kind in kinds]
        lines.append(line(name, shares))
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    typer.run(main)
