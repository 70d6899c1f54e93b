"""`python -m benchmarks.sources.speed`: trees over plain decoding by kind of prompt.

In one process, every turn answers the same prompts plainly and with trees, in alternating order. The target has read
the prompts before, a draft model has not. The planner starts cold.
"""

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Annotated

import torch
import typer

from benchmarks.prompts import EvaluationPrompt
from benchmarks.publish import RESULTS, publish
from benchmarks.sources.__main__ import prompts_by_kind
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.demo import PAIR
from specinfer.cli.show import console
from specinfer.hub import resolve_model
from specinfer.llm import LLM, SamplingParams
from specinfer.scheduling.statistics import SpeculationCounts
from specinfer.system.turns import alternate, ratios
from specinfer.text.tokenizer import Tokenizer

MODES = ("off", "tree")
_COLUMNS = """Medians of the turns: tokens/s plainly; with trees over plain (range); tokens a step with trees; share of
these steps to which a draft model contributed nothing:"""


def main(
    prompts: Annotated[list[Path], typer.Option(help="Prompts with `source` and `category`, JSONL.")],
    streams: Annotated[list[int] | None, typer.Option(help="Requests at once; several times.")] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of a kind: each has other prompts.")] = 3,
    new_tokens: Annotated[int, typer.Option(min=2, help="Tokens per prompt.")] = 64,
    kind: Annotated[list[str] | None, typer.Option(help="Kinds of prompts; all if none.")] = None,
    nodes: Annotated[int, typer.Option(min=0, help="Nodes of constant trees; 0: the planner.")] = 0,
    model: Annotated[str, typer.Option(help="The target.")] = PAIR[0],
    draft: Annotated[
        list[str] | None,
        typer.Option(help="As `--draft`; several are merged drafters.", show_default=PAIR[1]),
    ] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "sources-speed",
) -> None:
    """Measure trees over plain decoding by kind of prompt."""
    torch.set_num_threads(2)
    sizes, tokenizer = streams or [1, 4], Tokenizer.load(resolve_model(model))
    by_kind = prompts_by_kind(prompts, tokenizer, needed := turns * max(sizes))
    counts = Counter(prompt.source for prompt in by_kind if not kind or prompt.source in kind)
    for name, count in counts.items():
        if count < needed:
            reason = f"{needed} prompts of {name} are needed, {count} were found"
            raise typer.BadParameter(reason, param_hint="--turns")
    about = (
        f"{origin(about_this_run('python -m benchmarks.sources.speed'))}; greedy, {new_tokens} new tokens."
    )
    lines = ["# Trees over plain decoding by kind of prompt", "", about, "", _COLUMNS, ""]
    lines += head(list(counts), "streams")
    drafts = draft or [PAIR[1]]
    chosen_drafts = {"draft": drafts[0]} if len(drafts) == 1 else {"speculators": drafts}
    with LLM(model, **chosen_drafts, adaptive=not nodes, tree_nodes=nodes) as llm:
        for size in sizes:
            cells = []
            for name in counts:
                chosen = [prompt for prompt in by_kind if prompt.source == name]
                cells.append(
                    cell(llm, [chosen[at : at + size] for at in range(0, turns * size, size)], new_tokens)
                )
                console.print(f"{name}, {size} streams: {cells[-1]}")
            lines.append(line(str(size), cells))
    publish(out, "\n".join([*lines, ""]))


def cell(llm: LLM, batches: Sequence[Sequence[EvaluationPrompt]], new_tokens: int) -> str:
    """Answer each batch in both modes; return a cell of the report."""
    rates: dict[str, list[float]] = {mode: [] for mode in MODES}
    counts = SpeculationCounts()
    for turn, batch in enumerate(batches):
        answer(llm, batch, MODES[0], 1)
        for mode in alternate(MODES, turn):
            began = time.perf_counter()
            made = answer(llm, batch, mode, new_tokens)
            rates[mode].append(len(batch) * new_tokens / (time.perf_counter() - began))
            if mode == "tree":
                counts += made
    gains, tokens = ratios(rates["tree"], rates["off"]), new_tokens * sum(map(len, batches))
    steps = counts.steps
    models = [n for n, name in enumerate(llm.speculators) if name not in ("ngram", "suffix")]
    modelled = sum([counts.of(n).drafts for n in models])
    spread = f"{median(gains):.2f}x ({min(gains):.2f} to {max(gains):.2f})"
    alone = f"{100 - 100 * modelled / max(steps, 1):.0f} %"
    return f"{median(rates['off']):.1f}; {spread}; {tokens / max(steps, 1):.2f}; {alone}"


def answer(llm: LLM, batch: Sequence[EvaluationPrompt], mode: str, new_tokens: int) -> SpeculationCounts:
    """Answer prompts at once; return the counts of all requests."""
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=new_tokens,
            ignore_eos=True,
            speculation=mode,
            references=prompt.references,
        )
        for prompt in batch
    ]
    outputs = llm.generate(
        [{"prompt_token_ids": list(prompt.tokens)} for prompt in batch], params, use_tqdm=False
    )
    counts = SpeculationCounts()
    for output in outputs:
        if output.metrics is not None:
            counts += output.metrics.speculative_decoding
    return counts


if __name__ == "__main__":
    typer.run(main)
