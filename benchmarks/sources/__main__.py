"""`python -m benchmarks sources`: acceptance of drafters by kind of prompt.

With a real target, it counts tokens per step and correct first guesses on chat, code, instructions and translations,
in one process, so counts do not depend on the machine's speed.
"""

import json
from collections.abc import Sequence
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
}
"""Maps kinds of prompts to categories or sources of rows."""


def main(
    prompts: Annotated[list[Path], typer.Option(help="Prompts with `source` and `category`, JSONL.")],
    method: Annotated[
        list[str] | None, typer.Option(help="NAME[=MODEL] of a drafter; several times.")
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
    by_kind = prompts_by_kind(prompts, Tokenizer.load(directory), few)
    usual = [f"ssm={PAIR[1]}", "ngram", "suffix", *([f"retrieval={model}"] if datastore else [])]
    specs = method or [*usual, f"lookahead={model}", f"recycling={model}"]
    kind = f"temperature {temperature:g}" if temperature else "greedy"
    about = (
        f"{origin(about_this_run('python -m benchmarks sources'))}; {kind}, {few} prompts of a kind, "
        f"{new_tokens} new tokens each at most, trees of {nodes} nodes, no branch ends early."
    )
    plan = DecodingPlan(nodes, DEPTH, temperature, new_tokens, batch=batch or few)
    results: dict[str, Result] = {}
    with console.status("loading") as spinner:
        methods = load_methods(specs, datastore)
        runner = load_checked(directory, RunnerOptions())
        # greedy text is the same with every drafter
        answers = [] if temperature else Decoding(runner, [], plan).run(by_kind).answers
        for name, drafter in methods.items():
            spinner.update(name)
            results[name] = measure(runner, fresh(drafter), by_kind, plan, answers)
            write(out, report(model, about, results))
    publish(out, report(model, about, results))


def measure(
    runner: ModelRunner,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    plan: DecodingPlan,
    answers: Sequence[Sequence[int]],
) -> Result:
    """Decode with a drafter; a drafter that needs no target replays `answers`."""
    description = drafter.description
    if answers and not (description.target_top_k or description.feature_layers):
        return replay(drafter, prompts, answers, plan)
    return Decoding(runner, [drafter], plan).run(prompts)


def prompts_by_kind(paths: Sequence[Path], tokenizer: Tokenizer, few: int) -> list[EvaluationPrompt]:
    """Return `few` prompts of every kind, spread over the files."""
    prompts: dict[str, list[PromptRow]] = {kind: [] for kind in KINDS}
    for path in paths:
        lines = [text for text in path.read_text(encoding="utf-8-sig").split("\n") if text.strip()]
        for text, row in zip(read_prompts(path), map(json.loads, lines), strict=True):
            label = row.get("category") or row.get("source")
            for kind, labels in KINDS.items():
                if label in labels:
                    prompts[kind].append(PromptRow(text))
    return [
        EvaluationPrompt(
            kind, tuple(tokenizer.encode_chat([{"role": "user", "content": row.text}])[-LONGEST:])
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
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    typer.run(main)
