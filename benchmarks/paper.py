"""`make bench-acceptance`, first part: quality of drafts, compared with the paper.

Writes `benchmarks/results/acceptance.md`: success by top-k (the paper's Table 1), tokens per step by tree width
(Table 2: the width at the first or the third level, and best-first trees of equal size), naive against multi-step
sampling (Table 3), and latency by width and batch (Figure 10).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.decoding import Decoding, DecodingPlan, Result
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening, row
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.request.sampling import Sampling
from specinfer.tree import TokenTree, TreeLimits
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

DEPTH, WIDTHS, BATCHES = 8, (1, 2, 3, 4, 5), (1, 4, 16)
KINDS = {"greedy": 0.0, "stochastic": 1.0}
GUESSES = 5
SUCCESS = {
    "Alpaca": (68, 77, 81, 84, 85),
    "CP": (69, 79, 83, 86, 87),
    "WebQA": (62, 72, 77, 80, 82),
    "CIP": (70, 81, 85, 88, 89),
    "PIQA": (63, 75, 79, 83, 85),
}
"""SpecInfer, Table 1, greedy: LLaMA-7B with LLaMA-68M."""
ALPACA = {"greedy": (2.95, 3.07, 3.21, 3.33, 3.43), "stochastic": (1.79, 2.11, 2.26, 2.32, 2.38)}
"""Table 2: tokens per step on Alpaca with trees of width 1 to 5."""
NAIVE, MULTI_STEP = 1.87, 2.38
"""Table 3: tokens per step on Alpaca by acceptance rule."""
FASTEST = {1: "5", 4: "2 or 3", 16: "2 or 3"}
"""Figure 10: fastest width by batch."""


class Bench:
    """Runs of the target with trees of the SSM."""

    def __init__(self, ssm: str, prompts: list[EvaluationPrompt], new_tokens: int) -> None:
        self._ssm, self.prompts, self.new_tokens = ssm, prompts, new_tokens
        self.runner = load_checked(resolve_model(DEFAULT_MODEL), RunnerOptions())
        self._drafters: dict[str, Drafter] = {}

    def drafter(self, expansion: str) -> Drafter:
        """Return the SSM with trees of drawn children: by numbers per level, or best-first if empty."""
        if expansion not in self._drafters:
            fields: dict[str, Any] = {"proposal": "without_replacement", "min_path_probability": 0.0}
            fields |= {"model": self._ssm, "kv_tokens": 32768, "beam": 8, "depth": DEPTH}
            self._drafters[expansion] = make_drafter("ssm", DrafterOptions(**fields, expansion=expansion))
        return self._drafters[expansion]

    def run(self, expansion: str, nodes: int, temperature: float, rule: str = "multi_step") -> Result:
        """Decode all prompts."""
        plan = DecodingPlan(nodes, DEPTH, temperature, self.new_tokens, rule=rule)
        return Decoding(self.runner, [self.drafter(expansion)], plan).run(self.prompts)

    def ms_per_token(self, width: int, batch: int) -> float:
        """Return milliseconds per token of a request with greedy trees."""
        count = max(batch, len(self.prompts) // (2 if batch > 1 else 4))
        plan = DecodingPlan(8 * width, DEPTH, 0.0, self.new_tokens, batch)
        decoding = Decoding(self.runner, [self.drafter(first_level(width))], plan)
        return decoding.run(self.prompts[: count - count % batch]).ms_per_token(batch)


def first_level(width: int) -> str:
    return ",".join([str(width), *["1"] * (DEPTH - 1)])


def third_level(width: int) -> str:
    return ",".join(["1", "1", str(width), *["1"] * (DEPTH - 3)])


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = Path(
        "tests/data/prompts.jsonl"
    ),
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
    out: Annotated[Path, typer.Option(help="The report, without its suffix.")] = RESULTS / "acceptance",
) -> None:
    """Measure the drafts of the shipped SSM."""
    torch.set_num_threads(2)
    rows = load_prompts(prompts, per_source)
    about = about_this_run("python -m benchmarks paper")
    rest = ", bfloat16, temperature 0 and 1. The paper's figures are of LLaMA-7B with LLaMA-68M."
    report = {"about": about, "prompts": len(rows), "new_tokens": new_tokens}
    lines = opening("How good the drafts are", report, rest)
    with console.status("measuring"):
        bench = Bench(ssm, rows, new_tokens)
        for part in (success_table, width_tables, sampling_table, latency_table):
            lines += [*part(bench), ""]
    publish(out, "\n".join(lines))


def success_table(bench: Bench) -> list[str]:
    lines = ["## Success of one token by top-k, % (Table 1)", "", *head([str(k + 1) for k in range(GUESSES)])]
    lines += [row(f"paper, greedy, {name}", values) for name, values in SUCCESS.items()]
    for kind, temperature in KINDS.items():
        by_source = success(bench.runner, bench.drafter("5"), bench.prompts, temperature, bench.new_tokens)
        lines += [row(f"{kind}, {source}", values) for source, values in by_source.items()]
        mean = [sum(values) / len(values) for values in zip(*by_source.values(), strict=True)]
        lines.append(row(f"{kind}, mean of sources", mean))
    return lines


def width_tables(bench: Bench) -> list[str]:
    lines = ["## Tokens per step by tree width (Table 2)", ""]
    lines += ["The paper states <1,1,k,1,...>, but its width 5 fits <k,1,1,...>. ±: standard error.", ""]
    for kind, temperature in KINDS.items():
        lines += [*head([str(k) for k in WIDTHS], kind), row("paper, Alpaca", ALPACA[kind])]
        shapes = {
            "<1,1,k,1,...>": [(third_level(k), 2 + 6 * k) for k in WIDTHS],
            "<k,1,1,...>": [(first_level(k), 8 * k) for k in WIDTHS],
            "best-first, 8k nodes": [("", 8 * k) for k in WIDTHS],
        }
        for name, trees in shapes.items():
            results = [bench.run(expansion, nodes, temperature) for expansion, nodes in trees]
            cells = [f"{result.tokens_per_step():.2f} ± {result.standard_error():.2f}" for result in results]
            lines.append(line(name, cells))
        lines.append("")
    return lines


def sampling_table(bench: Bench) -> list[str]:
    ours = [bench.run(first_level(5), 40, 1.0, rule).tokens_per_step() for rule in ("naive", "multi_step")]
    lines = ["## Naive and multi-step sampling, tokens per step, <5,1,1,...> (Table 3)", ""]
    lines += [*head(["naive", "multi-step", "ratio"])]
    pairs = {"paper, Alpaca": (NAIVE, MULTI_STEP), "all": (ours[0], ours[1])}
    return [*lines, *(row(name, (*pair, pair[1] / pair[0])) for name, pair in pairs.items())]


def latency_table(bench: Bench) -> list[str]:
    lines = ["## Milliseconds per token by width, <k,1,1,...>, greedy (Figure 10)", ""]
    lines += head([*(str(k) for k in WIDTHS), "fastest width in the paper"], "batch")
    for batch in BATCHES:
        times = [f"{bench.ms_per_token(width, batch):.1f}" for width in WIDTHS]
        lines.append(line(str(batch), [*times, FASTEST[batch]]))
    return lines


def success(
    runner: ModelRunner,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    temperature: float,
    new_tokens: int,
) -> dict[str, list[float]]:
    """Return by source the percentage of next tokens among the top 1..5."""
    return {
        source: [round(100 * sum(place <= k for place in places) / len(places), 1) for k in range(GUESSES)]
        for source, places in guesses(runner, drafter, prompts, temperature, new_tokens).items()
    }


def guesses(
    runner: ModelRunner,
    drafter: Drafter,
    prompts: Sequence[EvaluationPrompt],
    temperature: float,
    new_tokens: int,
) -> dict[str, list[int]]:
    """Return by source the drafter's rank of each next token, from 0.

    The rank is `GUESSES` if the drafter does not propose the token.
    """
    engine, limits = VerifierEngine(runner, "naive", EngineLimits()), TreeLimits(GUESSES, 1)
    places: dict[str, list[int]] = {prompt.source: [] for prompt in prompts}
    for number, prompt in enumerate(prompts):
        name, context, cached_len = f"r{number}", list(prompt.tokens), 0
        sampling = Sampling(temperature, seed=number)
        while len(context) < len(prompt.tokens) + new_tokens:
            (tree,) = drafter.draft([DraftJob(name, context, limits, Sampling(temperature=0))])
            assert isinstance(tree, TokenTree), tree
            delta, root = context[cached_len:], TokenTree.root_only(context[-1])
            (outcome,) = engine.verify([VerifyJob(name, cached_len, delta, root, sampling)])
            ranked = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
            tokens, token = [int(tree.token_ids[node]) for node in ranked], outcome.bonus
            places[prompt.source].append(tokens.index(token) if token in tokens else GUESSES)
            context.append(token)
            cached_len = outcome.cached_len
            if token in runner.config.eos_token_ids:
                break
        engine.release([name])
        drafter.release(name)
    return places


if __name__ == "__main__":
    typer.run(main)
