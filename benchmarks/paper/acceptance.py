"""`make bench-acceptance`, first part: quality of drafts, compared with the paper.

Writes `benchmarks/results/acceptance.md` and plots: success by top-k (the paper's Table 1), tokens
per step by tree width (Table 2: the width at the first or the third level, and best-first trees of equal size),
naive against multi-step sampling (Table 3), tokens per step by prompt (Figure 9), latency by width and batch
(Figure 10), and the merged pool against single speculators.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.decoding import Decoding, DecodingPlan, Result
from benchmarks.paper.acceptance_report import WIDTHS, markdown, plot_distribution, plot_latency
from benchmarks.prompts import EvaluationPrompt, load_prompts
from benchmarks.publish import RESULTS, publish
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.drafters import Drafter, DrafterOptions, DraftJob, make_drafter
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.probe.load import load_checked
from specinfer.model.runner import ModelRunner
from specinfer.sampling import Sampling
from specinfer.tree import TokenTree, TreeLimits
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import EngineLimits, VerifyJob

ROOT = Path(__file__).resolve().parents[2]
DEPTH = 8
POOL_NODES, POOL_DEPTH = 16, 7
KINDS = {"greedy": 0.0, "stochastic": 1.0}
BATCHES = (1, 4, 16)


class Bench:
    """Runs of the target with named drafters."""

    def __init__(self, ssm: str, prompts: list[EvaluationPrompt], new_tokens: int) -> None:
        self._ssm, self._prompts, self._new_tokens = ssm, prompts, new_tokens
        self._runner = load_checked(resolve_model(DEFAULT_MODEL), RunnerOptions())
        self._drafters: dict[str, Drafter] = {}

    def drafter(self, name: str) -> Drafter:
        """Return a drafter by name.

        `ngram`; `ssm`: best-first trees with sampled children; `ssm, point`: best-first trees with the likeliest
        children; a vector such as `5,1,1`: SSM trees with these numbers of sampled children per level.
        """
        if name not in self._drafters:
            expansion = name if name[0].isdigit() else ""
            drawn = "point" if name == "ssm, point" else "without_replacement"
            options = DrafterOptions(
                model=self._ssm,
                expansion=expansion,
                kv_tokens=32768,
                beam=8,
                depth=DEPTH,
                proposal=drawn,
                min_path_probability=0.0,
            )
            self._drafters[name] = make_drafter("ngram" if name == "ngram" else "ssm", options)
        return self._drafters[name]

    def run(self, names: list[str], plan: DecodingPlan) -> Result:
        """Decode all prompts."""
        drafters = [self.drafter(name) for name in names]
        return Decoding(self._runner, drafters, plan).run(self._prompts)

    def success(self, temperature: float) -> dict[str, list[float]]:
        """Return the figures of Table 1."""
        return success(self._runner, self.drafter("5"), self._prompts, temperature, self._new_tokens)

    def widths(self) -> Iterator[tuple[str, Result]]:
        """Yield (name, result) of each run for Tables 2 and 3."""
        for kind, temperature in KINDS.items():
            for k in WIDTHS:
                third = ",".join(["1", "1", str(k), *["1"] * 5])
                yield f"{kind} <1,1,{k},1,...>", self.run([third], self._plan(2 + 6 * k, temperature))
                first = ",".join([str(k), *["1"] * 7])
                yield f"{kind} <{k},1,1,...>", self.run([first], self._plan(8 * k, temperature))
                yield f"{kind} best-first, {8 * k} nodes", self.run(["ssm"], self._plan(8 * k, temperature))
        naive = self._plan(40, 1.0, rule="naive")
        yield "stochastic <5,1,1,...>, naive", self.run(["5,1,1,1,1,1,1,1"], naive)

    def pools(self) -> Iterator[tuple[str, Result]]:
        """Yield (name, result) of each speculator and of the merged pools."""
        for kind, temperature in KINDS.items():
            pools = [["ngram"], ["ssm"], ["ngram", "ssm"]]
            if temperature:
                pools += [["ssm, point"], ["ngram", "ssm, point"]]
            for names in pools:
                plan = DecodingPlan(POOL_NODES, POOL_DEPTH, temperature, self._new_tokens, calibrated=True)
                yield f"{kind} {' + '.join(names)}", self.run(names, plan)

    def latency(self, say: Callable[[str], None]) -> dict[int, dict[int, float]]:
        """Return figure 10: milliseconds per token, by batch and width."""
        times: dict[int, dict[int, float]] = {}
        for batch in BATCHES:
            for k in WIDTHS:
                say(f"latency, batch {batch}, width {k}")
                plan = DecodingPlan(8 * k, DEPTH, 0.0, self._new_tokens, batch)
                count = max(batch, len(self._prompts) // (2 if batch > 1 else 4))
                decoding = Decoding(self._runner, [self.drafter(",".join([str(k), *["1"] * 7]))], plan)
                result = decoding.run(self._prompts[: count - count % batch])
                times.setdefault(batch, {})[k] = result.ms_per_token(batch)
        return times

    def _plan(self, nodes: int, temperature: float, rule: str = "multi_step") -> DecodingPlan:
        return DecodingPlan(nodes, DEPTH, temperature, self._new_tokens, rule=rule)


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    ssm: Annotated[str, typer.Option(help="The SSM.")] = "ssm-smollm2-135m",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Tokens per prompt.")] = 64,
) -> None:
    """Measure the drafts of the default pool."""
    torch.set_num_threads(2)
    rows = load_prompts(prompts, per_source)
    report: dict[str, Any] = {
        "about": about_this_run("python -m benchmarks.paper.acceptance"),
        "prompts": len(rows),
        "new_tokens": new_tokens,
    }
    with console.status("loading") as spinner:
        bench = Bench(ssm, rows, new_tokens)
        spinner.update("success by top-k")
        report["success"] = {kind: bench.success(temperature) for kind, temperature in KINDS.items()}
        results = {}
        for part in (bench.widths(), bench.pools()):
            for name, result in part:
                spinner.update(f"tokens per step: {name} done")
                results[name] = result
        report["tokens_per_step"] = {name: by_source(result) for name, result in results.items()}
        report["standard_error"] = {
            name: round(result.standard_error(), 3) for name, result in results.items()
        }
        report["latency_ms"] = bench.latency(spinner.update)
    publish(RESULTS / "acceptance", markdown(report))
    draw(results, report["latency_ms"])


def by_source(result: Result) -> dict[str, float]:
    """Return tokens per step of all prompts and of every source."""
    return {"all": round(result.tokens_per_step(), 3)} | result.by_source()


def draw(results: dict[str, Result], latency: dict[int, dict[int, float]]) -> None:
    for kind in KINDS:
        plot_distribution(
            RESULTS / f"tokens-per-step-{kind}.png",
            {k: results[f"{kind} best-first, {8 * k} nodes"].distribution() for k in WIDTHS},
            f"Best-first trees of 8 x width nodes, {kind}",
        )
    plot_latency(RESULTS / "latency-by-width.png", latency, "Figure 10: trees <k,1,1,1,1,1,1,1>, greedy")


GUESSES = 5


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

    The rank is `GUESSES` if the drafter does not propose the token. All prompts run in one batch.
    """
    engine = VerifierEngine(runner, "naive", EngineLimits())
    contexts = [list(p.tokens) for p in prompts]
    cached_lens = [0] * len(prompts)
    places: dict[str, list[int]] = {p.source: [] for p in prompts}
    sampling = [Sampling(temperature, seed=i) for i in range(len(prompts))]
    limits, greedy = TreeLimits(GUESSES, 1), Sampling(temperature=0)
    running = list(range(len(prompts)))
    while running:
        drafts = drafter.draft([DraftJob(f"r{i}", contexts[i], limits, greedy) for i in running])
        jobs = [
            VerifyJob(f"r{i}", cached_lens[i], c[cached_lens[i] :], TokenTree.root_only(c[-1]), sampling[i])
            for i in running
            for c in [contexts[i]]
        ]
        for i, tree, outcome in zip(running, drafts, engine.verify(jobs), strict=True):
            assert outcome.verdict is not None, outcome.message
            token = outcome.verdict.bonus
            assert isinstance(tree, TokenTree), tree
            ranked = sorted(range(1, len(tree)), key=lambda node: -tree.scores[node])
            tokens = [int(tree.token_ids[node]) for node in ranked]
            places[prompts[i].source].append(tokens.index(token) if token in tokens else GUESSES)
            contexts[i].append(token)
            cached_lens[i] = outcome.cached_len
        running = [
            i
            for i in running
            if contexts[i][-1] not in runner.config.eos_token_ids
            and len(contexts[i]) < len(prompts[i].tokens) + new_tokens
        ]
    names = [f"r{i}" for i in range(len(prompts))]
    engine.release(names)
    for name in names:
        drafter.release(name)
    return places


if __name__ == "__main__":
    typer.run(main)
