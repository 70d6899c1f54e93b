"""`specinfer demo`: the whole system on a few built-in prompts, answers streamed, modes compared."""

import typer

from specinfer.cli.bench import MODES, BenchPlan, BenchRun, Turn, run_bench, summarise
from specinfer.cli.show import output, print_runs
from specinfer.client import Answer, AsyncClient

PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and show how to call it.",
    "Repeat this twice, then summarise it: The cat sat on the mat. The dog saw the cat and left the mat.",
)


async def run_demo(client: AsyncClient, max_new_tokens: int) -> list[BenchRun]:
    """Stream every prompt in every mode to standard output; return one row per mode."""
    # every mode is to find the prompts in the verifier's cache, not only the later ones
    await run_bench(client, BenchPlan(PROMPTS, ("tree",), (1,), 8, 0.0), lambda _: None)
    turns: dict[str, list[Turn]] = {mode: [] for mode in MODES}
    for number, prompt in enumerate(PROMPTS, 1):
        _heading(f"Prompt {number} of {len(PROMPTS)}: {prompt}")
        for mode in MODES:
            _heading(f"{mode}:")
            answer = await _stream(client, prompt, mode, max_new_tokens)
            turns[mode].append(Turn([answer], answer.summary.total_seconds))
    return [summarise(mode, 1, found, turns["incremental"]) for mode, found in turns.items()]


def _heading(text: str) -> None:
    output.print()
    output.print(text, style="bold", markup=False, highlight=False)


async def _stream(client: AsyncClient, prompt: str, mode: str, max_new_tokens: int) -> Answer:
    answer = await client.generate(
        prompt,
        lambda piece: typer.echo(piece, nl=False),
        max_new_tokens=max_new_tokens,
        speculation=MODES[mode],
    )
    summary = answer.summary
    typer.echo()
    output.print(
        f"({summary.new_tokens} tokens in {summary.stats.steps} steps, {summary.total_seconds:.1f} s)",
        style="dim",
        highlight=False,
    )
    return answer


def print_demo(runs: list[BenchRun]) -> None:
    """Print the comparison, and how to read it."""
    output.print()
    print_runs(runs)
    same = ", ".join(
        f"{run.mode} {run.identical_token_share:.1%}"
        for run in runs[1:]
        if run.identical_token_share is not None
    )
    output.print(
        "Greedy, batch 1. A speculator wins a step when it proposed the whole accepted path. Tokens identical"
        f" to incremental decoding: {same}.",
        highlight=False,
    )
