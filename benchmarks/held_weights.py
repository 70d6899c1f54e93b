"""How the default target's weights are held: what that costs in perplexity, and what a pass takes.

Writes `benchmarks/results/held-weights.json` and `.md`. Perplexity is over the text of the prompts; beside it
how far the distributions are from those of the file's numbers in float32 (mean KL divergence), and how often
the most probable token is the same. Passes take turns, so that drift of the machine meets all alike.
"""

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.drafts.prompts import Prompt, load_prompts
from benchmarks.publish import RESULTS, publish
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.model.batch import Segment
from specinfer.model.options import RunnerOptions
from specinfer.model.runner import ModelRunner

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = "float32"
WAYS = {
    REFERENCE: RunnerOptions(dtype="float32", executor="torch", kv_tokens=4096),
    "converted": RunnerOptions(kv_tokens=4096),
    "native": RunnerOptions(weights="native", kv_tokens=4096),
    "native-a8": RunnerOptions(weights="native-a8", kv_tokens=4096),
}
TOKENS = (1, 2, 4, 8, 16, 32)
CONTEXT = 256


def logits_of(runner: ModelRunner, tokens: Sequence[int]) -> torch.Tensor:
    """[T - 1, V] of every token but the last."""
    sequence = runner.open()
    rest = tokens[1:-1]
    segment = Segment(sequence, tokens[:1], rest, range(-1, len(rest) - 1), want_last=True)
    (logits,) = runner.forward([segment])
    runner.cache.release(sequence)
    return logits.log_softmax(-1)


def quality(runners: dict[str, ModelRunner], prompts: Sequence[Prompt]) -> dict[str, dict[str, float]]:
    """Perplexity, KL divergence from the reference in nats, share of equal most probable tokens."""
    sums = {way: np.zeros(3) for way in runners}
    count = 0
    for prompt in prompts:
        told = {way: logits_of(runner, prompt.tokens) for way, runner in runners.items()}
        exact, following = told[REFERENCE], torch.tensor(prompt.tokens[1:])
        count += len(following)
        for way, found in told.items():
            nll = -found.gather(-1, following[:, None]).sum()
            divergence = (exact.exp() * (exact - found)).sum()
            equal = (found.argmax(-1) == exact.argmax(-1)).sum()
            sums[way] += [float(nll), float(divergence), float(equal)]
    return {
        way: {"perplexity": math.exp(nll / count), "kl": kl / count, "same_best": equal / count}
        for way, (nll, kl, equal) in sums.items()
    }


def passes(runners: dict[str, ModelRunner], rounds: int) -> dict[str, dict[int, list[float]]]:
    """Milliseconds of passes over so many tokens behind a context, round by round."""
    held = {way: runner.open() for way, runner in runners.items()}
    for way, runner in runners.items():
        runner.forward([Segment(held[way], list(range(5, 5 + CONTEXT)), want_last=True)])
    found: dict[str, dict[int, list[float]]] = {way: {n: [] for n in TOKENS} for way in runners}
    for way, n in _turns(list(runners), rounds):
        started = time.perf_counter()
        runners[way].forward([Segment(held[way], [], [7] * n, [-1] * n)])
        found[way][n].append(1000 * (time.perf_counter() - started))
    return found


def _turns(ways: Sequence[str], rounds: int) -> Iterator[tuple[str, int]]:
    for turn in range(rounds):
        for n in TOKENS:
            for way in ways[:: -1 if turn % 2 else 1]:
                yield way, n


def markdown(report: dict[str, Any]) -> str:
    """Two tables."""
    lines = [
        "# How the default target's weights are held",
        "",
        f"{origin(report['about'])}; {DEFAULT_MODEL}.",
        "",
    ]
    lines += [f"## Quality over the text of {report['prompts']} evaluation prompts", ""]
    lines += head(["perplexity", "KL from float32, nats", "same most probable token"])
    for way, q in report["quality"].items():
        cells = [f"{q['perplexity']:.3f}", f"{q['kl']:.5f}", f"{100 * q['same_best']:.2f} %"]
        lines.append(line(way, cells))
    lines += ["", f"## One pass, ms, behind {CONTEXT} tokens (median; quickest of {report['rounds']})", ""]
    lines += head([f"{n} tokens" for n in TOKENS])
    for way, by_tokens in report["passes"].items():
        cells = [f"{np.median(times):.2f} ({min(times):.2f})" for times in by_tokens.values()]
        lines.append(line(way, cells))
    return "\n".join([*lines, ""])


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    per_source: Annotated[int, typer.Option(help="Prompts per source.")] = 20,
    rounds: Annotated[int, typer.Option(help="Turns of the passes.")] = 40,
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "held-weights",
) -> None:
    """Measure ways to hold the default target's weights."""
    torch.set_num_threads(2)
    found = [prompt for prompt in load_prompts(prompts, per_source) if len(prompt.tokens) > 2]
    with console.status("loading") as spinner:
        directory = resolve_model(DEFAULT_MODEL)
        runners = {way: ModelRunner.load(directory, options) for way, options in WAYS.items()}
        spinner.update("perplexity")
        report: dict[str, Any] = {"about": about_this_run(), "prompts": len(found), "rounds": rounds}
        report["quality"] = quality(runners, found)
        spinner.update("passes")
        del runners[REFERENCE]
        report["passes"] = passes(runners, rounds)
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
