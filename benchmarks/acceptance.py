"""`make bench-acceptance`: how good the shipped SSM's drafts are, beside the paper's figures.

Writes `benchmarks/results/acceptance.json` and `.md`: success by top-k (the paper's Table 1), tokens per
step by tree width for both readings of the paper's vector and for best-first trees of equal size (Table
2), naive against multi-step sampling (Table 3), per source of the evaluation prompts. Counts, no clock.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.runner import ModelRunner, RunnerOptions
from specinfer.sampling import SamplingParams
from specinfer.tokenizer import Tokenizer
from specinfer.tree import TokenTree, TreeLimits
from speculator_svc.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from verifier_svc.engine import EngineLimits, VerifierEngine, VerifyJob

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
DEPTH = 8
WIDTHS = (1, 2, 3, 4, 5)
# SpecInfer, tables 1 and 2 (LLaMA-7B with LLaMA-68M, averages of its five data sets)
PAPER = {
    "success greedy": [66.4, 77.2, 81.8, 84.2, 85.6],
    "width greedy": [2.54, 3.04, 3.20, 3.32, 3.42],
    "width stochastic": [1.70, 1.98, 2.14, 2.22, 2.26],
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One evaluation prompt as token ids."""

    source: str
    tokens: tuple[int, ...]


@dataclass(slots=True)
class Count:
    """Steps and tokens of some decoding."""

    steps: int = 0
    tokens: int = 0

    @property
    def per_step(self) -> float:
        """Acceptance length."""
        return self.tokens / self.steps if self.steps else 0.0


class Bench:
    """The target with each acceptance rule, and drafters of any shape."""

    def __init__(self, ssm: str, new_tokens: int) -> None:
        self._ssm, self._new_tokens = ssm, new_tokens
        self._runner = ModelRunner.load(resolve_model(DEFAULT_MODEL), RunnerOptions(kv_tokens=8192))
        self._drafters: dict[str, Drafter] = {}

    def drafter(self, expansion: str) -> Drafter:
        """A drafter with an expansion vector, or best-first for ""."""
        if expansion not in self._drafters:
            options = DrafterOptions(model=self._ssm, expansion=expansion, kv_tokens=8192, beam=8)
            self._drafters[expansion] = make_drafter("ssm", options)
        return self._drafters[expansion]

    def run(
        self,
        prompts: Iterable[Prompt],
        expansion: str,
        nodes: int,
        temperature: float,
        rule: str = "multi_step",
    ) -> dict[str, Count]:
        """Tokens per step by source."""
        engine = VerifierEngine(self._runner, rule, EngineLimits())
        drafter = self.drafter(expansion)
        counts: dict[str, Count] = defaultdict(Count)
        for number, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=temperature, seed=number)
            self._decode(engine, drafter, prompt, TreeLimits(nodes, DEPTH), sampling, counts[prompt.source])
        return counts

    def _decode(
        self,
        engine: VerifierEngine,
        drafter: Drafter,
        prompt: Prompt,
        limits: TreeLimits,
        sampling: SamplingParams,
        count: Count,
    ) -> None:
        context, held = list(prompt.tokens), 0
        while len(context) < len(prompt.tokens) + self._new_tokens:
            (tree,) = drafter.draft([DraftJob("r", context, limits, sampling)])
            assert isinstance(tree, TokenTree), tree
            (outcome,) = engine.verify([VerifyJob("r", held, context[held:], tree, sampling)])
            assert outcome.verdict is not None, outcome.message
            context += [int(tree.token_ids[v]) for v in outcome.verdict.accepted]
            context.append(outcome.verdict.bonus)
            held = outcome.held_len
            count.steps += 1
            count.tokens += 1 + len(outcome.verdict.accepted)
        engine.release(["r"])
        drafter.release("r")

    def success(self, prompts: Iterable[Prompt], temperature: float) -> dict[str, list[float]]:
        """Share of the target's next tokens among the draft's top 1..5, in percent, by source."""
        engine = VerifierEngine(self._runner, "naive", EngineLimits())
        drafter = self.drafter("5")
        hits: dict[str, list[int]] = defaultdict(lambda: [0] * 5)
        totals: dict[str, int] = defaultdict(int)
        greedy = SamplingParams(temperature=0)
        for number, prompt in enumerate(prompts):
            sampling = SamplingParams(temperature=temperature, seed=number)
            context, held = list(prompt.tokens), 0
            for _ in range(self._new_tokens):
                (tree,) = drafter.draft([DraftJob("r", context, TreeLimits(5, 1), greedy)])
                assert isinstance(tree, TokenTree), tree
                root = TokenTree.root_only(context[-1])
                (outcome,) = engine.verify([VerifyJob("r", held, context[held:], root, sampling)])
                assert outcome.verdict is not None, outcome.message
                ranked = sorted(range(1, len(tree)), key=lambda n: -tree.scores[n])
                tokens = [int(tree.token_ids[n]) for n in ranked]
                if outcome.verdict.bonus in tokens:
                    hits[prompt.source][tokens.index(outcome.verdict.bonus)] += 1
                totals[prompt.source] += 1
                context.append(outcome.verdict.bonus)
                held = outcome.held_len
            engine.release(["r"])
            drafter.release("r")
        return {
            source: [round(100 * sum(found[: k + 1]) / totals[source], 1) for k in range(5)]
            for source, found in hits.items()
        }


def load_prompts(path: Path, per_source: int) -> list[Prompt]:
    """The first prompts of every source, spread over the file."""
    tokenizer = Tokenizer.load(resolve_model(DEFAULT_MODEL))
    by_source: dict[str, list[str]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        by_source[row["source"]].append(row["turns"][0])
    return [
        Prompt(source, tuple(tokenizer.encode_chat([{"role": "user", "content": turn}])[-1024:]))
        for source, turns in by_source.items()
        for turn in turns[:: max(1, len(turns) // per_source)][:per_source]
    ]


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
) -> None:
    """Measure the drafts of an SSM."""
    torch.set_num_threads(2)
    bench, found = Bench(ssm, new_tokens), load_prompts(prompts, per_source)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    report["success"] = {
        name: bench.success(found, temperature)
        for name, temperature in (("greedy", 0.0), ("stochastic", 1.0))
    }
    runs: dict[str, dict[str, float]] = {}
    for name, arguments in track(
        list(plans()), description="tokens per step", console=console, transient=True
    ):
        counts = bench.run(found, *arguments)
        total = Count(sum(c.steps for c in counts.values()), sum(c.tokens for c in counts.values()))
        runs[name] = {"all": total.per_step} | {source: c.per_step for source, c in counts.items()}
    report["tokens_per_step"] = {name: {k: round(v, 3) for k, v in row.items()} for name, row in runs.items()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / "acceptance.json").write_text(json.dumps(report, indent=2) + "\n")
    (RESULTS / "acceptance.md").write_text(markdown(report))
    console.print((RESULTS / "acceptance.md").read_text(), markup=False)


def plans() -> Iterable[tuple[str, tuple[str, int, float, str]]]:
    """(name, (expansion, nodes, temperature, rule)) of every run."""
    for kind, temperature in (("greedy", 0.0), ("stochastic", 1.0)):
        for k in WIDTHS:
            third = ",".join(["1", "1", str(k), *["1"] * 5])
            first = ",".join([str(k), *["1"] * 7])
            yield f"{kind} <1,1,{k},1,...>", (third, 2 + 6 * k, temperature, "multi_step")
            yield f"{kind} <{k},1,1,...>", (first, 8 * k, temperature, "multi_step")
            yield f"{kind} best-first, {8 * k} nodes", ("", 8 * k, temperature, "multi_step")
    yield "stochastic <5,1,1,...>, naive", ("5,1,1,1,1,1,1,1", 40, 1.0, "naive")


def markdown(report: dict[str, Any]) -> str:
    """The report as tables."""
    about, steps = report["about"], report["tokens_per_step"]
    sources = [name for name in next(iter(steps.values())) if name != "all"]
    lines = ["# How good the drafts are", ""]
    lines += [
        f"`{about['command']}` at {about['commit']}; {report['prompts']} prompts, {report['new_tokens']} new "
        "tokens each, bfloat16, temperature 0 and 1. The paper's figures are of LLaMA-7B with LLaMA-68M.",
        "",
        "## Success of one token by top-k, %",
        "",
        "| | 1 | 2 | 3 | 4 | 5 |",
        "|---|---|---|---|---|---|",
        row("paper, greedy, mean", PAPER["success greedy"]),
    ]
    for kind in ("greedy", "stochastic"):
        lines += [row(f"{kind}, {source}", report["success"][kind][source]) for source in sources]
    lines += ["", "## Tokens per step by width", "", "| | 1 | 2 | 3 | 4 | 5 |", "|---|---|---|---|---|---|"]
    for kind in ("greedy", "stochastic"):
        lines.append(row(f"paper, {kind}, <1,1,k,1,...>, mean", PAPER[f"width {kind}"]))
        for label, name in (("<1,1,k,1,...>", "<1,1,{k},1,...>"), ("<k,1,1,...>", "<{k},1,1,...>")):
            lines.append(
                row(f"{kind}, {label}", [steps[f"{kind} {name.format(k=k)}"]["all"] for k in WIDTHS])
            )
        best = [steps[f"{kind} best-first, {8 * k} nodes"]["all"] for k in WIDTHS]
        lines.append(row(f"{kind}, best-first, 8k nodes", best))
    naive, multi = steps["stochastic <5,1,1,...>, naive"]["all"], steps["stochastic <5,1,1,...>"]["all"]
    lines += [
        "",
        f"Naive sampling {naive:.2f}, multi-step {multi:.2f} at <5,1,...>: {multi / naive:.2f}x "
        "(paper: 1.27x).",
    ]
    lines += ["", "## Best-first, 16 nodes, by source", "", "| | " + " | ".join(sources) + " |"]
    lines.append("|---|" + "---|" * len(sources))
    for kind in ("greedy", "stochastic"):
        lines.append(row(kind, [steps[f"{kind} best-first, 16 nodes"][source] for source in sources]))
    return "\n".join(lines) + "\n"


def row(label: str, values: Sequence[float]) -> str:
    """One line of a table."""
    return (
        f"| {label} | "
        + " | ".join(f"{value:.2f}" if value < 10 else f"{value:.1f}" for value in values)
        + " |"
    )


if __name__ == "__main__":
    typer.run(main)
