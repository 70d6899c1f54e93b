"""`specinfer demo`: the whole system on a few built-in prompts, answers streamed, modes compared."""

import asyncio

from rich.live import Live
from rich.panel import Panel
from rich.text import Text

from specinfer.cli.bench import MODES, BenchPlan, Run, run_bench, summarise
from specinfer.cli.client import Answer, GatewayClient, make_request
from specinfer.cli.show import console, run_table, win_lines

PROMPTS = (
    "Explain in three sentences why the sky is blue.",
    "Write a Python function that returns the n-th Fibonacci number, and show how to call it.",
    "Repeat this twice, then summarise it: The cat sat on the mat. The dog saw the cat and left the mat.",
)


def run_demo(address: str, max_new_tokens: int) -> list[Run]:
    """Streams every prompt in every mode; returns one row per mode."""
    return asyncio.run(_run(address, max_new_tokens))


async def _run(address: str, max_new_tokens: int) -> list[Run]:
    warm_up = BenchPlan(PROMPTS[:1], ("tree",), (1,), 8, 0.0)
    await run_bench(address, warm_up, lambda _: None)
    client = GatewayClient(address)
    runs: list[Run] = []
    plain: list[Answer] | None = None
    try:
        for mode, speculation in MODES.items():
            answers = [await _stream(client, prompt, mode, speculation, max_new_tokens) for prompt in PROMPTS]
            seconds = sum(answer.summary.total_seconds for answer in answers)
            plain = plain or answers
            runs.append(summarise(mode, 1, answers, seconds, plain))
    finally:
        await client.close()
    return runs


async def _stream(
    client: GatewayClient, prompt: str, mode: str, speculation: str, max_new_tokens: int
) -> Answer:
    request = make_request(
        prompt, chat=True, max_new_tokens=max_new_tokens, temperature=0.0, speculation=speculation
    )
    text = Text(style="default")
    title = f"{mode}: {prompt[:70]}"
    with Live(Panel(text, title=title, title_align="left"), console=console, refresh_per_second=20):
        return await client.generate(request, on_text=lambda piece: _append(text, piece))


def print_demo(runs: list[Run]) -> None:
    """The comparison, and how to read it."""
    console.print(run_table(runs), *win_lines(runs), sep="\n")
    same = [run.identical_token_share for run in runs[1:]]
    console.print(
        "Greedy, batch 1. tokens/step counts the bonus token; a speculator wins a step when it proposed the "
        "whole accepted path. Tokens identical to incremental decoding: "
        + ", ".join(
            f"{run.mode} {share:.1%}" for run, share in zip(runs[1:], same, strict=True) if share is not None
        )
        + "."
    )


def _append(text: Text, piece: str) -> None:
    text.append(piece)
