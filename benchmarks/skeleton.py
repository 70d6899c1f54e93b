"""Skeleton-of-thought beside plain decoding and trees: latency, length and perplexity of the answers.

Writes `benchmarks/results/skeleton.json` and `.md`. One request at a time through the services, greedy, up to
the answer's end. Only questions that the router finds fitting are compared; how many these are is told. Modes
take turns. Perplexity is that of the text behind the user's question, under the target.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.suite.perplexity import Scorer
from benchmarks.tables import head, line, origin
from specinfer.cli.about import about_this_run
from specinfer.cli.connection import Connection
from specinfer.cli.local import LocalOptions
from specinfer.cli.running import local_system
from specinfer.cli.show import console
from specinfer.client import Answer, AsyncClient
from specinfer.hub import DEFAULT_MODEL, resolve_model
from specinfer.prompts import Prompt, read_prompts_by_source

ROOT = Path(__file__).resolve().parent.parent
MODES: Mapping[str, Mapping[str, Any]] = {
    "plain": {"speculation": "off"},
    "trees": {"speculation": "tree"},
    "skeleton": {"speculation": "off"},
    "skeleton and trees": {"speculation": "tree"},
}
Answers = dict[str, list[Answer]]


async def ask_all(
    client: AsyncClient, prompts: Sequence[Prompt], new_tokens: int, say: Callable[[str], None]
) -> tuple[list[Prompt], Answers]:
    """The prompts that fit, and their answers by mode."""
    fitting: list[Prompt] = []
    found: Answers = {mode: [] for mode in MODES}
    for number, prompt in enumerate(prompts):
        say(f"{number + 1} of {len(prompts)}, {len(fitting)} fit")
        tried = await _ask(client, prompt, 8, "skeleton")
        if not tried.summary.points:
            continue
        fitting.append(prompt)
        for mode in list(MODES)[:: -1 if len(fitting) % 2 else 1]:
            found[mode].append(await _ask(client, prompt, new_tokens, mode))
    return fitting, found


async def _ask(client: AsyncClient, prompt: Prompt, new_tokens: int, mode: str) -> Answer:
    answer = client.skeleton if "skeleton" in mode else client.stream
    async with answer(prompt.text, max_new_tokens=new_tokens, temperature=0.0, **MODES[mode]) as stream:
        return await stream.read()


def compare(prompts: Sequence[Prompt], found: Answers, scorer: Scorer) -> dict[str, Any]:
    """The figures by mode; gains are means of the ratios to the same question's plain answer."""
    plain = found["plain"]
    return {mode: _figures(prompts, answers, plain, scorer) for mode, answers in found.items()}


def _figures(
    prompts: Sequence[Prompt], answers: Sequence[Answer], plain: Sequence[Answer], scorer: Scorer
) -> dict[str, Any]:
    gains = [p.summary.total_seconds / a.summary.total_seconds for a, p in zip(answers, plain, strict=True)]
    tokens = [scorer.text_tokens(answer.text) for answer in answers]
    pairs = [(scorer.prompt_tokens(prompt), own) for prompt, own in zip(prompts, tokens, strict=True)]
    return {
        "seconds": mean(a.summary.total_seconds for a in answers),
        "ttft_ms": 1000 * mean(a.summary.ttft_seconds for a in answers),
        "gain": mean(gains),
        "gain_error": stdev(gains) / len(gains) ** 0.5,
        "tokens": mean(map(len, tokens)),
        "ms_per_token": mean(
            1000 * a.summary.total_seconds / len(t) for a, t in zip(answers, tokens, strict=True)
        ),
        "points": mean(a.summary.points for a in answers),
        "tokens_per_step": mean(a.stats.acceptance_length for a in answers),
        "perplexity": scorer.of(pairs),
    }


def markdown(report: Mapping[str, Any]) -> str:
    """The report as a table."""
    modes = report["modes"]
    rows: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
        "seconds to the whole answer": lambda of: f"{of['seconds']:.2f}",
        "over plain": lambda of: f"{of['gain']:.2f}x ± {of['gain_error']:.2f}",
        "time to first token, ms": lambda of: f"{of['ttft_ms']:.0f}",
        "tokens of the answer": lambda of: f"{of['tokens']:.0f}",
        "ms per token of the answer": lambda of: f"{of['ms_per_token']:.1f}",
        "points": lambda of: f"{of['points']:.1f}",
        "tokens a step": lambda of: f"{of['tokens_per_step']:.2f}",
        "perplexity under the target": lambda of: f"{of['perplexity']:.2f}",
    }
    return "\n".join(
        [
            "# Skeleton-of-thought, alone and with trees",
            "",
            f"{origin(report['about'])}; {report['model']}, weights {report['weights']}; greedy, at most "
            f"{report['new_tokens']} new tokens, one request at a time. The router found {report['fitting']} "
            f"of {report['prompts']} evaluation prompts fitting; figures are means over these, ± their "
            "standard error.",
            "",
            *head(list(modes)),
            *(line(label, [write(of) for of in modes.values()]) for label, write in rows.items()),
            "",
        ]
    )


def main(
    prompts: Annotated[Path, typer.Option(help="Evaluation prompts, JSONL.")] = ROOT
    / "tests/data/prompts.jsonl",
    count: Annotated[int, typer.Option(help="Prompts, spread over all sources.")] = 40,
    new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.")] = 256,
    weights: Annotated[str, typer.Option(help="How the target's matrices are held.")] = "converted",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "skeleton",
) -> None:
    """Measure skeleton-of-thought beside plain decoding and trees."""
    asked = read_prompts_by_source(prompts, count)
    options = LocalOptions(model=DEFAULT_MODEL, verifier={"weights": weights})

    async def ask(address: str, say: Callable[[str], None]) -> tuple[list[Prompt], Answers]:
        async with Connection(address).client() as client:
            await _ask(client, asked[0], 32, "trees")  # not measured
            return await ask_all(client, asked, new_tokens, say)

    with local_system(options) as system, console.status("asking") as spinner:
        fitting, found = asyncio.run(ask(system.address, spinner.update))
    report = {
        "about": about_this_run(),
        "model": DEFAULT_MODEL,
        "weights": weights,
        "prompts": len(asked),
        "fitting": len(fitting),
        "new_tokens": new_tokens,
        "modes": compare(fitting, found, Scorer(resolve_model(DEFAULT_MODEL), "bfloat16", weights)),
    }
    publish(out, report, markdown(report))


if __name__ == "__main__":
    typer.run(main)
