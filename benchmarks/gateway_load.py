"""One gateway under load: what it adds to a step, what a stream costs, who waits how long.

    python -m benchmarks.gateway_load                                          some minutes
    python -m benchmarks.gateway_load --parts soak --out benchmarks/results/gateway-soak

A real gateway with a real Redis; the verifier is a process that takes the same time for every pass, the
clients are a process of their own. Writes `benchmarks/results/gateway-load.json` and `.md`.
"""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.publish import RESULTS, publish
from benchmarks.serving.report import markdown
from benchmarks.serving.scenarios import by_batch, crowd, fairness, soak, store_share
from benchmarks.serving.system import Setup
from specinfer.cli.about import about_this_run
from specinfer.cli.show import console
from specinfer.hub import DEFAULT_MODEL

BATCHES = "1,16,64,256"
PARTS = {
    "steps": "steps by batch",
    "crowd": "many streams",
    "store": "with and without the store",
    "fairness": "many and few requests",
    "soak": "memory over time",
}


def main(
    parts: Annotated[
        str, typer.Option(help=f"What is measured: {', '.join(PARTS)}.")
    ] = "steps,crowd,store,fairness",
    batches: Annotated[
        str, typer.Option(help="Requests at once, where the added time is measured.")
    ] = BATCHES,
    streams: Annotated[int, typer.Option(help="Streams of the crowd.")] = 1000,
    new_tokens: Annotated[int, typer.Option(help="Tokens per request.")] = 128,
    step_ms: Annotated[float, typer.Option(help="Time of a pass, in milliseconds.")] = 20.0,
    store_turns: Annotated[int, typer.Option(help="Turns with and without the store.")] = 5,
    keys: Annotated[bool, typer.Option(help="Callers have API keys, where it is measured who waits.")] = True,
    minutes: Annotated[float, typer.Option(help="How long a soak watches memory.")] = 30.0,
    model: Annotated[str, typer.Option(help="Model whose tokenizer is used.")] = DEFAULT_MODEL,
    gateway: Annotated[str, typer.Option(help="More settings of the gateway: NAME=VALUE,...")] = "",
    out: Annotated[Path, typer.Option(help="The report, without its suffixes.")] = RESULTS / "gateway-load",
) -> None:
    """Measure a gateway under load."""
    wanted = parts.split(",")
    if unknown := set(wanted) - set(PARTS):
        raise typer.BadParameter(
            f"{', '.join(sorted(unknown))}: must be of {', '.join(PARTS)}", param_hint="--parts"
        )
    sizes = [int(size) for size in batches.split(",")]
    flags = dict(pair.split("=", 1) for pair in gateway.split(",") if pair)
    setup = Setup(model, step_ms, max(sizes), flags=flags)
    measures: dict[str, Callable[[], Coroutine[Any, Any, dict[str, Any]]]] = {
        "steps": lambda: by_batch(setup, sizes, new_tokens),
        "crowd": lambda: crowd(setup, streams, new_tokens),
        "store": lambda: store_share(setup, new_tokens, store_turns),
        "fairness": lambda: fairness(setup, new_tokens, keys),
        "soak": lambda: soak(setup, streams, new_tokens, 60 * minutes),
    }
    report: dict[str, Any] = {"about": about_this_run(), "step_ms": step_ms, "new_tokens": new_tokens}
    with console.status("measuring") as spinner:
        for part in wanted:
            spinner.update(PARTS[part])
            report[part] = asyncio.run(measures[part]())
            publish(out, report, markdown(report))  # what is measured is kept, whatever comes next


if __name__ == "__main__":
    typer.run(main)
