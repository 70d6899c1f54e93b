"""Decoding in one process: `LLM`, its planner and bookkeeping included, beside the same pieces driven by a bare loop.

    python -m benchmarks.one_process --prompts prompts.jsonl

Writes `benchmarks/results/one-process.json` and `.md`: tokens per second at batch 1 of plain decoding and of trees
with a constant number of nodes in the bare loop (`benchmarks.drafts.decoding`), and of `LLM` without and with
speculation. The modes take turns, prompt by prompt, every second time in reverse order.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import stdev
from time import perf_counter
from typing import Annotated, Any

import typer

from benchmarks.drafts.decoding import Decoding, DecodingPlan
from benchmarks.drafts.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.options.shared import read_numbers
from specinfer.cli.show import progress_bar
from specinfer.drafters import Drafter, DrafterOptions, make_drafter
from specinfer.drafters.pools import trained_for
from specinfer.hub import DEFAULT_MODEL
from specinfer.llm import LLM, SamplingParams

ROOT = Path(__file__).resolve().parent.parent
DEPTH = 7
Mode = Callable[[EvaluationPrompt], int]
"""Decodes a prompt; the tokens that came."""


def modes(llm: LLM, nodes: Sequence[int], new_tokens: int) -> dict[str, Mode]:
    """The modes by name; all of them use the model that `LLM` has loaded."""
    runner = llm.runner

    def bare(drafters: list[Drafter], most: int) -> Mode:
        plan = DecodingPlan(most, DEPTH, 0.0, new_tokens, batch=1, calibrated=True)
        decoding = Decoding(runner, drafters, plan)
        return lambda prompt: decoding.run([prompt]).per_prompt[0][2]

    def whole(speculation: str) -> Mode:
        params = SamplingParams(temperature=0, max_tokens=new_tokens, speculation=speculation)
        return lambda prompt: len(llm.generate(list(prompt.tokens), params)[0].outputs[0].token_ids)

    ssm = make_drafter("ssm", DrafterOptions(model=trained_for(DEFAULT_MODEL)["ssm"]))
    found = {"bare loop, plain": bare([], 1), "LLM, plain": whole("off")}
    found |= {f"bare loop, trees of {n}": bare([ssm], n) for n in nodes}
    return found | {"LLM, trees": whole("tree")}


def take_turns(found: dict[str, Mode], prompts: Sequence[EvaluationPrompt]) -> dict[str, list[float]]:
    """Tokens per second of every mode, prompt by prompt."""
    rates: dict[str, list[float]] = {name: [] for name in found}
    for mode in found.values():
        mode(prompts[0])  # not measured
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=len(prompts) * len(found))
        for number, prompt in enumerate(prompts):
            for name in list(found)[:: -1 if number % 2 else 1]:
                started = perf_counter()
                tokens = found[name](prompt)
                rates[name].append(tokens / (perf_counter() - started))
                bar.update(task, advance=1, description=name)
    return rates


def markdown(report: dict[str, Any]) -> str:
    """The report's table: harmonic means, so that each prompt's time counts."""
    lines = opening("One process", report, f"; {DEFAULT_MODEL}, default weights, greedy, batch 1")
    lines += head(["tokens/s", "over the bare loop, plain", "standard error"], "mode")
    base = report["rates"]["bare loop, plain"]
    for name, rates in report["rates"].items():
        ratios = [own / other for own, other in zip(rates, base, strict=True)]
        mean = len(rates) / sum(1 / rate for rate in rates)
        plain = len(base) / sum(1 / rate for rate in base)
        error = stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
        lines.append(line(name, [f"{mean:.0f}", f"{mean / plain:.2f}x", f"± {error:.2f}"]))
    return "\n".join([*lines, ""])


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 4,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 96,
    nodes: Annotated[
        str, typer.Option(help="Nodes of the bare loop's trees, with commas between.")
    ] = "2,4,8",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "one-process",
) -> None:
    """Measure `LLM` beside the bare loop."""
    found = load_prompts(prompts, per_source)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    with LLM(DEFAULT_MODEL) as llm:
        report["rates"] = take_turns(modes(llm, read_numbers("nodes", nodes), new_tokens), found)
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
