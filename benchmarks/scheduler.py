"""How much a scheduler that foresees what is accepted could win, and how much of that a learned one does.

The SpecInfer paper's first version chooses the speculation of every step by a small network that predicts
how many tokens will match. Here every position of greedy answers gets a merged tree of each size; what of it
would be accepted is known, and what a pass of that size takes was measured. Policies walk through answers:

    plain      no drafts
    fixed      one size, the best over the training prompts
    threshold  nodes whose stated path probability is above a threshold, the best one there
    learned    the size with the most predicted tokens per second; a linear model of accepted tokens by size,
               of the tree's own chances and of what was accepted lately, fitted to the training prompts
    oracle     the cheapest walk there is (dynamic programming over all positions)

They are judged on evaluation prompts, of which nothing is fitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from benchmarks.drafts.paths import followed
from benchmarks.drafts.prompts import Prompt, load_prompts
from benchmarks.methods import load_methods
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, opening
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.drafters import Drafter, DraftJob
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner
from specinfer.sampling import GREEDY
from specinfer.tree import TokenTree, TreeLimits, merge_trees
from specinfer.verification.engine import VerifierEngine
from specinfer.verification.jobs import VerifyJob
from specinfer.verification.limits import EngineLimits

ROOT = Path(__file__).resolve().parent.parent
SIZES = (0, 2, 4, 8, 16, 32)
DEPTH = 10
BATCH = 8
THRESHOLDS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7)
RECENT = 0.8
"""By which earlier acceptances count less in what was accepted lately."""
Floats = NDArray[np.float64]


@dataclass
class Answer:
    """One prompt's greedy answer, and at each of its positions a tree of every size."""

    tokens: list[int] = field(default_factory=list)
    trees: list[list[TokenTree]] = field(default_factory=list)

    @cached_property
    def accepted(self) -> NDArray[np.int64]:
        """[positions, sizes] tokens that would be accepted."""
        return np.array(
            [[followed(tree, self.tokens[p:]) for tree in trees] for p, trees in enumerate(self.trees)]
        )

    @cached_property
    def features(self) -> Floats:
        """[positions, sizes, 3]: the tokens that the tree expects, the chance of its best guess, one."""
        return np.array([[_features(tree) for tree in trees] for trees in self.trees])


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds."""

    passes: Floats
    """[sizes] of a pass over one token and so many nodes."""
    draft: float

    def step(self, size: int) -> float:
        """Of a step with the size of this index."""
        return float(self.passes[size]) + (self.draft if size else 0.0)


def _chances(tree: TokenTree) -> list[float]:
    """Path probabilities of the nodes."""
    return [float(tree.scores[v]) for v in range(1, len(tree))]


def _features(tree: TokenTree) -> tuple[float, float, float]:
    chances = _chances(tree)
    return sum(chances), max(chances, default=0.0), 1.0


def record(
    runner: ModelRunner, drafters: Sequence[Drafter], prompts: Sequence[Prompt], new_tokens: int
) -> list[Answer]:
    """Greedy answers with the trees of all positions."""
    engine, found = VerifierEngine(runner, "multi_step", EngineLimits()), list[Answer]()
    for start in range(0, len(prompts), BATCH):
        some = prompts[start : start + BATCH]
        found += _record(engine, drafters, some, new_tokens)
        names = [f"r{i}" for i in range(len(some))]
        engine.release(names)
        for drafter in drafters:
            for name in names:
                drafter.release(name)
    return found


def _record(
    engine: VerifierEngine, drafters: Sequence[Drafter], prompts: Sequence[Prompt], new_tokens: int
) -> list[Answer]:
    """Of one batch."""
    answers, held = [Answer() for _ in prompts], [0] * len(prompts)
    contexts, running = [list(p.tokens) for p in prompts], list(range(len(prompts)))
    limits, stops = TreeLimits(max(SIZES), DEPTH), engine.runner.config.eos_token_ids
    while running:
        jobs = [DraftJob(f"r{i}", contexts[i], limits, GREEDY) for i in running]
        drafts = [drafter.draft(jobs) for drafter in drafters]
        for i, of_request in zip(running, zip(*drafts, strict=True), strict=True):
            pairs = [(k, tree) for k, tree in enumerate(of_request) if isinstance(tree, TokenTree)]
            answers[i].trees.append([merge_trees(pairs, size + 1, {}) for size in SIZES])
        plain = [
            VerifyJob(f"r{i}", held[i], c[held[i] :], TokenTree.root_only(c[-1]), GREEDY)
            for i in running
            for c in [contexts[i]]
        ]
        for i, outcome in zip(running, engine.verify(plain), strict=True):
            assert outcome.verdict is not None, outcome.message
            contexts[i].append(outcome.verdict.bonus)
            answers[i].tokens.append(outcome.verdict.bonus)
            held[i] = outcome.held_len
        running = [i for i in running if len(answers[i].tokens) < new_tokens and contexts[i][-1] not in stops]
    return answers


Choose = Callable[[Answer, int, float], int]
"""(answer, position, what was accepted lately) -> index of a size."""


def follow(answers: Sequence[Answer], costs: Costs, choose: Choose) -> float:
    """Milliseconds per token of a policy."""
    total = tokens = 0.0
    for answer in answers:
        accepted, position, lately = answer.accepted, 0, 1.0
        while position < len(answer.tokens):
            size = choose(answer, position, lately)
            step = int(accepted[position, size])
            total, tokens = total + costs.step(size), tokens + min(step + 1, len(answer.tokens) - position)
            lately = RECENT * lately + (1 - RECENT) * int(accepted[position, -1])
            position += step + 1
    return total / tokens


def oracle(answers: Sequence[Answer], costs: Costs) -> float:
    """Milliseconds per token of the cheapest walk."""
    total = 0.0
    for answer in answers:
        accepted, end = answer.accepted, len(answer.tokens)
        least = np.zeros(end + 1)
        for p in range(end - 1, -1, -1):
            least[p] = min(
                costs.step(s) + least[min(end, p + 1 + int(accepted[p, s]))] for s in range(len(SIZES))
            )
        total += float(least[0])
    return total / sum(len(answer.tokens) for answer in answers)


def learn(answers: Sequence[Answer]) -> Floats:
    """[sizes, features + 1] of a linear model: accepted tokens by features and what was accepted lately."""
    rows: list[Floats] = []
    targets: list[NDArray[np.int64]] = []
    for answer in answers:
        accepted, features, lately = answer.accepted, answer.features, 1.0
        for p in range(len(answer.tokens)):
            rows.append(np.concatenate([features[p], np.full((len(SIZES), 1), lately)], 1))
            targets.append(accepted[p])
            lately = RECENT * lately + (1 - RECENT) * int(accepted[p, -1])
    x, y = np.stack(rows), np.stack(targets)
    return np.stack([np.linalg.lstsq(x[:, s], y[:, s], rcond=None)[0] for s in range(len(SIZES))])


def policies(training: Sequence[Answer], judged: Sequence[Answer], costs: Costs) -> dict[str, float]:
    """Milliseconds per token of all."""
    indices = range(len(SIZES))

    def fixed(size: int) -> Choose:
        return lambda *_: size

    def threshold(least: float) -> Choose:
        def choose(answer: Answer, position: int, _: float) -> int:
            kept = sum(chance >= least for chance in _chances(answer.trees[position][-1]))
            return min(indices, key=lambda s: (abs(SIZES[s] - kept), s))

        return choose

    model = learn(training)

    def learned(answer: Answer, position: int, lately: float) -> int:
        features = [(*row, lately) for row in answer.features[position]]
        rates = [(1 + max(0.0, float(model[s] @ features[s])) * (s > 0)) / costs.step(s) for s in indices]
        return int(np.argmax(rates))

    best_size = min(indices, key=lambda s: follow(training, costs, fixed(s)))
    best_threshold = min(THRESHOLDS, key=lambda t: follow(training, costs, threshold(t)))
    return {
        "plain": follow(judged, costs, fixed(0)),
        f"fixed, {SIZES[best_size]} nodes": follow(judged, costs, fixed(best_size)),
        f"threshold, {best_threshold:g}": follow(judged, costs, threshold(best_threshold)),
        "learned": follow(judged, costs, learned),
        "oracle": oracle(judged, costs),
    }


def markdown(report: dict[str, Any]) -> str:
    """A table per set of costs."""
    lines = opening(
        "How much a scheduler could win", report, " at most, greedy, n-grams and the shipped SSM."
    )
    for name, found in report["costs"].items():
        passes = ", ".join(f"{1 + n}: {ms:g}" for n, ms in zip(SIZES, found["passes_ms"], strict=True))
        lines += [
            f"## {name}",
            "",
            f"A pass by its tokens, ms: {passes}; drafting {found['draft_ms']:g}.",
            "",
        ]
        plain = found["ms_per_token"]["plain"]
        lines += head(["ms per token", "over plain"])
        lines += [line(p, [f"{ms:.2f}", f"{plain / ms:.2f}x"]) for p, ms in found["ms_per_token"].items()]
        lines.append("")
    return "\n".join(lines)


def main(
    training: Annotated[Path, typer.Option(help="Training prompts, JSONL.")],
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 8,
    new_tokens: Annotated[int, typer.Option(help="Most tokens per prompt.")] = 64,
    passes: Annotated[
        list[str] | None,
        typer.Option(help="NAME:MS,MS,...: a pass over 1 token and 0, 2, 4, 8, 16, 32 nodes, then drafting."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "scheduler",
) -> None:
    """Compare policies that choose how many nodes a step verifies."""
    torch.set_num_threads(2)
    found = load_prompts(prompts, per_source)
    report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "new_tokens": new_tokens}
    with console.status("recording"):
        runner = ModelRunner.load(resolve_model(DEFAULT_MODEL), RunnerOptions())
        drafters = list(load_methods(["ngram", "ssm=ssm-smollm2-135m"]).values())
        training_answers = record(runner, drafters, load_prompts(training, per_source), new_tokens)
        answers = record(runner, drafters, found, new_tokens)
    report["costs"] = {}
    for text in passes or ["bfloat16:7,7.3,7.7,9,13,24,4", "blocks:3.8,4.5,5,8,15,31,4"]:
        name, _, numbers = text.partition(":")
        *by_size, draft = (float(ms) for ms in numbers.split(","))
        costs = Costs(np.array(by_size), draft)
        report["costs"][name] = {
            "passes_ms": by_size,
            "draft_ms": draft,
            "ms_per_token": policies(training_answers, answers, costs),
        }
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
